"""Ops evaluated on replayed draws: attention, and whatever has no rule of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sigprop.theory import Dense, Evidence, Gradient, Node, Signal, Status
from sigprop.theory.ops.base import Op, ParameterState
from sigprop.trace.layout import BATCH, CHANNEL, KEY, Layout
from sigprop.trace.record import Field, Weight
from sigprop.trace.replay import DTYPE, Replay, root, rows_from

HEADS = 64
ENTRIES = 2048
LARGEST = 1 << 23


def _generator(seed: int, replica: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 1009 + replica)


def _gradient_rows(gradient: Gradient, channels: int, generator: torch.Generator) -> Tensor:
    values = gradient.kernel.values
    noise = torch.randn(len(values), channels, generator=generator, dtype=DTYPE)
    return root(values).to(DTYPE) @ noise


def _kernel(rows: Tensor) -> Tensor:
    rows = rows.double()
    return rows @ rows.T / rows.shape[1]


class _Reverse:
    """Gradients at the sources and the weights of a replay, averaged over replicas.

    `corrections`: what the gradient of a linear source's weight gains because its input and its gradient fluctuate
    together, per entry: the average of `sum G (K - E K)` over replicas.
    """

    def __init__(self, sources: tuple[Field, ...]):
        self.sources = sources
        self.kernels: list[Tensor | None] = [None] * len(sources)
        self.weights: dict[Weight, float] = {}
        self.corrections: dict[Node, float] = {}

    def add(self, replay: Replay, output: Tensor, gradient: Tensor, replicas: int) -> None:
        weights = list(replay.weights)
        inputs = [replay(source) for source in self.sources] + [replay.weights[w] for w in weights]
        found = torch.autograd.grad(output, inputs, gradient, allow_unused=True)
        for place, (source, value) in enumerate(zip(self.sources, found, strict=False)):
            if value is not None:
                kernel = _kernel(source.layout.to_rows(value)) / replicas
                before = self.kernels[place]
                self.kernels[place] = kernel if before is None else before + kernel
                shared = replay.fluctuation(source.node)
                if shared is not None:
                    change = float((kernel * shared).sum())
                    self.corrections[source.node] = self.corrections.get(source.node, 0.0) + change
        for weight, value in zip(weights, found[len(self.sources) :], strict=True):
            if value is not None:
                total = float(value.double().square().sum()) / replicas
                self.weights[weight] = self.weights.get(weight, 0.0) + total

    def states(self) -> list[ParameterState]:
        return [
            ParameterState(str(number), weight.shape, "", 0.0, torch.tensor(total / math.prod(weight.shape)))
            for number, (weight, total) in enumerate(self.weights.items())
        ]


@dataclass(eq=False)
class Sampled(Op):
    """Any function of its sources: Monte Carlo on the function itself, forward and, by autograd, backward."""

    target: Field
    seed: int
    reason: str
    _reverse: _Reverse | None = field(default=None, repr=False)

    @property
    def sources(self) -> tuple[Field, ...]:
        return tuple(dict.fromkeys(source.field for source in self.target.sources))

    @property
    def replicas(self) -> int:
        size = sum(math.prod(source.shape) for source in self.sources) + math.prod(self.target.shape)
        wanted = math.ceil(ENTRIES / max(self.target.layout.channels, 1))
        return max(2, min(64, wanted, LARGEST // size))

    @property
    def weights(self) -> list[Weight]:
        return list(self._reverse.weights) if self._reverse is not None else []

    @property
    def corrections(self) -> dict[Node, float]:
        return self._reverse.corrections if self._reverse is not None else {}

    def forward(self, *inputs: Signal) -> Signal:
        layout = self.target.layout
        kernel = torch.zeros(layout.positions, layout.positions, dtype=torch.float64)
        mean = torch.zeros(layout.positions, dtype=torch.float64)
        for replica in range(self.replicas):
            rows = layout.to_rows(Replay(_generator(self.seed, replica))(self.target)).double()
            kernel += _kernel(rows) / self.replicas
            mean += rows.mean(1) / self.replicas
        evidence = Evidence(Status.SAMPLED, self.reason)
        for x in inputs:
            evidence = x.evidence.join(evidence)
        return Signal(Dense(kernel), mean, layout.channels, evidence=evidence)

    def _run(self, gradient: Gradient) -> _Reverse:
        if self._reverse is None:
            self._reverse = _Reverse(self.sources)
            for replica in range(self.replicas):
                generator = _generator(self.seed, replica)
                replay = Replay(generator, gradients=True)
                output = replay(self.target)
                if output.requires_grad:
                    rows = _gradient_rows(gradient, self.target.layout.channels, generator)
                    self._reverse.add(replay, output, self.target.layout.from_rows(rows), self.replicas)
        return self._reverse

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        return self._run(gradient).states()

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient | None, ...]:
        evidence = gradient.evidence.join(output.evidence)
        kernels = self._run(gradient).kernels
        return tuple(None if k is None else Gradient(Dense(k), evidence=evidence) for k in kernels)


@dataclass(eq=False)
class ReplayedAttention(Op):
    """`o = A v`: the weights `A` are replayed from their sources at the true head width, `v` enters by its kernel.

    Forward   `K_o = E[A K_v A^T]`
    Backward  `G_v = E[A^T G_o A]`; the sources of `A` get the gradient of `A` against drawn `g v^T`, by autograd
    """

    weight: Field
    value: Field
    out: Layout
    seed: int
    _reverse: _Reverse | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        layout = self.weight.layout
        flat = [axis for dim in layout.dims for axis in dim]
        query = [a for a in flat if a.is_position]
        heads = [a for a in flat if a.role == CHANNEL]
        keys = [a for a in flat if a.role == KEY]
        self._sizes = [a.size for a in flat]
        self._places = [flat.index(a) for a in (*heads, *query, *keys)]
        self.heads = math.prod(a.size for a in heads)
        self._shape = (self.heads, math.prod(a.size for a in query), math.prod(a.size for a in keys))
        self._rows, self._columns = _attended(layout, self.value.layout, self.out)

    @property
    def sources(self) -> tuple[Field, ...]:
        return tuple(dict.fromkeys(source.field for source in self.weight.sources))

    @property
    def replicas(self) -> int:
        return max(1, min(16, math.ceil(HEADS / self.heads)))

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
        return blocks.reshape(ordered).permute(inverse).reshape(self.weight.layout.shape)

    def forward(self, *inputs: Signal) -> Signal:
        value = inputs[-1]
        kernel, mean = 0.0, 0.0
        for replica in range(self.replicas):
            replay = Replay(_generator(self.seed, replica))
            matrix = self._matrix(replay(self.weight))
            half = matrix @ replay.kernel(self.value.node).to(DTYPE)
            kernel = kernel + (half @ matrix.mT).mean(0).double() / self.replicas
            mean = mean + matrix.mean(0).double() @ value.mean / self.replicas
        assert isinstance(kernel, Tensor) and isinstance(mean, Tensor)
        evidence = Evidence(Status.SAMPLED, "attention heads sampled from the token kernel")
        for x in inputs:
            evidence = x.evidence.join(evidence)
        return Signal(Dense((kernel + kernel.mT) / 2), mean, self.out.channels, evidence=evidence)

    def _run(self, gradient: Gradient, value: Signal) -> tuple[_Reverse, Tensor]:
        reverse, to_value = _Reverse(self.sources), 0.0
        width = max(1, self.out.channels // self.heads)
        for replica in range(self.replicas):
            generator = _generator(self.seed, replica)
            replay = Replay(generator, gradients=True)
            output = replay(self.weight)
            matrix = self._matrix(output.detach())
            half = matrix.mT @ gradient.kernel.values.to(DTYPE)
            to_value = to_value + (half @ matrix).mean(0).double() / self.replicas
            if output.requires_grad:
                drawn = _gradient_rows(gradient, self.heads * width, generator).unflatten(1, (self.heads, width))
                against = rows_from(
                    replay.kernel(self.value.node), value.mean, self.heads * width, generator
                ).unflatten(1, (self.heads, width))
                pairs = drawn.transpose(0, 1) @ against.permute(1, 2, 0)
                reverse.add(replay, output, self._entries(pairs), self.replicas)
        assert isinstance(to_value, Tensor)
        return reverse, to_value * (self.out.channels / self.value.layout.channels)

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
