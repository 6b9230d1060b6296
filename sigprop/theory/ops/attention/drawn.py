"""Attention with drawn weights: whatever a model makes them of, values enter by their kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sigprop.theory.drawing import DTYPE, drawn_signs, root_of, unit_kernel, unit_slope
from sigprop.theory.kernels import Dense, Kernel
from sigprop.theory.ops.attention.sampled import EVIDENCE, between, over_outputs, over_values
from sigprop.theory.ops.drawn import DrawnOp
from sigprop.theory.states import ALL_TRANSFORMED, AlongSignal, Evidence, Fluctuation, Gradient, Signal, ended


@dataclass(eq=False)
class DrawnAttention(DrawnOp):
    """`o = A v`: the weights `A` of each head are drawn with whatever they depend on, `v` enters by its kernel.

    Forward   `K_o = E[A K_v A^T]`, mean `E[A] m`
    Backward  `G_v = E[A^T G_o A]`, the slope along the signal likewise; the sources of `A` get the gradient of `A`
              against drawn `g v^T`, of which a gradient `S o` makes `S A K_v` on average

    The inputs are the sources of `A`, then `v`. Where several heads read one value, what they send to it along it is in
    step. Exact up to the error of the draws, and with what finite width makes of them: queries, keys and values made
    of one input fluctuate with it. `Attention` with sampled heads draws queries and keys from their states instead.

    The fluctuation of pairs goes on by how far `A K A^T` is correlated with `K`; that of norms and all directions end.

    `draws` draw heads, as many as are needed: forward until they `are_precise` by the energies so far, backward until
    what the sources have received is steady. Each draw has some heads of some networks,
    `matrix[replica, head, sequence, output, value]`, and `values()`, for each network `R` with `R R^T` the kernel of
    its values, sequence by sequence. `width`, `value_width`, `head_width`: channels of the output, of the values, and
    of one head of these.
    """

    carries = ALL_TRANSFORMED.but(
        common=ended("averages over keys, of channels made by independent weights"),
        directions=ended("scores and averages over keys turn the gradient"),
        through_activation=ended("averages over keys stand between the function and its argument"),
    )

    draws: Any

    def forward(self, *inputs: Signal) -> Signal:
        value, energies = inputs[-1], []
        kernel, average = torch.zeros(()), torch.zeros(())
        for draw in self.draws.forward():
            matrix, roots = draw.matrix, draw.values()
            made, energy = over_values(matrix, roots @ roots.mT)
            kernel = kernel + made.double() / (matrix.shape[0] * matrix.shape[1])
            average = average + matrix.mean((0, 1)).double()
            energies.append(energy)
            if self.draws.are_precise(torch.cat(energies)):
                break
        evidence, sequences, count = Evidence(*EVIDENCE), self.draws.sequences, len(energies)
        for x in inputs:
            evidence = x.evidence.join(evidence)
        kernel, average = sequences.outputs_back(kernel), sequences.back(torch.block_diag(*average / count))
        made, ratio = Dense((kernel + kernel.mT) / (2 * count)), self.draws.width / value.width
        inherited = value.fluctuation.pair_inherited * in_step(average, value.kernel, made) ** 2
        fluctuation = Fluctuation(pair=value.fluctuation.pair * ratio, pair_inherited=inherited * ratio)
        return self.carries.signal(
            value, made, average @ value.mean, self.draws.width, evidence, fluctuation=fluctuation
        )

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient | None, ...]:
        """What goes to the sources is drawn: it is along nothing that is followed."""
        received, to_value = self.sent(gradient, *inputs)
        assert to_value is not None
        self._sent = None
        evidence, nothing = gradient.evidence.join(output.evidence), AlongSignal()
        found = [
            None if kernel is None else self.carries.gradient(gradient, Dense(kernel), evidence, along_signal=nothing)
            for kernel in received.kernels
        ]
        return (*found, replace(to_value, evidence=evidence))

    def _send(self, gradient: Gradient, *inputs: Signal) -> Gradient:
        """Draws until what the sources have received is steady; returns the gradient of the values."""
        value = inputs[-1]
        sequences, to_value, leaning_back, count = self.draws.sequences, 0.0, 0.0, 0
        unit, level = unit_kernel(gradient)
        slope, steep = unit_slope(gradient, value)
        kernel, root = sequences.by_outputs(unit.to(DTYPE)), sequences.rows_by_outputs(root_of(unit).to(DTYPE))
        slope = None if slope is None else sequences.by_outputs(slope)
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
        to_value = sequences.values_back(to_value)
        if isinstance(leaning_back, Tensor):
            leaning_back = sequences.values_back(leaning_back)
        readers = self.draws.width / self.draws.value_width
        scale = readers / count
        kernel, leaning = (to_value + to_value.mT) * (scale * level / 2), leaning_back * (scale * steep)
        if readers > 1 and isinstance(leaning, Tensor):  # what heads send to one value along it is in step
            kernel = kernel + (1.0 - 1.0 / readers) * leaning @ value.kernel.values @ leaning.mT
        return self.carries.gradient(gradient, Dense(kernel), along_signal=AlongSignal(leaning))

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


def in_step(average: Tensor, value: Kernel, made: Kernel) -> Tensor | float:
    """How far `A K A^T` fluctuates in step with `K`, pair by pair; its own relative fluctuation is that of `K`.

    `(tr A K)^2 / (tr K tr A K A^T)`, the kernels about the average token: 1 for `A = 1`, small for averages over many.
    """
    if average.shape[0] != average.shape[1]:
        return 0.0
    overlap = (average * value.centred().values).sum() / len(average)
    size = value.apart() * made.apart()
    return (overlap**2 / size.clamp_min(torch.finfo(overlap.dtype).tiny)).clamp(0.0, 1.0)
