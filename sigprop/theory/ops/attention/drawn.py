"""Attention with drawn weights: whatever a model makes them of, values enter by their kernel.

Weights are `[replica, head, sequence, output position, value position]`, the last two within one sequence. With `A` all
of them as one matrix, which joins positions of one sequence alone:

    over_values    sum A K A^T      the kernel of the output
    over_outputs   sum A^T G A      the gradient of the values
    between        S A K            products of a gradient that is `S y` with the values
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sigprop.theory.drawing import DTYPE, drawn_signs, root_of, unit_kernel, unit_slope
from sigprop.theory.kernels import Dense, Kernel
from sigprop.theory.ops.drawn import DrawnOp, fluctuation_of
from sigprop.theory.ops.gain import ACROSS, FEW_NUMBERS
from sigprop.theory.states import (
    ALL_TRANSFORMED,
    EXACT,
    AlongSignal,
    Evidence,
    Fluctuation,
    Gradient,
    Signal,
    Status,
    ended,
)

EVIDENCE = Evidence(Status.SAMPLED, "attention heads sampled from the token kernel")
VARIED = 0.1
"""`1 - 1/(E n E 1/n)` of the squared norms `n` of a head's output, from which on a norm of it is no norm of Gaussian
numbers."""
FAR = 0.3
"""The same, from which on a gradient across the output is a guess: gates of a row have 0.4 to 0.9, a softmax less."""
SCALED = "attention weights of a scale that varies, under a gradient across the output"


@dataclass(frozen=True)
class Sequences:
    """Parts of a batch, or windows of an image, that attend within themselves: how many, and the positions of outputs
    and of values in their order, one part after the other; None where that is the order of positions.
    """

    count: int = 1
    outputs: Tensor | None = None
    values: Tensor | None = None


def in_sequences(values: Tensor, order: Tensor | None, pairs: bool = True) -> Tensor:
    """Numbers over positions, and over pairs of them where these are the second axis, in the order of sequences."""
    if order is None:
        return values
    return values[order][:, order] if pairs and values.ndim == 2 else values[order]


def placed_back(matrix: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    """A matrix over positions in the order of sequences, in their own order again."""
    if rows is None or columns is None:
        return matrix
    return matrix[torch.argsort(rows)][:, torch.argsort(columns)]


def sequences_apart(rows: Tensor, columns: Tensor | None, positions: int) -> Sequences:
    """The sequences within which rows read columns of their own alone; one where it is not so."""
    if columns is None:
        return Sequences()
    blocks = positions // columns.shape[1] if columns.shape[1] and positions % columns.shape[1] == 0 else 1
    if blocks == 1 or len(rows) % blocks:
        return Sequences()
    each = columns.view(blocks, -1, columns.shape[1])
    values = each[:, 0].flatten()
    apart = torch.equal(values.sort().values, torch.arange(positions)) and torch.equal(
        each, each[:, :1].expand_as(each)
    )
    if not apart or not torch.equal(rows.sort().values, torch.arange(len(rows))):
        return Sequences()
    straight = torch.equal(rows, torch.arange(len(rows))) and torch.equal(values, torch.arange(positions))
    return Sequences(blocks) if straight else Sequences(blocks, rows, values)


def over_values(matrix: Tensor, kernel: Tensor, other: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`sum A K A^T` over replicas and heads, and the diagonal of each, `[replica, head, position]`; sequences attend
    within themselves. The second `A` may be that of another use of the same weights."""
    replicas, heads, blocks, queries, keys = matrix.shape
    rows = matrix.transpose(1, 2).reshape(replicas, blocks, heads * queries, keys)
    half = (rows @ kernel.view(replicas, blocks, keys, -1)).view(replicas, blocks, heads, queries, blocks, keys)
    own = half.diagonal(dim1=1, dim2=4).permute(0, 1, 4, 2, 3)
    left = half.permute(4, 1, 3, 0, 2, 5).reshape(blocks, blocks * queries, -1)
    right = (matrix if other is None else other).permute(2, 0, 1, 4, 3).reshape(blocks, -1, queries)
    return (left @ right).transpose(0, 1).reshape(blocks * queries, -1), (own * matrix).sum(-1).flatten(2)


def over_outputs(matrix: Tensor, kernel: Tensor, other: Tensor | None = None) -> Tensor:
    """`sum A^T G A` over replicas and heads; a diagonal `G` may be a vector. The second `A` may be another one."""
    replicas, heads, blocks, queries, keys = matrix.shape
    if kernel.ndim == 1:
        scaled = (matrix * kernel.view(blocks, queries, 1)).transpose(1, 2).transpose(0, 1).reshape(blocks, -1, keys)
        return torch.block_diag(*scaled.mT @ matrix.permute(2, 0, 1, 3, 4).reshape(blocks, -1, keys))
    columns = (matrix if other is None else other).permute(2, 3, 0, 1, 4).reshape(blocks, queries, -1)
    half = kernel.view(-1, blocks, queries).transpose(0, 1) @ columns
    half = half.view(blocks, blocks, queries, replicas * heads, keys).permute(1, 3, 2, 0, 4)
    rows = matrix.permute(2, 4, 0, 1, 3).reshape(blocks, keys, -1)
    return (rows @ half.reshape(blocks, replicas * heads * queries, -1)).view(blocks * keys, -1)


def between(matrix: Tensor, slope: Tensor, kernel: Tensor) -> Tensor:
    """`S A K` within each sequence, for every replica and head; a diagonal `S` may be a vector."""
    replicas, heads, blocks, queries, keys = matrix.shape
    if slope.ndim == 1:
        own = kernel.view(replicas, blocks, keys, blocks, keys).diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
        return (matrix * slope.view(blocks, queries, 1)) @ own[:, None]
    columns = kernel.view(replicas, 1, blocks, keys, -1)
    half = (matrix @ columns).view(replicas, heads, blocks * queries, blocks, keys)
    return slope.view(blocks, queries, -1) @ half.permute(0, 1, 3, 2, 4)


@dataclass(eq=False)
class DrawnAttention(DrawnOp):
    """`o = A v`: the weights `A` of each head are drawn with whatever they depend on, `v` enters by its kernel.

    Forward   `K_o = E[A K_v A^T]`, mean `E[A] m`
    Backward  `G_v = E[A^T G_o A]`, the slope along the signal likewise; the sources of `A` get the gradient of `A`
              against drawn `g v^T`, of which a gradient `S o` makes `S A K_v` on average

    The inputs are the sources of `A`, then `v`. Where several heads read one value, what they send to it along it
    is correlated. Exact up to the error of the draws, with what finite width makes of them: queries, keys and values of
    one input fluctuate with it.

    The fluctuation of pairs goes on by how far `A K A^T` is correlated with `K`. Norms fluctuate as those of Gaussian
    channels and as `diag A K A^T` of a head does, which is little where rows of `A` sum to one. All directions end.

    `draws` draw heads, as many as are needed: forward until they `are_precise` by the energies so far, backward until
    what the sources have received is steady. Each draw has some heads of some networks,
    `matrix[replica, head, sequence, output, value]`, and `values()`, for each network `R` with `R R^T` the kernel of
    its values, sequence by sequence. `width`, `value_width`, `head_width`: channels of the output, of the values, and
    of one head of these; `fewest_entries` are those of the smallest weight inside.
    """

    carries = ALL_TRANSFORMED.but(
        common=ended("averages over keys, of channels made by independent weights"),
        directions=ended("scores and averages over keys turn the gradient"),
        through_activation=ended("averages over keys stand between the function and its argument"),
    )

    draws: Any
    varied: float = 0.0

    def forward(self, *inputs: Signal) -> Signal:
        value, energies = inputs[-1], []
        kernel, average = torch.zeros(()), torch.zeros(())
        for draw in self.draws.forward():
            matrix, roots = draw.matrix, draw.values()
            made, energy = over_values(matrix, roots @ roots.mT)
            kernel = kernel + made.double() / (matrix.shape[0] * matrix.shape[1])
            average = average + matrix.mean((0, 1)).double()
            energies.append(energy)
            if self.draws.are_precise(torch.cat(energies).sum(-1)):
                break
        self.varied = float(fluctuation_of(torch.cat(energies).flatten(0, 1).double(), 1))
        evidence, sequences, count = EVIDENCE, self.draws.sequences, len(energies)
        for x in inputs:
            evidence = x.evidence.join(evidence)
        outputs, values = sequences.outputs, sequences.values
        kernel = placed_back(kernel, outputs, outputs)
        average = placed_back(torch.block_diag(*average / count), outputs, values)
        made, ratio = Dense((kernel + kernel.mT) / (2 * count)), self.draws.width / value.width
        inherited = value.fluctuation.pair_inherited * correlation(average, value.kernel, made) ** 2
        pair = value.fluctuation.pair * ratio
        fluctuation = Fluctuation(self.norm_of_groups(1), pair, inherited * ratio)
        return self.carries.signal(
            value, made, average @ value.mean, self.draws.width, evidence, fluctuation=fluctuation
        )

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient | None, ...]:
        """What goes to the sources is drawn: it is along nothing that is followed."""
        received, to_value = self.sent(gradient, *inputs)
        assert to_value is not None
        self._sent = None
        evidence = gradient.evidence.join(output.evidence).join(self.gradient_evidence(gradient))
        nothing = AlongSignal()
        found: list[Gradient | None] = []
        for number, kernel in enumerate(received.kernels):
            known = evidence.join(self.drawn_evidence(number))
            made = (
                None if kernel is None else self.carries.gradient(gradient, Dense(kernel), known, along_signal=nothing)
            )
            found.append(made)
        return (*found, replace(to_value, evidence=evidence))

    def norm_of_groups(self, groups: int) -> float:
        size = self.draws.width // groups
        of_heads = self.varied / max(1, size // self.draws.head_width)
        return size * (1.0 - (1.0 - of_heads) * (1.0 - 2.0 / size))

    def gradient_evidence(self, gradient: Gradient) -> Evidence:
        """What scales a row of weights moves the output along itself, where a norm above lets nothing through."""
        across = float(gradient.directions.radial) < ACROSS
        return Evidence(Status.ASSUMED, SCALED) if self.varied > FAR and across else EXACT

    def of_visits(self, other: DrawnAttention, roots: Sequence[Any], mean: Tensor, theirs: Tensor) -> Tensor:
        """The covariance of two outputs made with the same weights, from the roots of all that is drawn together."""
        kernel, heads, sequences = torch.zeros(()), 0, self.draws.sequences
        for one, two in self.draws.together(other.draws, roots):
            made, _ = over_values(one.matrix, one.values() @ two.values().mT, two.matrix)
            kernel, heads = kernel + made.double(), heads + one.matrix.shape[0] * one.matrix.shape[1]
        return placed_back(kernel / heads, sequences.outputs, sequences.outputs) - mean[:, None] * theirs

    def gradients_of_visits(self, other: DrawnAttention, roots: Sequence[Any], gradient: Tensor) -> list[Tensor]:
        """What gradients at the inputs have in common, from the kernel of both gradients, one after another."""
        sequences, level = self.draws.sequences, float(gradient.diagonal().mean())
        count = len(gradient) // 2
        kernel = in_sequences((gradient[:count, count:] / level).to(DTYPE), sequences.outputs)
        both = root_of(gradient / level).to(DTYPE).split(count)
        mine, theirs = (in_sequences(item, sequences.outputs, pairs=False) for item in both)
        to_value, heads, replicas = torch.zeros(()), 0, 0
        found = [torch.zeros(()) for _ in self.draws.parts]
        for one, two in self.draws.together(other.draws, roots):
            to_value = to_value + over_outputs(one.matrix, kernel, two.matrix).double()
            heads, replicas = heads + one.matrix.shape[0] * one.matrix.shape[1], replicas + one.matrix.shape[0]
            sent = (
                one.arrived(self._pairs(one.matrix, mine, one.values(), one.generator)),
                two.arrived(other._pairs(two.matrix, theirs, two.values(), two.generator)),
            )
            found = [a + b for a, b in zip(found, self.draws.between(*sent, one.replay), strict=True)]
        to_value = placed_back(to_value, sequences.values, sequences.values) * (
            self.draws.width / self.draws.value_width
        )
        return [*(item * (level / replicas) for item in found), to_value * (level / heads)]

    def _send(self, gradient: Gradient, *inputs: Signal) -> Gradient:
        """Draws until what the sources have received is steady; returns the gradient of the values."""
        value = inputs[-1]
        sequences, to_value, leaning_back, count = self.draws.sequences, 0.0, 0.0, 0
        unit, level = unit_kernel(gradient)
        slope, steep = unit_slope(gradient, value)
        kernel = in_sequences(unit.to(DTYPE), sequences.outputs)
        root = in_sequences(root_of(unit).to(DTYPE), sequences.outputs, pairs=False)
        slope = None if slope is None else in_sequences(slope, sequences.outputs)
        for draw in self.draws.backward():
            matrix, count = draw.matrix, count + 1
            heads = matrix.shape[0] * matrix.shape[1]
            to_value = to_value + over_outputs(matrix, kernel).double() / heads
            values = draw.values() if draw.has_sources else None
            pairs = None if values is None else self._pairs(matrix, root, values, draw.generator)
            if slope is not None:
                leaning_back = leaning_back + over_outputs(matrix, slope).double() / heads
                if pairs is not None and values is not None:
                    mean = between(matrix, slope, values @ values.mT)
                    pairs = pairs + mean * (self.draws.head_width * steep / level**0.5)
            if pairs is not None:
                draw.send(pairs)
        self.draws.scale_received(level)
        assert isinstance(to_value, Tensor)
        to_value = placed_back(to_value, sequences.values, sequences.values)
        if isinstance(leaning_back, Tensor):
            leaning_back = placed_back(leaning_back, sequences.values, sequences.values)
        readers = self.draws.width / self.draws.value_width
        scale = readers / count
        kernel, leaning = (to_value + to_value.mT) * (scale * level / 2), leaning_back * (scale * steep)
        if readers > 1 and isinstance(leaning, Tensor):  # what heads send to one value along it is correlated
            kernel = kernel + (1.0 - 1.0 / readers) * leaning @ value.kernel.values @ leaning.mT
        return self.carries.gradient(gradient, Dense(kernel), along_signal=AlongSignal(leaning))

    def parameter_evidence(self, gradient: Gradient, *inputs: Signal) -> Evidence:
        one = self.draws.fewest_entries == 1 and float(gradient.directions.radial) < ACROSS
        return Evidence(Status.ASSUMED, FEW_NUMBERS) if one else EXACT

    def _pairs(self, matrix: Tensor, gradient: Tensor, values: Tensor, generator: torch.Generator) -> Tensor:
        """Draws of `g_t . v_t'` for every replica, head and sequence, from the roots of the two kernels.

        Only their second moments matter: the noise is one of signs, the steadiest that has the second moments of a
        normal one.
        """
        replicas, heads, blocks = matrix.shape[:3]
        positions = gradient.shape[1]
        noise = drawn_signs((replicas, heads * positions, values.shape[-1]), generator)
        drawn = (noise @ values.mT).unflatten(1, (heads, positions)).unflatten(-1, (blocks, -1))
        rows = (gradient * self.draws.head_width**0.5).unflatten(0, (blocks, -1))
        return rows @ drawn.permute(0, 1, 3, 2, 4)


def correlation(average: Tensor, value: Kernel, made: Kernel) -> Tensor | float:
    """Squared correlation of the fluctuations of `A K A^T` and of `K`, pair by pair, which are relatively as large.

    `(tr A K)^2 / (tr K tr A K A^T)`, the kernels about the average token: 1 for `A = 1`, small for averages over many.
    """
    if average.shape[0] != average.shape[1]:
        return 0.0
    overlap = (average * value.centred().values).sum() / len(average)
    size = value.apart() * made.apart()
    return (overlap**2 / size.clamp_min(torch.finfo(overlap.dtype).tiny)).clamp(0.0, 1.0)
