"""The attention op of the interpreter: weights replayed from their sources, values by their kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sigprop.theory import Dense, Evidence, Gradient, Node, Signal, Status
from sigprop.theory.ops.base import Op, ParameterState
from sigprop.trace.ensemble import Ensemble, root_of
from sigprop.trace.layout import BATCH, CHANNEL, KEY, Layout
from sigprop.trace.record import Field, Weight
from sigprop.trace.replay import DTYPE, Replay, balanced_replicas, parts_of_sources
from sigprop.trace.reverse import Reverse, generator_of
from sigprop.trace.thinning import Thinning, ThinReplay, possible_thinning

HEADS = 64
"""Heads that are drawn in all for the first attentions of a model."""
FIRST = 12
"""How many attentions are first; after them fewer heads are drawn, in proportion."""
FEWEST = 12
"""Heads that are drawn at least."""
AT_ONCE = 16
"""Heads that one replica draws at most, where they are alike."""
MOST_REPLICAS = 16


@dataclass(eq=False)
class ReplayedAttention(Op):
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
        wanted = max(FEWEST, HEADS * min(1.0, FIRST / self.order))
        balanced = max(balanced_replicas(source.node) for source in self.sources)
        self.replicas = 1 if self.single else min(MOST_REPLICAS, max(balanced, math.ceil(wanted / heads)))
        few = min(AT_ONCE, math.ceil(wanted / self.replicas))
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

    def _replay(self, ensemble: Ensemble, replica: int, gradients: bool = False) -> Replay:
        drawn = [part for parts in self.parts.values() for part in parts]
        settings = (generator_of(self.seed, replica + 1), gradients, ensemble, replica, drawn)
        return Replay(*settings) if self._thinning is None else ThinReplay(self._thinning, *settings)

    def _drawn(self, ensemble: Ensemble, replica: int, gradients: bool = False) -> tuple[Replay, Tensor]:
        """A replay and its attention weights; where heads cannot be left out, all are drawn."""
        try:
            replay = self._replay(ensemble, replica, gradients)
            return replay, replay(self.weight)
        except RuntimeError:
            if self._thinning is None:
                raise
            self._thinning = None
            self._arrange()
            return self._drawn(ensemble, replica, gradients)

    def _ensemble(self) -> Ensemble:
        return Ensemble(self.replicas, generator_of(self.seed, 0))

    @property
    def sources(self) -> tuple[Field, ...]:
        return tuple(self.parts)

    @property
    def weights(self) -> list[Weight]:
        return list(self._reverse.weights) if self._reverse is not None else []

    @property
    def corrections(self) -> dict[Node, float]:
        return self._reverse.corrections if self._reverse is not None else {}

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
        value, ensemble = inputs[-1], self._ensemble()
        kernel, mean = 0.0, 0.0
        for replica in range(self.replicas):
            replay, output = self._drawn(ensemble, replica)
            matrix, root = self._matrix(output), self._value_root(replay)
            half = matrix @ (root @ root.T).to(DTYPE)
            kernel = kernel + (half @ matrix.mT).mean(0).double() / self.replicas
            mean = mean + matrix.mean(0).double() @ value.mean / self.replicas
        assert isinstance(kernel, Tensor)
        assert isinstance(mean, Tensor)
        evidence = Evidence(Status.SAMPLED, "attention heads sampled from the token kernel")
        for x in inputs:
            evidence = x.evidence.join(evidence)
        return Signal(Dense((kernel + kernel.mT) / 2), mean, self.out.channels, evidence=evidence)

    def _run(self, gradient: Gradient, value: Signal) -> tuple[Reverse, Tensor]:
        reverse, to_value, ensemble = Reverse(self.parts), 0.0, self._ensemble()
        root = root_of(gradient.kernel.values).to(DTYPE)
        for replica in range(self.replicas):
            replay, output = self._drawn(ensemble, replica, gradients=True)
            matrix = self._matrix(output.detach())
            half = matrix.mT @ gradient.kernel.values.to(DTYPE)
            to_value = to_value + (half @ matrix).mean(0).double() / self.replicas
            if output.requires_grad:
                pairs = self._pairs(root, self._value_root(replay).to(DTYPE), replay.generator)
                reverse.add(replay, output, self._entries(pairs), self.replicas)
        assert isinstance(to_value, Tensor)
        return reverse, to_value * (self.out.channels / self.value.layout.channels)

    def _pairs(self, gradient: Tensor, value: Tensor, generator: torch.Generator) -> Tensor:
        """Draws of `g_t . v_t'` for every head, from the roots of the two kernels.

        Only their second moments matter. Each entry of the noise has mean square 1 over the heads, not only on average,
        which leaves these moments as they are and makes their estimate steadier.
        """
        noise = torch.randn(self.heads, gradient.shape[1], value.shape[1], generator=generator, dtype=DTYPE)
        noise = noise / noise.square().mean(0).sqrt()
        return gradient @ noise @ value.T * self.value.layout.shape[-1] ** 0.5

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        self._reverse, self._to_value = self._run(gradient, inputs[-1])
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
