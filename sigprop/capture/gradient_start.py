"""Where the gradient of a loss starts: in closed form, or drawn.

Closed forms are the cross-entropy of logits against classes and the mean square against fixed numbers, with any
factor. Whatever else a loss is made of is run on drawn outputs (see `sampled_loss`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.layout import Layout, Misaligned, as_constant, concrete_rows
from sigprop.capture.record import Call, Field, Record, Source, no_state, united
from sigprop.capture.rules.views import viewed
from sigprop.capture.sampled_loss import sampled_start
from sigprop.errors import InputError
from sigprop.graph.evaluate import Evaluation, Start
from sigprop.graph.tied import TiedLogits, contact_of
from sigprop.theory import Dense, Gradient, Signal, Status
from sigprop.theory.drawing import drawn_rows, root_of
from sigprop.theory.ops.loss import shared_probability
from sigprop.theory.states import AlongSignal, Directions

PASSING = frozenset(
    ("view", "reshape", "squeeze", "flatten", "to", "float", "double", "clone", "contiguous", "mean", "sum")
)
PRODUCTS = frozenset(("matmul", "mm", "bmm", "einsum"))
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
    return Field(Layout((), ()), no_state, united(fields), call=call, inputs=tuple(fields))


def _weighted_sum(*numbers: Tensor, factors: Sequence[float]) -> Tensor:
    return torch.stack([number.reshape(()) * factor for number, factor in zip(numbers, factors, strict=True)]).sum()


LARGE = 2.0
"""Variance of the logits from which on their softmax is drawn."""
DRAWN = 1 << 24
"""Logits whose softmax is taken, half of them negatives: the sum of the gradient's kernel is known to 1 % then."""
AT_ONCE = 1 << 20
"""Of them at once."""
ROUNDING = 1e-13
"""Square of `p - y` below which a token is certain of its label and has no gradient."""


def loss_start(states: Evaluation, loss: Record) -> Start:
    """The gradient of a traced number."""
    start = Start()
    for terms in grouped(terms_of(loss)):
        found = _closed(states, terms[0]) if len(terms) == 1 else None
        if found is not None:
            item, gradient = found
            start.seeds.append((item.node, _times(gradient, terms[0].factor)))
        else:
            drawn = sampled_start(states, sum_of(terms))
            start.seeds += drawn.seeds
            start.nodes += drawn.nodes
            start.weights |= drawn.weights
            start.passed |= drawn.passed
            start.evidence = start.evidence.join(drawn.evidence)
    return start


def _times(gradient: Gradient, number: float) -> Gradient:
    if number == 1.0:
        return gradient
    along = AlongSignal(gradient.along_signal.slope * number, gradient.along_signal.rest * number)
    return replace(gradient, kernel=gradient.kernel.scale(number**2), along_signal=along)


def _closed(states: Evaluation, term: Term) -> tuple[Field, Gradient] | None:
    call = term.record.call
    kinds = {"cross_entropy": _cross_entropy, "nll_loss": _negative_log_likelihood, "mse_loss": _mse}
    if call is None or call.name not in kinds or term.record.output is not None:
        return None
    try:
        return kinds[call.name](states, *call.args, **call.kwargs)
    except Misaligned:
        return None


def _cross_entropy(
    states: Evaluation,
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> tuple[Field, Gradient] | None:
    """`G[t,t'] = (1/(V N^2)) (E sum_v p_tv p_t'v - 2/V + [y_t = y_t'])` over the positions that count.

    Its slope along the logits is the divergence `sum_v dp_v / dl_v = 1 - E sum_v p_v^2`, divided by `V N`.
    """
    plain = weight is None and size_average is None and reduce is None and label_smoothing == 0.0
    if not plain or reduction not in ("mean", "sum") or not isinstance(input, Field) or not isinstance(target, Tensor):
        return None
    place = 0 if len(input.shape) == 1 else 1
    if target.is_floating_point() or input.layout.channels != input.shape[place] or _are_unlike(input):
        return None
    labels = _per_position(input, target, place)
    counted = (labels != ignore_index).double()
    seen, classes = labels[labels != ignore_index], input.shape[place]
    if seen.numel() and not 0 <= int(seen.min()) <= int(seen.max()) < classes:
        raise InputError(f"labels go from {int(seen.min())} to {int(seen.max())}, and there are {classes} classes")
    number = counted.sum() if reduction == "mean" else torch.ones(())
    return input, _softmax_gradient(states, input, labels, counted, classes, float(number.clamp_min(1.0)))


def _are_unlike(logits: Field) -> bool:
    """Logits of several tensors side by side, as one of a pair and those of a queue: the first is not as others are."""
    item = logits
    while item.beside is None and not item.is_source and len(item.fields) == 1:
        item = item.fields[0]
    return item.beside is not None


def _are_products(logits: Field) -> bool:
    """Logits, or terms of them, that are products of two tensors: classes are tokens, not outputs of weights. The
    gradient is zero in sum over classes, and what tokens have in common receives nothing."""
    waiting = [logits]
    while waiting:
        item = waiting.pop()
        if item.made_by in PRODUCTS and len(item.fields) > 1:
            return True
        if not item.weights or item.made_by in SUMS:
            waiting += item.fields
    return False


def _per_position(logits: Field, target: Tensor, place: int) -> Tensor:
    """The target of each row of the kernel."""
    shape = list(logits.shape)
    del shape[place]
    rows = (
        logits.layout.index().select(place, 0).flatten() if len(logits.shape) > 1 else torch.zeros(1, dtype=torch.long)
    )
    labels = torch.empty(logits.layout.positions, dtype=torch.long)
    labels[rows] = target.reshape(shape).flatten()
    return labels


def _softmax_gradient(
    states: Evaluation, logits: Field, labels: Tensor, counted: Tensor, classes: int, number: float
) -> Gradient:
    signal, contact = states.signal(logits.node), contact_of(states, logits.node)
    if float(signal.covariance.diagonal.max()) > LARGE:
        generator = torch.Generator().manual_seed(states.graph.loss_seed)
        shared, target, slope, along = _drawn(signal.covariance.values, labels, classes, contact, generator)
    else:
        shared = shared_probability(signal.covariance, classes).values
        target = torch.full_like(shared, 1.0 / classes)
        along = torch.zeros_like(shared)
        if contact is not None:
            shared, target, own = contact.overlaps(labels, shared, classes)
            along = contact.along(labels, own)
        slope = 1.0 - shared.diagonal()
    same = (labels[:, None] == labels).double()
    values = shared - target - target.T + same
    counted = counted * (values.diagonal() > ROUNDING)
    values = values * counted[:, None] * counted
    gradient = Gradient(
        Dense(values / (classes * number**2)),
        evidence=signal.evidence,
        along_signal=AlongSignal(slope * counted / (classes * number), along * counted / (classes * number)),
    )
    if _are_products(logits):
        gradient = gradient.note(
            Status.ASSUMED, "softmax over products of tokens: what classes have in common is not followed"
        )
    if contact is not None and contact.bent:
        gradient = gradient.note(Status.ASSUMED, "slope of the soft-cap at the own logit of a tied head not followed")
    if contact is not None and contact.are_labels(torch.where(counted > 0, labels, -1)):
        gradient = gradient.note(
            Status.ASSUMED, "tokens are their own labels in a tied head: pairs of them not followed"
        )
    return gradient.note(Status.FITTED, "softmax overlap of the logits")


def _drawn(
    kernel: Tensor, labels: Tensor, classes: int, contact: TiedLogits | None, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Large logits, where the softmax is held by few classes: drawn `E p p^T`, `E p_t(y_t')`, slope and rest.

    Each draw is used with both signs: large logits of one are small ones of the other.
    """
    if contact is not None:
        kernel = kernel - (contact.ids[:, None] == contact.ids) * contact.logit[:, None] * contact.logit / classes
    tokens, seen = torch.arange(len(kernel)), labels.clamp_min(0)
    at_once = max(1, AT_ONCE // (classes * len(kernel)))
    rounds = 2 * math.ceil(max(4, DRAWN // (classes * len(kernel))) / at_once / 2)
    shared, target, along = torch.zeros_like(kernel), torch.zeros_like(kernel), torch.zeros_like(kernel)
    roots = root_of(kernel).expand(at_once, -1, -1)
    drawn = torch.empty(0)
    for number in range(rounds):
        drawn = drawn_rows(roots, classes, generator) if number % 2 == 0 else -drawn
        logits = drawn if contact is None else drawn.clone()
        if contact is not None:
            own = logits[:, tokens, contact.ids] * (contact.spread / contact.others).sqrt() + contact.logit
            logits[:, tokens, contact.ids] = own.to(logits.dtype)
        p = logits.softmax(-1)
        shared += (p @ p.mT).mean(0).double() / rounds
        target += p[..., seen].mean(0).double() / rounds
        along += (logits @ p.mT - logits[..., seen]).mean(0).double() / rounds
    slope = 1.0 - shared.diagonal()
    return shared, target, slope, along - kernel * slope


def _negative_log_likelihood(
    states: Evaluation, input: Any, *args: Any, **kwargs: Any
) -> tuple[Field, Gradient] | None:
    """The negative log-likelihood of a log-softmax is the cross-entropy of its logits."""
    seen = input
    while isinstance(seen, Field) and seen.call is not None and seen.made_by != "log_softmax" and seen.inputs:
        below: Any = seen.inputs[0]
        if seen.root is None and seen.layout.channels != below.layout.channels:
            return None
        seen = below
    made = seen.call if isinstance(seen, Field) else None
    if made is None or made.name != "log_softmax" or not _over_classes(made):
        return None
    logits = made.args[0]
    if logits.shape != input.shape:
        logits = viewed(logits, logits.layout.reshaped(input.shape), made)
    return _cross_entropy(states, logits, *args, **kwargs)


def _over_classes(call: Call) -> bool:
    """Whether a log-softmax is over the last dimension."""
    logits, dim = call.args[0], call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else None)
    return isinstance(logits, Field) and dim is not None and dim % len(logits.shape) == len(logits.shape) - 1


def _is_bare(item: Field) -> bool:
    """Made by a loss, which only records: its dimensions have no roles."""
    return not item.layout.order and item.sources != (Source(item),) and item.call is not None and item.root is None


def _mse(
    states: Evaluation,
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    weight: Any = None,
) -> tuple[Field, Gradient] | None:
    """`G = (2/n)^2 (K - m y^T - y m^T + y y^T)` with `n` the number of entries; along the signal `2/n`."""
    if not isinstance(input, Field) or not isinstance(target, Tensor) or tuple(target.shape) != tuple(input.shape):
        return None
    if _is_bare(input):
        return None
    if size_average is not None or reduce is not None or weight is not None or reduction not in ("mean", "sum"):
        return None
    signal: Signal = states.signal(input.node)
    rows = concrete_rows(target, input.layout)
    cross = signal.mean[:, None] * rows.mean(1)
    values = signal.kernel.values - cross - cross.T + rows @ rows.T / rows.shape[1]
    slope = 2.0 / (input.layout.positions * input.layout.channels if reduction == "mean" else 1)
    along = AlongSignal(torch.full_like(signal.mean, slope), torch.zeros_like(values))
    response = signal.kernel.diagonal.sum() / values.diagonal().sum().clamp_min(1e-300)
    directions = Directions(response=response)
    return input, Gradient(Dense(values * slope**2), directions, along, evidence=signal.evidence)
