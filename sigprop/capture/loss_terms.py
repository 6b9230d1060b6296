"""A loss as a sum of terms: what each depends on, and which of them have a closed form."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.broadcast import as_constant
from sigprop.capture.layout import Layout
from sigprop.capture.record import Call, Field, Record, Source, united

PASSING = frozenset(
    ("view", "reshape", "squeeze", "flatten", "to", "float", "double", "clone", "contiguous", "mean", "sum")
)
SUMS = {"add": 1.0, "radd": 1.0, "sub": -1.0, "subtract": -1.0}


@dataclass(frozen=True)
class Term:
    """A number that depends on the input or the parameters, with the factor it enters the loss by."""

    record: Record
    factor: float

    @property
    def sources(self) -> tuple[Source, ...]:
        return self.record.sources if isinstance(self.record, Field) else ()


def terms_of(record: Record, factor: float = 1.0) -> list[Term]:
    """The terms of a sum of numbers, each times a constant; what is no sum is one term."""
    call = record.call
    if call is None or math.prod(record.shape) != 1 or record.output is not None:
        return [Term(record, factor)]
    found = list(_inner(call, factor))
    if not found:
        return [Term(record, factor)]
    return [term for inner, share in found for term in terms_of(inner, share)]


def _inner(call: Call, factor: float) -> Iterator[tuple[Record, float]]:
    """What a call adds up, with factors; nothing where it does something else."""
    args = [*call.args, *call.kwargs.values()]
    records = [item for item in args if isinstance(item, Record)]
    if not records or any(math.prod(item.shape) != 1 for item in records):
        return
    first, second = (*args, None)[:2]
    if call.name in PASSING or call.name == "neg":
        yield records[0], -factor if call.name == "neg" else factor
    elif call.name in SUMS and len(args) == 2:
        if isinstance(first, Record):
            yield first, factor
        if isinstance(second, Record):
            yield second, factor * SUMS[call.name]
    elif call.name in ("mul", "multiply", "rmul", "div", "truediv", "true_divide") and len(args) == 2:
        number = as_constant(*((second, first) if isinstance(first, Record) else (first, second)))
        divides = call.name not in ("mul", "multiply", "rmul")
        if number is not None and math.isfinite(number) and (isinstance(first, Record) or not divides):
            yield records[0], factor / number if divides else factor * number


def grouped(terms: Sequence[Term]) -> list[list[Term]]:
    """Terms that share randomness together."""
    groups: list[tuple[set[Field], list[Term]]] = []
    for term in terms:
        fields = {source.field for source in term.sources}
        meeting = [group for group in groups if group[0] & fields]
        groups = [group for group in groups if not group[0] & fields]
        joined = fields.union(*(group[0] for group in meeting))
        groups.append((joined, [*(item for group in meeting for item in group[1]), term]))
    return [members for _, members in groups]


def sum_of(terms: Sequence[Term]) -> Field:
    """One record for a sum of terms."""
    call = Call(
        _weighted_sum, "weighted_sum", tuple(t.record for t in terms), {"factors": [t.factor for t in terms]}, ""
    )
    fields = [term.record for term in terms if isinstance(term.record, Field)]
    return Field(Layout((), ()), _never, united(fields), call=call, inputs=tuple(fields))


def _weighted_sum(*numbers: Tensor, factors: Sequence[float]) -> Tensor:
    return torch.stack([number.reshape(()) * factor for number, factor in zip(numbers, factors, strict=True)]).sum()


def _never(item: Field) -> Any:
    raise AssertionError("the sum of a loss has no node")
