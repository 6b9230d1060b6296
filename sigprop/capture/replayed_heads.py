"""Attention weights replayed from their sources at the true head width: draws for `DrawnAttention`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.ensemble import (
    APART,
    Ensemble,
    balanced_replicas,
    drawn_behind,
    fewest_entries,
    parts_of_sources,
    same_calls,
    sites_between,
)
from sigprop.capture.layout import CHANNEL, KEY, Layout
from sigprop.capture.record import Field
from sigprop.capture.replay import FEW, Replay, Reverse, Thinning, ThinReplay
from sigprop.graph.evaluate import Evaluation
from sigprop.graph.graph import Node
from sigprop.theory.ops.attention import DrawnAttention
from sigprop.theory.ops.attention.drawn import sequences_apart
from sigprop.theory.ops.base import Op

HEADS = 64
"""Heads that are drawn at most for the first attentions of a model."""
FIRST = 12
"""How many attentions are first; for later ones fewer heads are drawn, as one over the square of their number."""
FEWEST = 12
"""Heads that are drawn at least."""
AT_ONCE = 16
"""Heads that one replica draws at most, where they are alike."""
PRECISE = 0.005
"""Relative standard error of the output's variance at which no more heads are drawn."""
STEADY = 0.05
"""Relative standard error of the gradients of queries, keys and weights inside at which no more heads are drawn."""
STREAM_ALONE = 0.1, 6
"""The same, and the fewest replicas that tell it, where weights are not asked for: scores send the stream little of its
gradient. That of GPT-2 is within 0.1 % of what many draws give, with queries and keys of 5 times its std within 9 %
(with `STEADY` 8 %)."""
SHALLOW = 20
"""Attentions of a model up to which `HEADS` are drawn backward at most; in deeper ones fewer, by the square."""
NARROW = 3
"""How many times more they are for attentions of at most `AT_ONCE` heads."""
MOST_REPLICAS = 16
KEPT = 1 << 19
"""Entries of attention weights that are kept at most, for one replay, from the forward to the backward pass."""


_TAKING = Lock()


class ReplayedHeads:
    """The weights of one attention, drawn as often as needed.

    `order` counts the attentions of the model: for the first ones more heads are drawn, since the error of one layer
    weighs less the more layers there are; `total()` is their number, known after the forward pass. Backward, heads are
    drawn until the weight gradients of their sources are steady. `single`: one network, with the heads that it has.
    """

    def __init__(
        self,
        weight: Field,
        value: Field,
        out: Layout,
        seed: int,
        order: int = 1,
        single: bool = False,
        thin: bool = True,
        total: Callable[[], int] = lambda: 1,
    ):
        self.weight, self.value, self.out, self.seed = weight, value, out, seed
        self.single, self.thin, self.total, self.order = single, thin, total, order
        self.width, self.value_width, self.head_width = out.channels, value.layout.channels, value.layout.shape[-1]
        self.parts = parts_of_sources(weight)
        self._all_heads = math.prod(a.size for d in weight.layout.dims for a in d if a.role == CHANNEL)
        self.states: Evaluation | None = None
        self._kept: dict[int, tuple[Replay, Tensor]] = {}
        self._settled: int | None = None
        self.received: Reverse | None = None
        self._roots: tuple[Any, ...] = ()

    def bound(self, states: Evaluation) -> ReplayedHeads:
        """Heads that were kept are taken over if they were drawn from the same states."""
        if states is self.states:
            return self
        made = copy(self)
        made.states, made.received, made._settled = states, None, None
        with _TAKING:
            made._kept, self._kept = ({}, self._kept) if states.changed else (self._kept, {})
        made._prepare(states)
        return made

    def _prepare(self, states: Evaluation) -> None:
        heads, single = self._all_heads, self.single
        balanced = max(balanced_replicas(states, source.node) for source in self.parts)
        self.group = balanced if balanced <= MOST_REPLICAS and not single else 1
        rounds = math.ceil(HEADS * min(1.0, (FIRST / self.order) ** 2) / heads)
        self._most_heads = heads if single else min(rounds, MOST_REPLICAS) * min(heads, AT_ONCE)
        self._thin_out()

    def _thin_out(self) -> None:
        few = AT_ONCE if self.group == 1 else math.ceil(FEWEST / self.group)
        self._thinning = self._possible_thinning(few, self._all_heads) if self.thin and not self.single else None
        self._arrange()

    def _possible_thinning(self, wanted: int, heads: int) -> Thinning | None:
        """Heads of queries and keys thinned alike, down to about `wanted`, and replicas joined where heads come first
        in all that is drawn; None when neither is possible."""
        call = self.weight.call
        if call is None or call.name != "attention_weights":
            return None
        mine, theirs = (dims[-3] if len(dims) > 2 else () for dims in (item.layout.dims for item in call.args[:2]))
        if len(mine) != 1 or len(theirs) > 1 or any(axis.is_position for axis in (*mine, *theirs)):
            return None
        size = mine[0].size
        common = math.gcd(size, *(axis.size for axis in theirs))
        factors = [n for n in range(1, common + 1) if common % n == 0 and size // n >= wanted]
        made = Thinning([*mine, *theirs], max(factors, default=1), self.group if size == heads else 1)
        if any(made.place(part.layout) is None for parts in self.parts.values() for part in parts):
            made = made.single
        return made if made.factor > 1 or made.replicas > 1 else None

    def _arrange(self) -> None:
        layout = self.weight.layout if self._thinning is None else self._thinning.layout(self.weight.layout)
        flat = [axis for dim in layout.dims for axis in dim]
        query = [a for a in flat if a.is_position]
        heads = [a for a in flat if a.role == CHANNEL]
        keys = [a for a in flat if a.role == KEY]
        self._sizes = [a.size for a in flat]
        self._places = [flat.index(a) for a in (*heads, *query, *keys)]
        self.heads = math.prod(a.size for a in heads)
        self.joined = 1 if self._thinning is None else self._thinning.replicas
        self.replicas = self._replicas(self._most_heads)
        self._shape = (self.heads, math.prod(a.size for a in query), math.prod(a.size for a in keys))
        self._whole = layout.shape
        self._rows, self._columns = attended(layout, self.value.layout, self.out)
        self.sequences = sequences_apart(self._rows, self._columns, self.value.layout.positions)
        self._blocks = self.sequences.count

    @property
    def sites_between(self) -> list[Field]:
        """Sites that a replay passes."""
        return sites_between(self.weight, self.parts)

    @property
    def fewest_entries(self) -> float:
        return fewest_entries(self.weight, self.parts)

    @property
    def leaves_out(self) -> bool:
        """Whether a part of the heads is drawn for all."""
        return self._thinning is not None and self._thinning.factor > 1

    def _replicas(self, heads: float) -> int:
        """Replicas, in whole groups, that draw so many heads."""
        return self.group * math.ceil(heads / (self.group * self.heads // self.joined))

    def _backward_replicas(self) -> int:
        if self.single:
            return self.replicas
        most = HEADS * (NARROW if self._all_heads <= AT_ONCE else 1)
        return self._replicas(max(FEWEST, most * min(1.0, (SHALLOW / self.total()) ** 2)))

    def forward(self) -> Iterator[ReplayedDraw]:
        self._kept.clear()
        self._settled = None
        self.replicas = self._replicas(self._most_heads)
        return self._draws(keep=True)

    def are_precise(self, energies: Tensor) -> bool:
        """Whether the heads drawn so far, averaged over groups of replicas, estimate their mean energy well enough."""
        if len(energies) % self.group or energies.numel() < 4 * self.group:
            return False
        balanced = energies.unflatten(0, (-1, self.group)).mean(1)
        return float(balanced.std() / balanced.mean()) <= PRECISE * balanced.numel() ** 0.5

    def backward(self) -> Iterator[ReplayedDraw]:
        """Replays until what is received is steady; `replicas` is then their number.

        Another gradient through the same states is sent through the same replays, so that both can be compared.
        """
        self.received = Reverse(self.parts, self.sites_between)
        self.replicas = self._settled or self._backward_replicas()
        assert self.states is not None
        wanted = (STEADY, FEW) if self.states.asks_weights else STREAM_ALONE
        for number, drawn in enumerate(self._draws(), 1):
            yield drawn
            replicas = number * self.joined
            if self._settled is None and replicas % self.group == 0 and self.received.is_steady(*wanted):
                self.replicas = replicas
                break
        self._settled = self.replicas
        self._kept.clear()

    def scale_received(self, factor: float) -> None:
        assert self.received is not None
        self.received.scale(factor / self.replicas)

    def _draws(self, keep: bool = False) -> Iterator[ReplayedDraw]:
        """Replays and their attention weights, in groups whose fluctuations balance; those kept are not drawn again."""
        kept = next(iter(self._kept.values()), None)  # of what the forward pass has kept expectations are known
        ensemble, replica, first = None if kept is None else kept[0].ensemble, 0, self.seed * APART
        assert self.states is not None
        while replica < self.replicas:
            if replica % self.group == 0:
                generator = torch.Generator().manual_seed(first + 2 * replica)
                ensemble = self._ensemble(ensemble, generator)
            found = self._kept.pop(replica, None)
            if found is None:
                generator = torch.Generator().manual_seed(first + 2 * replica + 1)
                settings = (generator, True, ensemble, replica % self.group)
                drawn = [part for parts in self.parts.values() for part in parts]
                found = self._drawn(self.states, *settings, drawn)
            if keep and found[1].numel() <= KEPT:
                found[0].forget(self.sites_between)
                self._kept[replica] = found
            yield ReplayedDraw(self, *found)
            replica += self.joined

    def _ensemble(self, before: Ensemble | None, generator: torch.Generator) -> Ensemble:
        assert self.states is not None
        return before.again(generator) if before else Ensemble(self.states, self.group, generator, *self._roots)

    # -- with the same weights at another visit

    def alike(self, other: ReplayedHeads) -> bool:
        """Whether both are made by the same functions, with the same weights, of what is drawn."""
        mine, theirs = ([part for parts in item.parts.values() for part in parts] for item in (self, other))
        return self._widths == other._widths and same_calls(self.weight, other.weight, mine, theirs)

    @property
    def _widths(self) -> tuple[int, ...]:
        return self.width, self.value_width, self.head_width, self._all_heads

    def drawn_nodes(self) -> list[Node]:
        assert self.states is not None
        return [drawn_behind(self.states, item.node) for item in (*self.parts, self.value)]

    def together(self, other: ReplayedHeads, roots: Sequence[Any]) -> Iterator[tuple[ReplayedDraw, ReplayedDraw]]:
        """Draws of both from the same random numbers."""
        assert self.states is not None
        both, seed, group, most = (copy(self), copy(other)), self.seed, self.group, min(AT_ONCE, self._most_heads)
        channels = min(self.states.signal(node).independent_channels for own in roots for node in own)
        for made, own in zip(both, roots, strict=True):
            made.seed, made.group, made._most_heads, made._kept, made._roots = seed, group, most, {}, (own, channels)
            made._thin_out()
        return zip(*(made._draws() for made in both), strict=True)

    def between(self, mine: list[Tensor], theirs: list[Tensor], replay: Replay) -> list[Tensor]:
        """The kernel between gradients that arrive at each source, summed over replicas."""
        numbers, found = iter(range(len(mine))), []
        for source, parts in self.parts.items():
            kernels = [
                (mine[n] @ theirs[n].mT).double().sum(0)
                * (replay.heads_left_out(part) / source.layout.channels)
                * (part.layout.channels / mine[n].shape[-1])
                for part, n in zip(parts, numbers, strict=False)
            ]
            found.append(torch.stack(kernels).sum(0))
        return found

    def _drawn(self, *settings: Any) -> tuple[Replay, Tensor]:
        """One replay; where heads cannot be left out, as where a bias has all of them, all are drawn."""
        try:
            replay = Replay(*settings) if self._thinning is None else ThinReplay(self._thinning, *settings)
            weights = replay(self.weight)
            if self._thinning is None or weights.numel() == math.prod(self._whole):
                return replay, weights
        except RuntimeError:
            if self._thinning is None:
                raise
        self._thinning = None
        self._arrange()
        return self._drawn(*settings)

    def matrix(self, values: Tensor) -> Tensor:
        """Attention weights as `[replica, head, sequence, output position, value position]`, one sequence if it does
        not tell them apart."""
        full = values.detach().reshape(self._sizes).permute(self._places).reshape(self._shape)
        if self._columns is not None and self._blocks == 1:
            blocks, full = full, full.new_zeros(self.heads, self.out.positions, self.value.layout.positions)
            full[:, self._rows[:, None], self._columns] = blocks
        return full.unflatten(1, (self._blocks, -1)).unflatten(0, (self.joined, -1))

    def entries(self, matrix: Tensor) -> Tensor:
        """The inverse of `matrix`."""
        blocks = matrix.flatten(2, 3).flatten(0, 1)
        if self._columns is not None and self._blocks == 1:
            blocks = blocks[:, self._rows[:, None], self._columns]
        ordered = [self._sizes[place] for place in self._places]
        inverse = torch.argsort(torch.tensor(self._places)).tolist()
        return blocks.reshape(ordered).permute(inverse).reshape(self._whole)


def heads_of(op: Op) -> ReplayedHeads | None:
    """The heads of an attention."""
    draws = op.draws if isinstance(op, DrawnAttention) else None
    return draws if isinstance(draws, ReplayedHeads) else None


def heads_in(states: Evaluation) -> list[ReplayedHeads]:
    """Those of all attentions, drawn from these states."""
    attentions = [states.op(node) for node in states.nodes if isinstance(node.op, DrawnAttention)]
    return [heads for op in attentions if (heads := heads_of(op)) is not None]


@dataclass
class ReplayedDraw:
    """One replay, of all that `heads` joins, and the attention weights that it gives."""

    heads: ReplayedHeads
    replay: Replay
    weights: Tensor

    def __post_init__(self) -> None:
        self.matrix, self.generator = self.heads.matrix(self.weights), self.replay.generator
        self.has_sources = self.weights.requires_grad

    def values(self) -> Tensor:
        order = self.heads.sequences.values
        whole = self.replay.ensemble.with_mean(self.heads.value.node, self.replay.replicas)
        return whole if order is None else whole[:, order]

    def arrived(self, gradient: Tensor) -> list[Tensor]:
        """What arrives at all that is drawn, `[replica, position, channel]`."""
        found, _, _ = self.replay.arrivals(self.weights, self.heads.parts, (), self.heads.entries(gradient))
        drawn = [part for parts in self.heads.parts.values() for part in parts]
        return [self.replay.to_rows(part, found[part]) for part in drawn]

    def send(self, gradient: Tensor) -> None:
        assert self.heads.received is not None
        self.heads.received.add(self.replay, self.weights, self.heads.entries(gradient))


def attended(weight: Layout, value: Layout, out: Layout) -> tuple[Tensor, Tensor | None]:
    """Output position of every query row and value position of every key column; None when they are all in order.

    Dimensions before the last two are shared by weights, values and output.
    """
    queries, index = out.index().flatten(), value.index()
    shared = math.prod(axis.size for dim in weight.dims[:-2] for axis in dim if axis.is_position)
    keys = index.expand(torch.broadcast_shapes(index.shape, _position_shape(weight, value))).reshape(shared, -1)
    straight = (torch.equal(rows, torch.arange(len(rows))) for rows in (queries, keys[0]))
    if shared == 1 and all(straight):
        return queries, None
    return queries, keys.repeat_interleave(len(queries) // shared, 0)


def _position_shape(weight: Layout, value: Layout) -> list[int]:
    """Position sizes of the shared dimensions, then those of the value's own."""

    def positions(layout: Layout) -> list[int]:
        return [math.prod(a.size for a in dim if a.is_position) for dim in layout.dims]

    return positions(weight)[:-2] + positions(value)[-2:]
