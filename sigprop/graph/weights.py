"""Calls of torch functions, and tensors that are made of parameters alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from sigprop.distributions import Distribution

ONE_NUMBER = "parameters that make one number for a whole tensor"


@dataclass(eq=False, repr=False)
class Call:
    """One traced call of a torch function; traced tensors among the arguments are records."""

    function: Callable[..., Any]
    name: str
    args: tuple
    kwargs: dict[str, Any]
    module: str
    in_place: bool = False

    @cached_property
    def _records(self) -> list[Record]:
        return [item for item in leaves((self.args, self.kwargs)) if isinstance(item, Record)]

    def records(self) -> list[Record]:
        """The records among the arguments."""
        return self._records

    def on(self, value: Any, record: Record) -> Any:
        """What the function gives with a value in place of one of its arguments."""
        args, kwargs = mapped((self.args, self.kwargs), lambda item: value if item is record else item)
        return self.function(*args, **kwargs)


class Record:
    """Base of the two kinds."""

    call: Call | None
    output: int | None
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    requires_grad: bool = True
    without_gradient: bool = False
    """Made where gradients were off."""

    def __repr__(self) -> str:
        made_by = self.call.name if self.call is not None else "-"
        return f"{type(self).__name__}({self.shape}, {made_by})"


Parents = tuple[tuple["Weight", float], ...]


@dataclass(eq=False, repr=False)
class Weight(Record):
    """A tensor made of parameters only: its entries are independent draws of one distribution.

    `parents` are the weights it was made from with the share of this tensor's gradient energy that each receives;
    `derive` gives distribution and parents anew from the laws of an evaluation. `zero_rows`: rows of a table that
    are set to zero.
    """

    shape: tuple[int, ...]
    distribution: Distribution
    name: str = ""
    parents: Parents = ()
    call: Call | None = None
    output: int | None = None
    zero_rows: tuple[int, ...] = ()
    derive: Callable[[Any], tuple[Distribution, Parents]] | None = None

    def roots(self) -> list[tuple[str, float]]:
        """Names of the parameters behind, each with its share."""
        if self.name:
            return [(self.name, 1.0)]
        return [(name, share * inner) for parent, share in self.parents for name, inner in parent.roots()]


_NESTS = (tuple, list, dict)


def leaves(value: Any) -> list[Any]:
    """Everything in nested tuples, lists and dicts, in order."""
    found: list[Any] = []
    _gather(value, found)
    return found


def _gather(value: Any, found: list[Any]) -> None:
    if not isinstance(value, _NESTS):
        found.append(value)
        return
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, _NESTS):
            _gather(item, found)
        else:
            found.append(item)


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """The same nesting with every leaf mapped."""
    if not isinstance(value, _NESTS) or isinstance(value, torch.Size):
        return function(value)
    if isinstance(value, dict):
        return {key: mapped(item, function) for key, item in value.items()}
    made = [mapped(item, function) if isinstance(item, _NESTS) else function(item) for item in value]
    return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
