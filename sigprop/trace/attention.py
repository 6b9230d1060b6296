"""The attention op of the interpreter: weights replayed from their sources, values by their kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sigprop.theory import Dense, Evidence, Gradient, Signal, Status
from sigprop.theory.ops.base import ParameterState
from sigprop.trace.ensemble import Ensemble, root_of
from sigprop.trace.layout import BATCH, CHANNEL, KEY, Layout
from sigprop.trace.record import Field
from sigprop.trace.replay import DTYPE, Replay, balanced_replicas, parts_of_sources
from sigprop.trace.reverse import ReplayedOp, Reverse, generator_of
from sigprop.trace.thinning import Thinning, ThinReplay, possible_thinning

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
MOST_REPLICAS = 16


@dataclass(eq=False)
class ReplayedAttention(ReplayedOp):
    """`o = A v`: the weights `A` are replayed from their sources at the true head width, `v` enters by its kernel.

    Forward   `K_o = E[A K_v A^T]`
    Backward  `G_v = E[A^T G_o A]`; the sources of `A` get the gradient of `A` against drawn `g v^T`, by autograd

    `order` counts the attentions of the model: for the first ones more heads are drawn, since the error of one layer
    weighs less the more layers there are. `single`: one network, with the heads that it has.
    """

    weight: Field
    value: Field
    out: Layout
    seed: int
    order: int = 1
    single: bool = False
    _reverse: Reverse | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.parts = parts_of_sources(self.weight)
        heads = math.prod(a.size for d in self.weight.layout.dims for a in d if a.role == CHANNEL)
        balanced = max(balanced_replicas(source.node) for source in self.sources)
        self.group = balanced if balanced <= MOST_REPLICAS and not self.single else 1
        rounds = math.ceil(HEADS * min(1.0, (FIRST / self.order) ** 2) / heads)
        self._most_heads = heads if self.single else min(rounds, MOST_REPLICAS) * min(heads, AT_ONCE)
        few = AT_ONCE if self.group == 1 else math.ceil(FEWEST / self.group)
        self._thinning = None if self.single else self._possible_thinning(few)
        self._arrange()

    def _possible_thinning(self, wanted: int) -> Thinning | None:
        call = self.weight.call
        if call is None or call.name != "attention_weights":
            return None
        query, key = call.args[:2]
        return possible_thinning(query.layout, key.layout, wanted)

    def _arrange(self) -> None:
        layout = self.weight.layout if self._thinning is None else self._thinning.layout(self.weight.layout)
        flat = [axis for dim in layout.dims for axis in dim]
        query = [a for a in flat if a.is_position]
        heads = [a for a in flat if a.role == CHANNEL]
        keys = [a for a in flat if a.role == KEY]
        self._sizes = [a.size for a in flat]
        self._places = [flat.index(a) for a in (*heads, *query, *keys)]
        self.heads = math.prod(a.size for a in heads)
        self._shape = (self.heads, math.prod(a.size for a in query), math.prod(a.size for a in keys))
        self._whole = layout.shape
        self._rows, self._columns = _attended(layout, self.value.layout, self.out)

    def _replicas(self, heads: float) -> int:
        """Replicas, in whole groups, that draw so many heads."""
        return self.group * math.ceil(heads / (self.group * self.heads))

    def _draws(self, replicas: int, gradients: bool = False) -> Iterator[tuple[Replay, Tensor]]:
        """Replays and their attention weights, in groups whose fluctuations balance."""
        ensemble = None
        for replica in range(replicas):
            if replica % self.group == 0:
                ensemble = Ensemble(self.group, generator_of(self.seed, 2 * replica))
            settings = (generator_of(self.seed, 2 * replica + 1), gradients, ensemble, replica % self.group)
            yield self._drawn(*settings, [part for parts in self.parts.values() for part in parts])

    def _drawn(self, *settings: Any) -> tuple[Replay, Tensor]:
        """One replay; where heads cannot be left out, all are drawn."""
        try:
            replay = Replay(*settings) if self._thinning is None else ThinReplay(self._thinning, *settings)
            return replay, replay(self.weight)
        except RuntimeError:
            if self._thinning is None:
                raise
            self._thinning = None
            self._arrange()
            return self._drawn(*settings)

    def _matrix(self, values: Tensor) -> Tensor:
        """Attention weights as `[head, output position, value position]`."""
        blocks = values.reshape(self._sizes).permute(self._places).reshape(self._shape)
        if self._columns is None:
            return blocks
        full = blocks.new_zeros(self.heads, self.out.positions, self.value.layout.positions)
        full[:, self._rows[:, None], self._columns] = blocks
        return full

    def _entries(self, matrix: Tensor) -> Tensor:
        """The inverse of `_matrix`."""
        blocks = matrix if self._columns is None else matrix[:, self._rows[:, None], self._columns]
        ordered = [self._sizes[place] for place in self._places]
        inverse = torch.argsort(torch.tensor(self._places)).tolist()
        return blocks.reshape(ordered).permute(inverse).reshape(self._whole)

    def _value_root(self, replay: Replay) -> Tensor:
        """`R` with `R R^T` the kernel of the values in one initialization."""
        return torch.cat((replay.root(self.value.node), self.value.node.signal.mean[:, None]), 1)

    def forward(self, *inputs: Signal) -> Signal:
        value, energies = inputs[-1], []
        kernel, mean = 0.0, 0.0
        for replay, output in self._draws(self._replicas(self._most_heads)):
            matrix, root = self._matrix(output), self._value_root(replay)
            half = matrix @ (root @ root.T).to(DTYPE)
            kernel = kernel + (half @ matrix.mT).mean(0).double()
            mean = mean + matrix.mean(0).double() @ value.mean
            energies.append((half * matrix).sum((1, 2)))
            if self._are_precise(energies):
                break
        replicas = len(energies)
        assert isinstance(kernel, Tensor)
        assert isinstance(mean, Tensor)
        evidence = Evidence(Status.SAMPLED, "attention heads sampled from the token kernel")
        for x in inputs:
            evidence = x.evidence.join(evidence)
        values = (kernel + kernel.mT) / (2 * replicas)
        return Signal(Dense(values), mean / replicas, self.out.channels, evidence=evidence)

    def _are_precise(self, energies: list[Tensor]) -> bool:
        """Whether the heads drawn so far, averaged over groups of replicas, estimate their mean energy well enough."""
        if len(energies) % self.group or len(energies) * self.heads < 4 * self.group:
            return False
        balanced = torch.stack(energies).unflatten(0, (-1, self.group)).mean(1)
        return float(balanced.std() / balanced.mean()) <= PRECISE * balanced.numel() ** 0.5

    def _run(self, gradient: Gradient) -> tuple[Reverse, Tensor]:
        reverse, to_value = Reverse(self.parts), 0.0
        kernel, root = gradient.kernel.values.to(DTYPE), root_of(gradient.kernel.values).to(DTYPE)
        replicas = self._replicas(self._most_heads)
        for replay, output in self._draws(replicas, gradients=True):
            matrix = self._matrix(output.detach())
            to_value = to_value + (matrix.mT @ kernel @ matrix).mean(0).double() / replicas
            if output.requires_grad:
                pairs = self._pairs(root, self._value_root(replay).to(DTYPE), replay.generator)
                reverse.add(replay, output, self._entries(pairs))
        assert isinstance(to_value, Tensor)
        reverse.average(replicas)
        return reverse, to_value * (self.out.channels / self.value.layout.channels)

    def _pairs(self, gradient: Tensor, value: Tensor, generator: torch.Generator) -> Tensor:
        """Draws of `g_t . v_t'` for every head, from the roots of the two kernels.

        Only their second moments matter. Each entry of the noise has mean square 1 over the heads, not only on average,
        which leaves these moments as they are and makes their estimate steadier.
        """
        noise = torch.randn(self.heads, gradient.shape[1], value.shape[1], generator=generator, dtype=DTYPE)
        noise = noise / noise.square().mean(0).sqrt().clamp_min(torch.finfo(DTYPE).tiny)
        return gradient @ noise @ value.T * self.value.layout.shape[-1] ** 0.5

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        self._reverse, self._to_value = self._run(gradient)
        return self._reverse.states()

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient | None, ...]:
        assert self._reverse is not None
        evidence = gradient.evidence.join(output.evidence)
        found = [None if k is None else Gradient(Dense(k), evidence=evidence) for k in self._reverse.kernels]
        return (*found, Gradient(Dense(self._to_value), evidence=evidence))


def _attended(weight: Layout, value: Layout, out: Layout) -> tuple[Tensor, Tensor | None]:
    """Output position of every query row and value position of every key column; None when they are all in order.

    Dimensions before the last two are shared by weights, values and output.
    """
    queries = out.index().flatten()
    flat = [axis for dim in weight.dims for axis in dim if axis.is_position]
    if not any(axis.role == BATCH or axis.size > 1 for dim in weight.dims[:-2] for axis in dim if axis.is_position):
        straight = torch.arange(value.positions)
        keys = value.index().flatten()
        if torch.equal(queries, torch.arange(out.positions)) and torch.equal(keys, straight):
            return queries, None
        return queries, keys[None, :].expand(len(queries), -1)
    shared = math.prod(axis.size for dim in weight.dims[:-2] for axis in dim if axis.is_position)
    index = value.index()
    keys = index.expand(*[max(a, b) for a, b in zip(index.shape, _position_shape(weight, value), strict=True)])
    keys = keys.reshape(shared, -1)
    per_query = len(queries) // shared
    assert flat
    return queries, keys.repeat_interleave(per_query, 0)


def _position_shape(weight: Layout, value: Layout) -> list[int]:
    """Position sizes of the shared dimensions, then those of the value's own."""

    def positions(layout: Layout) -> list[int]:
        return [math.prod(a.size for a in dim if a.is_position) for dim in layout.dims]

    return positions(weight)[:-2] + positions(value)[-2:]
