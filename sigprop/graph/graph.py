"""The graph of a network: which op makes which tensor, of which others, with which weights. It holds no state.

What signals and gradients are under given distributions of the weights is computed in one place (`evaluate`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sigprop.distributions import Distribution
from sigprop.theory.ops.base import Op
from sigprop.theory.states import Signal

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
    given: list[Any] = field(init=False)
    """All that is among the arguments, however nested."""
    records: list[Record] = field(init=False)
    """The records of these."""

    def __post_init__(self) -> None:
        self.given = leaves((self.args, self.kwargs))
        self.records = [item for item in self.given if isinstance(item, Record)]

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


RECORD = "_sigprop_record"
"""Where a tensor that stands for a record has it."""


def record_of(value: Any) -> Record | None:
    """The record of a traced tensor; none for anything else."""
    return getattr(value, RECORD, None)


def traced(*values: Any) -> list[tuple[Tensor, Record]]:
    """The traced tensors among the values, however nested, with their records."""
    tensors = (item for item in leaves(values) if isinstance(item, Tensor))
    return [(item, record) for item in tensors if (record := record_of(item)) is not None]


class Parent(NamedTuple):
    """A weight that another one is made of, and how much of the energy of its gradient it gets: of one that points
    anywhere, and of one that is along the entries of each output, times a random sign."""

    weight: Weight
    share: float
    along: float


Parents = tuple[Parent, ...]
Entries = tuple[Any, ...]
"""A parameter, and what is taken of it."""
_TURNS = frozenset(["t", "transpose", "permute", "swapaxes", "movedim"])
_TAKES_A_PART = frozenset(
    ["getitem", "narrow", "select", "split", "split_with_sizes", "chunk", "unbind", "iter", "index_select"]
)


@dataclass(eq=False, repr=False)
class Weight(Record):
    """A tensor made of parameters only: its entries are independent draws of one distribution.

    `parents` are the weights it was made from;
    `derive` gives distribution and parents anew from those of an evaluation. `zero_rows`: rows of a table that
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

    @cached_property
    def roots(self) -> list[tuple[str, float]]:
        """Names of the parameters behind, each with its share."""
        if self.name:
            return [(self.name, 1.0)]
        return [(name, item.share * inner) for item in self.parents for name, inner in item.weight.roots]

    @cached_property
    def knows_rows(self) -> bool:
        """Whether it matters to those behind how much of its gradient is along its rows, as to a gain of each row."""
        if self.call is None or self.call.name in _TURNS:
            return False
        return any(
            item.along != item.share or (item.weight.shape == self.shape and item.weight.knows_rows)
            for item in self.parents
        )

    @cached_property
    def entries(self) -> tuple[Entries, ...]:
        """The entries of parameters that it is made of; two slices of one parameter have none in common."""
        if self.name:
            return ((self.name,),)
        taken: tuple[Any, ...] = ()
        if self.call is not None and self.call.name in _TAKES_A_PART:
            numbers = [repr(item) for item in self.call.given if not isinstance(item, Record)]
            taken = (self.call.name, *numbers, self.output)
        return tuple((*inner, *taken) for parent, *_ in self.parents for inner in parent.entries)


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


def replaced(value: Any, found: Mapping[int, Any]) -> Any:
    """The same nesting with others in place of some objects, given by `id`."""
    return mapped(value, lambda item: found.get(id(item), item))


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """The same nesting with every leaf mapped."""
    if not isinstance(value, _NESTS) or isinstance(value, torch.Size):
        return function(value)
    if isinstance(value, dict):
        return {key: mapped(item, function) for key, item in value.items()}
    made = [mapped(item, function) if isinstance(item, _NESTS) else function(item) for item in value]
    return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)


# -- The shapes of a call's results, as torch itself gives them on meta tensors


def result_shape(call: Call) -> tuple[int, ...]:
    """The shape of the one tensor that a call makes."""
    return tuple(on_meta(call).shape)


def on_meta(call: Call) -> Any:
    """What a call gives, as tensors without numbers."""

    def meta(item: Any) -> Any:
        if isinstance(item, Record):
            return torch.empty(item.shape, dtype=item.dtype, device="meta")
        if isinstance(item, Tensor) and item.is_floating_point():
            return item.to("meta")
        return item

    args, kwargs = mapped((call.args, call.kwargs), meta)
    try:
        return call.function(*args, **kwargs)
    except (RuntimeError, NotImplementedError):
        args, kwargs = mapped((args, kwargs), _single)
        return call.function(*args, **kwargs)


def _single(item: Any) -> Any:
    """On meta, in float32 where it is floating: a shape does not depend on precision, mixed ones would be refused."""
    if not isinstance(item, Tensor):
        return item
    return item.to("meta", torch.float32) if item.is_floating_point() else item.to("meta")


Bound = Mapping[str, tuple[Weight, int]]
"""For each parameter of an op the weight behind it, with its number of entries."""
Doubt = str | Callable[[Any, Signal], str]
"""What an op does not follow of this use of it: words, or a function of an evaluation and the state that gives them."""


@dataclass(frozen=True, eq=False, repr=False)
class Node:
    """One tensor: the op that makes it, of which others.

    `parameters` is the prefix of the names of the op's parameters, where they have no weights of their own.
    """

    op: Op
    inputs: tuple[Node, ...] = ()
    weights: Bound = field(default_factory=dict)
    doubts: tuple[Doubt, ...] = ()
    parameters: str = ""


@dataclass(frozen=True)
class NamedNode:
    """A name that a tensor has in the profile."""

    name: str
    depth: int
    node: Node


class Graph:
    """Nodes in the order they were recorded. Recording appends; what is recorded does not change.

    `lookups`: nodes that are rows of a table, its name and the ids; `origins`: nodes that count as positions of another
    one that they were not made of, and which; the last one counts, and for what was recorded earlier those before.
    `routed`: nodes whose positions were picked by one drawn choice, as tokens of an expert: of how many they were, and
    how many are picked on average for each one that was.
    `loss_seed`: that of outputs that are drawn for a loss, whichever it is.
    """

    def __init__(self, loss_seed: int = 1) -> None:
        self.loss_seed = loss_seed
        self.nodes: list[Node] = []
        self.sites: list[NamedNode] = []
        self.lookups: dict[Node, tuple[str, Tensor]] = {}
        self.origins: dict[Node, dict[Node, Tensor]] = {}
        self.routed: dict[Node, tuple[int, float]] = {}

    def add(self, node: Node) -> Node:
        self.nodes.append(node)
        return node
