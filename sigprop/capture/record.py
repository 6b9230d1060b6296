"""What the interpreter knows of one traced tensor.

Two kinds. A `Field` depends on the input: it has a layout and a node of the graph, made on demand. A `Weight` is a
function of parameters alone. Each remembers the call that made it, so that it can be replayed on drawn numbers. A loss
is a field like any other.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor
from torch.overrides import resolve_name

from sigprop.capture.layout import Axis, Layout
from sigprop.errors import NoRule, SigpropError, UnsupportedError
from sigprop.graph.graph import ONE_NUMBER, Call, Node, Record, Weight, leaves, mapped, on_meta, result_shape

__all__ = [
    "ONE_NUMBER",
    "Call",
    "Field",
    "Function",
    "Record",
    "Skipped",
    "Source",
    "Statistic",
    "Uneven",
    "Weight",
    "few_entries",
    "fields_made",
    "independent",
    "leaves",
    "mapped",
    "no_state",
    "on_meta",
    "result_shape",
    "united",
]

Function = Callable[[Tensor], Tensor]
FEW = 4
FEW_ENTRIES = 32
"""Entries of a norm, up to which what follows it is drawn: a sphere of so few dimensions is no Gaussian."""
LONG_TAILS = 8
"""Entries of a norm, up to which the gradients through many of them have tails that carry much of their mean."""


def few_entries(count: int) -> int:
    """The count where it is few, else zero."""
    return count if count <= FEW_ENTRIES else 0


class _Numbers(threading.local):
    """Numbers of fields in the order they are made, in each thread by itself."""

    def __init__(self) -> None:
        self.next = itertools.count().__next__


_NUMBERS = _Numbers()


@dataclass(frozen=True)
class Source:
    """A tensor with fresh randomness that others are functions of; `ranges` are the channel slices taken of it."""

    field: Field
    ranges: tuple[tuple[Axis, int, int], ...] = ()

    def disjoint(self, other: Source) -> bool:
        if self.field is not other.field:
            return True
        return any(
            axis is axis2 and (stop <= start2 or stop2 <= start)
            for axis, start, stop in self.ranges
            for axis2, start2, stop2 in other.ranges
        )


@dataclass(eq=False, repr=False)
class Field(Record):
    """A tensor that depends on the input.

    `make` builds the node when it is first asked for, given the field. `root` and `function`: this tensor is
    `function(root)`, entry by entry; `slope` is set when that function is multiplication by a number. `sources` is None
    for a tensor that is its own source, empty for a function of weights alone. `transparent`: every entry is a function
    of the same entry of its source. `statistic` marks an average over the channels of a function of another field.
    `centred`: the field that this is less its average over channels.
    `before_hook`: the field whose gradient a hook rescales. `of_few`: normalized over so many entries, where they are
    so few that it is far from Gaussian: two numbers of a batch become plus and minus one. `is_odd`: a sum with a weight
    that is wide and not normal. `beside`: the dimension along which its inputs stand side by side as channels.
    `is_drawn`: functions and norms see that it is not Gaussian, and are drawn: sums of few products of weights of their
    own, attention of a scale that varies. `leaves_out`: times fixed numbers that are zero for some of the channels of a
    position only. `step`: what it is of its inputs, entry by entry, where they are functions
    of its root as well.
    """

    layout: Layout
    make: Callable[[Field], Node]
    sources: tuple[Source, ...] = None  # type: ignore[assignment]
    root: Field | None = None
    function: Function | None = None
    slope: float | None = None
    statistic: Statistic | None = None
    centred: Field | None = None
    before_hook: Field | None = None
    transparent: bool = False
    of_few: int = 0
    is_odd: bool = False
    beside: int | None = None
    is_drawn: bool = False
    leaves_out: bool = False
    call: Call | None = None
    output: int | None = None
    inputs: tuple[Record, ...] = ()
    is_site: bool = False
    step: Callable[..., Tensor] | None = None

    def __post_init__(self) -> None:
        self.shape = self.layout.shape
        self.number = _NUMBERS.next()
        if self.sources is None:
            self.sources = (Source(self),)
        self.is_source = len(self.sources) == 1 and self.sources[0].field is self
        self.base = self if self.root is None else self.root

    @property
    def made_by(self) -> str:
        """The name of the call that made it; empty where there is none."""
        return "" if self.call is None else self.call.name

    @property
    def fields(self) -> list[Field]:
        return [item for item in self.inputs if isinstance(item, Field)]

    @property
    def weights(self) -> list[Weight]:
        return [item for item in self.inputs if isinstance(item, Weight)]

    @cached_property
    def node(self) -> Node:
        return self.make(self)

    @property
    def is_made(self) -> bool:
        """Whether its node was asked for."""
        return "node" in vars(self)

    @cached_property
    def is_curved(self) -> bool:
        """Some nonlinear function of entries lies between this tensor and its sources: it is not Gaussian."""
        if self.is_source:
            return False
        own = self.is_odd or bool(self.of_few) or (self.function is not None and self.slope is None)
        return own or self.has_gaps or any(isinstance(item, Field) and item.is_curved for item in self.inputs)

    @cached_property
    def has_gaps(self) -> bool:
        """Fixed numbers left out some channels between this tensor and its sources: they are not alike."""
        if self.is_source:
            return False
        return self.leaves_out or any(isinstance(item, Field) and item.has_gaps for item in self.inputs)

    @cached_property
    def is_choice(self) -> bool:
        """Made by a choice, as masks and shares of it: its zeros are where others' are not, so that its channels are
        not alike."""
        if self.is_source or self.call is None:
            return False
        picks = self.call.name in ("gather", "take_along_dim", "getitem", "index_select")
        given = self.call.records[: 1 if picks else None]
        return not self.dtype.is_floating_point or any(isinstance(item, Field) and item.is_choice for item in given)

    def seal(self) -> None:
        """Called on sites. A scaled tensor becomes its own base, so that every gradient passes through its node."""
        self.is_site = True
        if self.slope is not None:
            _ = self.node
            self.root, self.function, self.slope, self.base = None, None, None, self

    def entrywise(self, make: Callable[[Field], Node], function: Function | None, call: Call, **known: Any) -> Field:
        """Another tensor with each entry a function of the same entry of this one, and of its base."""
        known = {"layout": self.layout, "transparent": self.transparent or self.is_source, "inputs": (self,)} | known
        return Field(make=make, sources=self.sources, root=self.base, function=function, call=call, **known)

    def apply(self, x: Tensor) -> Tensor:
        return x if self.function is None else self.function(x)

    def sites_behind(self) -> list[Field]:
        """Sites that are functions of its root, and that it is a function of."""
        found: dict[Field, None] = {}
        waiting = [self]
        while waiting:
            new = [item for item in waiting.pop().inputs if isinstance(item, Field) and item not in found]
            new = [item for item in new if item.base is self.base and item.function is not None]
            found.update(dict.fromkeys(new))
            waiting += new
        return [item for item in found if item.is_site]

    def of_known(self, known: dict[Field, Tensor], x: Tensor) -> Tensor:
        """Its numbers where some of what it is a function of has these, and the root has `x`."""
        if self not in known:
            above = [item for item in self.inputs if isinstance(item, Field)]
            if self.step is not None:
                known[self] = self.step(*(item.of_known(known, x) for item in above))
            elif self.function is not None and above and above[0].function is self.function:  # a view
                known[self] = above[0].of_known(known, x)
            else:
                known[self] = self.apply(x)
        return known[self]


@dataclass(frozen=True)
class Statistic:
    """`average over channels of function(field)`, one number per position, times `count` if it was a sum."""

    field: Field
    function: Function
    count: float = 1.0


class Uneven(Exception):
    """Blocks that looked alike are not, or what is between them is read by others: all must be followed."""


class Skipped(Record):
    """What a block that is not followed hands to the next one; nothing else may read it."""

    call = None
    output = None

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape


def no_state(item: Field) -> Node:
    """The node of what is only replayed: a complex tensor, a sum of losses."""
    raise UnsupportedError(f"a tensor that {item.made_by} makes has no state of its own")


def fields_made() -> int:
    """A number that is less than that of every field made from now on in this thread."""
    return _NUMBERS.next()


def independent(first: Field, second: Field) -> bool:
    """No randomness in common."""
    return all(a.disjoint(b) for a in first.sources for b in second.sources)


def united(fields: Iterable[Field]) -> tuple[Source, ...]:
    """All sources of several fields."""
    found = dict.fromkeys(source for item in fields for source in item.sources)
    count = Counter(source.field for source in found)
    return tuple(dict.fromkeys(s if count[s.field] <= FEW else Source(s.field) for s in found))


def made_on_meta(call: Call) -> Any:
    """The same; that the function itself refuses such tensors is a refusal of its call."""
    try:
        return on_meta(call)
    except SigpropError:
        raise
    except Exception as error:
        raise no_rule(call, f"it cannot be run without values: {type(error).__name__}: {error}") from error


def no_rule(call: Call, reason: str) -> NoRule:
    """The refusal of a call, with what can be done."""
    function = resolve_name(call.function) or call.name
    given = [item for item in call.given if isinstance(item, (Record, Tensor))]
    shapes = ", ".join(f"{type(item).__name__.lower()} {tuple(item.shape)}" for item in given)
    return NoRule(
        f"no rule follows {function} in {call.module!r} on {shapes}: {str(reason).splitlines()[0]}. "
        f"Register one with @sigprop.capture.rule({call.name!r}), a function of (capture, call, *args, **kwargs) that "
        "returns a sigprop.capture.Field; docs/do/rules.md has one that runs."
    )
