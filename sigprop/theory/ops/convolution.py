"""Convolution in any number of dimensions: strides, padding, dilation and groups, as windows of positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from torch import Tensor

from sigprop.theory.kernels import Exchangeable
from sigprop.theory.ops.base import ParameterState
from sigprop.theory.ops.linear import ONES, Linear, leaning
from sigprop.theory.ops.positions_to_channels import PositionsToChannels
from sigprop.theory.states import (
    ALL_TRANSFORMED,
    AlongSignal,
    Gradient,
    Signal,
    Status,
)

FEW = 32
"""Products in a sum, from which on none of them counts much."""


@dataclass(frozen=True, eq=False)
class Convolution(Linear):
    """`y_p = sum_o W_o x_rows(p,o) + b`: a linear map of the window of each position; -1 is padding.

    Forward   `K_y[p,p'] = fan_in * variance * average over o of K_x[rows(p,o), rows(p',o)] + bias_variance`
    Backward  `G_x += fan_out * variance * G_y` on the positions each offset sees; the slope likewise
    Weights   per entry `sum_pp' G_y K_x` at its offset, averaged over offsets

    `fan_in` counts a window of one group, `fan_out` the outputs of one group; `window` is its shape. A window of one
    position is `Linear`.
    Of the rest of a gradient beside its slope only the sum over a window is known: it ends at wider ones. Exchangeable
    tokens count the average number of offsets inside the image. Exact in expectation over the weights, as `Linear` is.
    """

    carries = ALL_TRANSFORMED

    by_position = False

    rows: Tensor = field(kw_only=True)
    groups: int = field(default=1, kw_only=True)
    window: tuple[int, ...] = field(default=(), kw_only=True)

    @property
    def width(self) -> int:
        return self.fan_out * self.groups

    @property
    def of_few_products(self) -> bool:
        """Whether functions of it are drawn, as where each channel is convolved by itself: slopes of a function of such
        a sum depend on each factor, not by `1/width` but in full, and each channel has a kernel of its own."""
        return self.groups > 1 and self.fan_in <= FEW

    def _windows(self, x: Signal) -> tuple[PositionsToChannels, Signal]:
        op = PositionsToChannels(self.rows, x.width * self.rows.shape[1])
        return op, op.forward(x)

    def _group(self, seen: Signal) -> Signal:
        """What one group sees: fewer channels, whose products fluctuate more."""
        return seen if self.groups == 1 else replace(seen, width=seen.width // self.groups)

    def _met(self, gradient: Gradient, x: Signal) -> Tensor:
        """The norm that a gradient is across is that of all groups."""
        return super()._met(gradient, replace(x, width=x.width * self.groups))

    def forward(self, *inputs: Signal) -> Signal:
        _, seen = self._windows(inputs[0])
        made = super().forward(seen)
        if self.mean and not isinstance(seen.kernel, Exchangeable):
            made = self._with_mean(made, seen, *inputs)
        return made.note(Status.ASSUMED, "image borders averaged") if isinstance(seen.kernel, Exchangeable) else made

    def _with_mean(self, made: Signal, seen: Signal, x: Signal) -> Signal:
        """The mean of the weights sums over a window, whose positions have something in common."""
        reach, channels = self._reach(len(x.mean)), self.fan_in // self.rows.shape[1]
        share = x.common.uniform * (1.0 - x.common.share) + x.common.share * channels
        more = reach @ x.covariance.dense().values @ reach.T * share * channels - self._summed(seen)
        kernel = made.kernel.like(made.kernel.values + self.mean**2 * more)
        share = kernel.token_average((self._summed(seen) + more).diagonal() * self.mean**2 / kernel.diagonal)
        return replace(made, kernel=kernel, common=replace(made.common, share=share))

    def _reach(self, size: int) -> Tensor:
        """`[position out, position in]`: how often a window sees a position."""
        made = torch.zeros(len(self.rows), size + 1, dtype=torch.float64)
        made.scatter_add_(1, self.rows.where(self.rows >= 0, size), torch.ones(self.rows.shape, dtype=torch.float64))
        return made[:, :size]

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        windows, seen = self._windows(inputs[0])
        free = replace(self, mean=0.0)
        (below,) = super(Convolution, free).backward(
            replace(gradient, along_signal=AlongSignal()), output, self._group(seen)
        )
        (made,) = windows.backward(below, seen, *inputs)
        if self.mean:
            reach = self._reach(len(inputs[0].mean))
            summed = made.kernel.like(reach.T @ gradient.kernel.dense().values @ reach)
            made = self._with_ones(made, gradient, summed, inputs[0].width)
            if float(gradient.directions.uniform) > 1.0 + ONES * self.width and self.rows.shape[1] > 1:
                made = made.note(Status.ASSUMED, "a gradient along all ones, whose positions have more in common")
        kernel, along = inputs[0].kernel, self._moved(gradient.along_signal, inputs[0].kernel.tokens)
        if isinstance(along.slope, Tensor):
            made = replace(
                made, kernel=made.kernel.like(made.kernel.values + leaning(kernel.values, along.slope, along.rest))
            )
        return (replace(made, along_signal=along),)

    def _moved(self, along: AlongSignal, size: int) -> AlongSignal:
        """The slope on the positions that windows see; a diagonal one over windows of one position stays so."""
        single = self.rows.shape[1] == 1
        slope = along.slope
        if isinstance(slope, Tensor):
            slope = self._onto(slope, size, single) * self.fan_out * self.variance
        rest = along.rest
        if isinstance(rest, Tensor):
            rest = self._onto(rest, size, single) * (self.fan_out / self.fan_in) if single else 0.0
        return AlongSignal(slope, rest)

    def _onto(self, values: Tensor, size: int, single: bool) -> Tensor:
        if values.ndim == 1 and single:
            return torch.zeros(size, dtype=values.dtype).index_add(0, self.rows[:, 0], values)
        values = torch.diag(values) if values.ndim == 1 else values
        made = torch.zeros(size + 1, size + 1, dtype=values.dtype)
        for q in self.rows.T:
            made[q[:, None], q] += values
        return made[:size, :size]

    def kurtosis(self, output: Signal, inputs: Sequence[Signal], below: Sequence[Tensor | None]) -> Tensor | None:
        return super().kurtosis(output, [self._windows(inputs[0])[1]], below)

    def along_rows(self, gradient: Gradient, *inputs: Signal) -> float | None:
        return super().along_rows(gradient, self._windows(inputs[0])[1])

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        _, seen = self._windows(inputs[0])
        weight, *bias = super().parameters(gradient, self._group(seen))
        offsets = self.rows.shape[1]
        shape = (self.width, self.fan_in // offsets, *(self.window or (offsets,)))
        return [replace(weight, shape=shape), *(replace(item, shape=(self.width,)) for item in bias)]


@lru_cache(maxsize=64)
def square_windows(image: tuple[int, int], size: int, stride: int = 1) -> Tensor:
    """`[pixel out, offset]`: the pixels that a square window with padding `size // 2` sees, -1 outside the image."""
    numbers = torch.arange(1.0, math.prod(image) + 1, dtype=torch.float64).view(1, *image)
    return torch.nn.functional.unfold(numbers, size, padding=size // 2, stride=stride).T.long() - 1
