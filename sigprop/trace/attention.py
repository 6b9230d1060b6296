"""The attention op of the interpreter: weights replayed from their sources, values by their kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from sigprop.theory import Dense, Evidence, Gradient, Signal, Status
from sigprop.theory.carries import TRANSFORMED, Carries, ended
from sigprop.theory.kernels import Kernel
from sigprop.theory.ops.base import ParameterState
from sigprop.theory.parts import AlongSignal, Fluctuation
from sigprop.trace.attention_blocks import attended, between, over_outputs, over_values, sequences_apart
from sigprop.trace.ensemble import Ensemble, root_of
from sigprop.trace.layout import CHANNEL, KEY, Layout
from sigprop.trace.reading import Reading
from sigprop.trace.record import Field
from sigprop.trace.replay import DTYPE, Replay, balanced_replicas, drawn_signs, parts_of_sources
from sigprop.trace.reverse import ReplayedOp, Reverse, generator_of, unit_kernel, unit_slope
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
STEADY = 0.05
"""Relative standard error of the weight gradients of queries and keys at which no more heads are drawn backward."""
SHALLOW = 20
"""Attentions of a model up to which `HEADS` are drawn backward at most; in deeper ones fewer, by the square."""
NARROW = 3
"""How many times more they are for attentions of at most `AT_ONCE` heads."""
MOST_REPLICAS = 16
KEPT = 1 << 19
"""Entries of attention weights that are kept at most, for one replay, from the forward to the backward pass."""


_TAKING = Lock()


@dataclass(eq=False)
class ReplayedAttention(ReplayedOp):
    """`o = A v`: the weights `A` are replayed from their sources at the true head width, `v` enters by its kernel.

    Forward   `K_o = E[A K_v A^T]`
    Backward  `G_v = E[A^T G_o A]`, the slope along the signal likewise
              the sources of `A` get the gradient of `A` against drawn `g v^T`, by autograd

    `order` counts the attentions of the model: for the first ones more heads are drawn, since the error of one layer
    weighs less the more layers there are; `total()` is their number, known after the forward pass. Backward, heads are
    drawn until the weight gradients of their sources are steady. `single`: one network, with the heads that it has.
    """

    carries = Carries(
        fluctuation=TRANSFORMED,
        common=ended("averages over keys, of channels made by independent weights"),
        directions=ended("scores and averages over keys turn the gradient"),
        along_signal=TRANSFORMED,
        through_activation=ended("averages over keys stand between the function and its argument"),
    )

    weight: Field
    value: Field
    out: Layout
    seed: int
    order: int = 1
    single: bool = False
    total: Callable[[], int] = lambda: 1
    _reverse: Reverse | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.parts = parts_of_sources(self.weight)
        heads = self._all_heads = math.prod(a.size for d in self.weight.layout.dims for a in d if a.role == CHANNEL)
        balanced = max(balanced_replicas(source.node) for source in self.sources)
        self.group = balanced if balanced <= MOST_REPLICAS and not self.single else 1
        rounds = math.ceil(HEADS * min(1.0, (FIRST / self.order) ** 2) / heads)
        self._most_heads = heads if self.single else min(rounds, MOST_REPLICAS) * min(heads, AT_ONCE)
        few = AT_ONCE if self.group == 1 else math.ceil(FEWEST / self.group)
        self._thinning = None if self.single else self._possible_thinning(few, heads)
        self._kept: dict[int, tuple[Replay, Tensor]] = {}
        self._settled: int | None = None
        self._arrange()

    def bound(self, reading: Reading) -> ReplayedAttention:
        """Heads that were kept are taken over if they were drawn from the same states."""
        made = super().bound(reading)
        made._settled = None
        with _TAKING:
            made._kept, self._kept = ({}, self._kept) if reading.changed else (self._kept, {})
        return made

    def _possible_thinning(self, wanted: int, heads: int) -> Thinning | None:
        call = self.weight.call
        if call is None or call.name != "attention_weights":
            return None
        query, key = (item.layout for item in call.args[:2])
        drawn = [part.layout for parts in self.parts.values() for part in parts]
        alike = math.prod(axis.size for dim in query.dims[-3:-2] for axis in dim) == heads
        return possible_thinning(query, key, wanted, self.group if alike else 1, drawn)

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
        self._sequences = sequences_apart(self._rows, self._columns, self.value.layout.positions)
        self._blocks = self._sequences.count

    def _replicas(self, heads: float) -> int:
        """Replicas, in whole groups, that draw so many heads."""
        return self.group * math.ceil(heads / (self.group * self.heads // self.joined))

    def _backward_replicas(self) -> int:
        if self.single:
            return self.replicas
        most = HEADS * (NARROW if self._all_heads <= AT_ONCE else 1)
        return self._replicas(max(FEWEST, most * min(1.0, (SHALLOW / self.total()) ** 2)))

    def _steadied(self, reverse: Reverse) -> Iterator[tuple[Replay, Tensor]]:
        """Replays until what `reverse` has received is steady; `replicas` is then their number.

        Another gradient through the same states is sent through the same replays, so that both can be compared.
        """
        self.replicas = self._settled or self._backward_replicas()
        for number, drawn in enumerate(self._draws(), 1):
            yield drawn
            replicas = number * self.joined
            if self._settled is None and replicas % self.group == 0 and reverse.is_steady(STEADY):
                self.replicas = replicas
                break
        self._settled = self.replicas
        self._kept.clear()

    def _draws(self, keep: bool = False) -> Iterator[tuple[Replay, Tensor]]:
        """Replays and their attention weights, in groups whose fluctuations balance; those kept are not drawn again."""
        ensemble, replica = None, 0
        while replica < self.replicas:
            if replica % self.group == 0:
                generator = generator_of(self.seed, 2 * replica)
                ensemble = ensemble.again(generator) if ensemble else Ensemble(self.group, generator, self.reading)
            found = self._kept.pop(replica, None)
            if found is None:
                settings = (generator_of(self.seed, 2 * replica + 1), True, ensemble, replica % self.group)
                drawn = [part for parts in self.parts.values() for part in parts]
                found = self._drawn(*settings, drawn, self.reading)
            if keep and found[1].numel() <= KEPT:
                found[0].forget()
                self._kept[replica] = found
            yield found
            replica += self.joined

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
        """Attention weights as `[replica, head, sequence, output position, value position]`, one sequence if it does
        not tell them apart."""
        full = values.detach().reshape(self._sizes).permute(self._places).reshape(self._shape)
        if self._columns is not None and self._blocks == 1:
            blocks, full = full, full.new_zeros(self.heads, self.out.positions, self.value.layout.positions)
            full[:, self._rows[:, None], self._columns] = blocks
        return full.unflatten(1, (self._blocks, -1)).unflatten(0, (self.joined, -1))

    def _entries(self, matrix: Tensor) -> Tensor:
        """The inverse of `_matrix`."""
        blocks = matrix.flatten(2, 3).flatten(0, 1)
        if self._columns is not None and self._blocks == 1:
            blocks = blocks[:, self._rows[:, None], self._columns]
        ordered = [self._sizes[place] for place in self._places]
        inverse = torch.argsort(torch.tensor(self._places)).tolist()
        return blocks.reshape(ordered).permute(inverse).reshape(self._whole)

    def _value_roots(self, replay: Replay) -> Tensor:
        """For every replica `R` with `R R^T` the kernel of the values in one initialization."""
        roots, mean = replay.roots(self.value.node), self.reading.signal(self.value.node).mean
        whole = torch.cat((roots, mean[:, None].expand(len(roots), -1, -1)), -1).to(DTYPE)
        return whole if self._sequences.values is None else whole[:, self._sequences.values]

    def forward(self, *inputs: Signal) -> Signal:
        value, energies = inputs[-1], []
        kernel, average = 0.0, 0.0
        self._kept.clear()
        self._settled = None
        self.replicas = self._replicas(self._most_heads)
        for replay, output in self._draws(keep=True):
            matrix, roots = self._matrix(output), self._value_roots(replay)
            made, energy = over_values(matrix, roots @ roots.mT)
            kernel = kernel + made.double() / self.heads
            average = average + matrix.mean((0, 1)).double()
            energies.append(energy)
            if self._are_precise(torch.cat(energies)):
                break
        replays = len(energies)
        assert isinstance(kernel, Tensor)
        assert isinstance(average, Tensor)
        evidence = Evidence(Status.SAMPLED, "attention heads sampled from the token kernel")
        for x in inputs:
            evidence = x.evidence.join(evidence)
        kernel, average = (
            self._sequences.outputs_back(kernel),
            self._sequences.back(torch.block_diag(*average / replays)),
        )
        made = Dense((kernel + kernel.mT) / (2 * replays))
        ratio = self.out.channels / value.width
        inherited = value.fluctuation.pair_inherited * in_step(average, value.kernel, made) ** 2
        fluctuation = Fluctuation(pair=value.fluctuation.pair * ratio, pair_inherited=inherited * ratio)
        mean = average @ value.mean
        return self.carries.signal(value, made, mean, self.out.channels, evidence, fluctuation=fluctuation)

    def _are_precise(self, energies: Tensor) -> bool:
        """Whether the heads drawn so far, averaged over groups of replicas, estimate their mean energy well enough."""
        if len(energies) % self.group or energies.numel() < 4 * self.group:
            return False
        balanced = energies.unflatten(0, (-1, self.group)).mean(1)
        return float(balanced.std() / balanced.mean()) <= PRECISE * balanced.numel() ** 0.5

    def _run(self, gradient: Gradient, value: Signal) -> tuple[Reverse, Gradient]:
        reverse, to_value, leaning_back = Reverse(self.parts), 0.0, 0.0
        unit, level = unit_kernel(gradient)
        slope, steep = unit_slope(gradient, value)
        kernel = self._sequences.by_outputs(unit.to(DTYPE))
        slope = None if slope is None else self._sequences.by_outputs(slope)
        root = self._sequences.rows_by_outputs(root_of(unit).to(DTYPE))
        for replay, output in self._steadied(reverse):
            matrix = self._matrix(output)
            to_value = to_value + over_outputs(matrix, kernel).double() / self.heads
            values = self._value_roots(replay) if output.requires_grad else None
            pairs = None if values is None else self._pairs(root, values, replay.generator)
            if slope is not None:
                leaning_back = leaning_back + over_outputs(matrix, slope).double() / self.heads
                if pairs is not None and values is not None:
                    mean = between(matrix, slope, values @ values.mT)
                    pairs = pairs + mean * (self.value.layout.shape[-1] * steep / level**0.5)
            if pairs is not None:
                reverse.add(replay, output, self._entries(pairs))
        assert isinstance(to_value, Tensor)
        to_value = self._sequences.values_back(to_value)
        if isinstance(leaning_back, Tensor):
            leaning_back = self._sequences.values_back(leaning_back)
        reverse.scale(level / self.replicas)
        readers = self.out.channels / self.value.layout.channels
        scale = self.joined / self.replicas * readers
        kernel, leaning = (to_value + to_value.mT) * (scale * level / 2), leaning_back * (scale * steep)
        if readers > 1 and isinstance(leaning, Tensor):  # what heads send to one value along it is in step
            kernel = kernel + (1.0 - 1.0 / readers) * leaning @ value.kernel.values @ leaning.mT
        return reverse, self.carries.gradient(gradient, Dense(kernel), along_signal=AlongSignal(leaning))

    def _pairs(self, gradient: Tensor, values: Tensor, generator: torch.Generator) -> Tensor:
        """Draws of `g_t . v_t'` for every replica, head and sequence, from the roots of the two kernels.

        Only their second moments matter: the noise is one of signs, the steadiest that has the second moments of a
        normal one.
        """
        heads, positions = self.heads // self.joined, gradient.shape[1]
        noise = drawn_signs((self.joined, heads * positions, values.shape[-1]), generator)
        drawn = (noise @ values.mT).unflatten(1, (heads, positions)).unflatten(-1, (self._blocks, -1))
        rows = (gradient * self.value.layout.shape[-1] ** 0.5).unflatten(0, (self._blocks, -1))
        return rows @ drawn.permute(0, 1, 3, 2, 4)

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        self._reverse, self._to_value = self._run(gradient, inputs[-1])
        return self._reverse.states()

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient | None, ...]:
        assert self._reverse is not None
        evidence = gradient.evidence.join(output.evidence)
        found = [None if k is None else self._to_source(gradient, k, evidence) for k in self._reverse.kernels]
        return (*found, replace(self._to_value, evidence=evidence))

    def _to_source(self, gradient: Gradient, kernel: Tensor, evidence: Evidence) -> Gradient:
        """What goes to queries and keys is drawn: it is along nothing that is followed."""
        return self.carries.gradient(gradient, Dense(kernel), evidence, along_signal=AlongSignal())


def in_step(average: Tensor, value: Kernel, made: Kernel) -> Tensor | float:
    """How far `A K A^T` fluctuates in step with `K`, pair by pair; its own relative fluctuation is that of `K`.

    `(tr A K)^2 / (tr K tr A K A^T)`, the kernels about the average token: 1 for `A = 1`, small for averages over many.
    """
    if average.shape[0] != average.shape[1]:
        return 0.0
    overlap = (average * value.centred().values).sum() / len(average)
    size = value.apart() * made.apart()
    return (overlap**2 / size.clamp_min(torch.finfo(overlap.dtype).tiny)).clamp(0.0, 1.0)
