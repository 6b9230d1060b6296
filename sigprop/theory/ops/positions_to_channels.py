"""Positions become channels: windows, patches, flattened images."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from sigprop.theory.corrections.along_signal import applied
from sigprop.theory.kernels import Dense, Exchangeable, Kernel
from sigprop.theory.ops.base import Op
from sigprop.theory.ops.linear import leaning
from sigprop.theory.states import (
    ALL_TRANSFORMED,
    GIVEN,
    KEPT,
    AlongSignal,
    Gradient,
    Signal,
    Status,
    ThroughActivation,
    ended,
)

LARGEST = 1 << 22
"""Entries of a kernel that are looked at, at most, to see how far the positions of a row are correlated."""
ALONG = 0.02
"""Share of the energy of a gradient that is along the signal, from which on gradients below are guesses."""
LOST = "a gradient along a signal, through a map over tokens"


@dataclass(frozen=True, eq=False)
class PositionsToChannels(Op):
    """`rows[r, q]` are the positions that position `r` takes in; -1 is a zero.

    Forward   `K'[r,r'] = average over q of K[rows(r,q), rows(r',q)]`
    Backward  `G` is added on the positions that were taken in, at the same `q`

    Exact. Exchangeable tokens: every pair counts the average number of positions that are not zeros; backward, of the
    pairs of different positions those at the same `q` get a gradient.

    Of `n` positions with cosines `r` the squared norms have `r^2` in common, so that the norm of all fluctuates by
    `sum_qq' C_qq'^2 / (sum_q C_qq)^2` of one: as many channels as there are positions, if they are independent. What
    they have in common adds up along all ones: `u sum_qq' C_qq' / sum_q C_qq`. A gradient that is across a row is
    across each position by its part of the row.

    `mixes`: the positions are to be mixed at random, by one map in all `d` channels. The product of two such mixtures
    has the relative variance `sum_qq' E K^2 / (sum_q K_qq)^2`, of the part that differs between channels: `pair` is `d`
    times that, from the expected kernel and from its own fluctuation.
    """

    carries = ALL_TRANSFORMED

    rows: Tensor
    width: int
    mixes: bool = False

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        count = self.rows.shape[1]
        fluctuation = x.fluctuation.scaled(count * self._squared_cosine(x.covariance))
        common = replace(
            x.common, uniform=x.common.uniform * self._together(x.covariance), share=x.common.share / count
        )
        if self.mixes:
            fluctuation, common = replace(x.fluctuation, pair=self._of_mixtures(x)), x.common
        kernel, mean = self.averaged(x.kernel), self._mean(x)
        return self.carries.signal(x, kernel, mean, self.width, fluctuation=fluctuation, common=common)

    def averaged(self, kernel: Kernel) -> Kernel:
        """The kernel of what is taken in."""
        if isinstance(kernel, Exchangeable):
            return Exchangeable(kernel.values * self._filled, len(self.rows))
        padded = pad(kernel.values, (0, 1, 0, 1))
        values = sum(padded[..., q, :][..., q] for q in self.rows.T)
        assert isinstance(values, Tensor)
        return Dense(values / self.rows.shape[1])

    @property
    def _filled(self) -> float:
        """Share of the entries that are not zeros."""
        return float((self.rows >= 0).double().mean())

    def _mean(self, x: Signal) -> Tensor:
        if isinstance(x.kernel, Exchangeable):
            return x.mean * self._filled
        return pad(x.mean, (0, 1))[..., self.rows].mean(-1)

    def _squared_cosine(self, kernel: Kernel) -> Tensor | float:
        """`sum_qq' C_qq'^2 / (sum_q C_qq)^2`, averaged over (at most some of the) rows."""
        count = self.rows.shape[1]
        if count == 1:
            return 1.0
        if isinstance(kernel, Exchangeable):
            return (1.0 + (count - 1.0) * kernel.normalized().different ** 2) / count
        rows = self.rows[:: max(1, self.rows.numel() * count // LARGEST)]
        padded = pad(kernel.values, (0, 1, 0, 1))
        pairs = padded.square()[..., rows[:, :, None], rows[:, None, :]].sum((-1, -2))
        return (pairs / padded.diagonal(dim1=-2, dim2=-1)[..., rows].sum(-1).square().clamp_min(1e-300)).mean(-1)

    def _together(self, kernel: Kernel) -> Tensor | float:
        """`sum_qq' C_qq' / sum_q C_qq`: positions that have something in common add up along all ones."""
        count = self.rows.shape[1]
        if isinstance(kernel, Exchangeable):
            return 1.0 + (count - 1.0) * kernel.normalized().different
        rows = self.rows[:: max(1, self.rows.numel() * count // LARGEST)]
        padded = pad(kernel.values, (0, 1, 0, 1))
        pairs = padded[..., rows[:, :, None], rows[:, None, :]].sum((-1, -2, -3))
        return pairs / padded.diagonal(dim1=-2, dim2=-1)[..., rows].sum((-1, -2)).clamp_min(1e-300)

    def _of_mixtures(self, x: Signal) -> Tensor:
        level, of_mean = (x.kernel.token_average(item) for item in (x.kernel.diagonal, x.mean.square()))
        common = of_mean / level.clamp_min(1e-300) + x.common.share
        cosine = self._squared_cosine(x.covariance.scale_diagonal(1.0 - x.common.share))
        inherited = (x.fluctuation.pair - 1.0) / (1.0 - common).clamp_min(1e-3) ** 2
        return (x.width * cosine + 1.0 + inherited).clamp_min(GIVEN.pair)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        through = ThroughActivation(gain_excess=gradient.through_activation.gain_excess)
        (x,) = inputs
        free, along = gradient.kernel, AlongSignal()
        if isinstance(gradient.along_signal.slope, Tensor) and isinstance(x.kernel, Dense):
            slope = gradient.along_signal.slope
            free = free.like(free.values - leaning(output.kernel.values, slope, 0.0))
            along = AlongSignal(self._onto(slope, x.kernel.tokens))
        kernel = self._spread_out(free, x.kernel.tokens)
        if isinstance(along.slope, Tensor):
            kernel = kernel.like(kernel.values + leaning(x.kernel.values, along.slope, 0.0))
        parts = {"directions": gradient.directions.at_part(self._part(x.kernel)), "along_signal": along}
        return (self.carries.gradient(gradient, kernel, through_activation=through, **parts),)

    def _onto(self, slope: Tensor, size: int) -> Tensor:
        """The slope on the positions that were taken in: `g_p = sum B_rs x_rows(s,q)` over all `rows(r,q) = p`."""
        if slope.ndim == 2:
            return self._spread_out(Dense(slope), size).values
        rows = self.rows.where(self.rows >= 0, size)
        made = torch.zeros(size + 1, dtype=slope.dtype)
        return made.index_add(0, rows.flatten(), slope.repeat_interleave(rows.shape[1]))[:size]

    def _part(self, kernel: Kernel) -> Tensor | float:
        """Share of a position in the squared norm of a row, on average."""
        if isinstance(kernel, Exchangeable) or self.rows.shape[1] == 1:
            return 1.0 / max(self.rows.shape[1] * self._filled, 1.0)
        level = pad(kernel.diagonal, (0, 1))[..., self.rows]
        parts = level / level.sum(-1, keepdim=True).clamp_min(1e-300)
        return parts.sum((-1, -2)) / (self.rows >= 0).sum().clamp_min(1)

    def _spread_out(self, kernel: Kernel, size: int) -> Kernel:
        if isinstance(kernel, Exchangeable):
            taken, others = self._filled * self.rows.numel() / size, (len(self.rows) - 1) / max(size - 1, 1)
            return Exchangeable.of(kernel.diagonal * taken, kernel.different * taken * others, size)
        values = torch.zeros(*kernel.values.shape[:-2], size + 1, size + 1, dtype=kernel.values.dtype)
        for q in self.rows.T:
            values[..., q[:, None], q[None, :]] += kernel.values
        return Dense(values[..., :size, :size])


@dataclass(frozen=True, eq=False)
class ChannelsToPositions(Op):
    """A new position axis of `count` independent outputs, the last of the kernel's order.

    Forward   `K_y[(t,i), (t',i')] = delta_ii' C_x[t,t']` about the means
    Backward  the average over `i` of `G_y[(t,i), (t',i)]`

    Exact for independent channels of one distribution, as those of an output of fresh weights are.

    What `E (sum g x)^2` of one channel has beyond independence is summed over the new axis. A gradient that is along
    the signal by more than `ALONG` is a guess below.
    """

    carries = ALL_TRANSFORMED.but(
        fluctuation=KEPT,
        common=KEPT,
        directions=KEPT,
        along_signal=ended("the slope of one output on another is not followed into the channels"),
    )

    count: int

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        if isinstance(x.kernel, Exchangeable):
            made = self._average(x.covariance.exchangeable())
            return self.carries.signal(x, made.like(made.values + made.spread(x.mean**2)), x.mean)
        covariance = torch.kron(x.covariance.values, torch.eye(self.count, dtype=x.mean.dtype))
        mean = x.mean.repeat_interleave(self.count)
        return self.carries.signal(x, Dense(covariance + mean[:, None] * mean), mean)

    def _average(self, covariance: Exchangeable) -> Exchangeable:
        """The average token and pair: of all pairs those at the same place of the new axis are as before."""
        before, tokens = covariance.tokens, covariance.tokens * self.count
        same = (before - 1) / max(tokens - 1, 1)
        return Exchangeable.of(covariance.diagonal, covariance.different * same, tokens)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        (x,) = inputs
        through = gradient.through_activation.moved(self._together).collected(x)
        kernel = self._together(gradient.kernel).scale(1.0 / self.count)
        made, slope = self.carries.gradient(gradient, kernel, through_activation=through), gradient.along_signal.slope
        if isinstance(slope, Tensor) and isinstance(output.kernel, Dense):
            energy = applied(slope, applied(slope, output.kernel.values).T).diagonal().sum()
            if float(energy) > ALONG * float(gradient.kernel.diagonal.sum()):
                made = made.note(Status.ASSUMED, LOST)
        return (made,)

    def _together(self, kernel: Kernel) -> Kernel:
        """Sums over the new axis, at the same place of it in both positions of a pair."""
        rows = kernel.tokens // self.count
        if isinstance(kernel, Exchangeable):
            return Exchangeable(kernel.values * self.count, rows)
        values = kernel.values.reshape(rows, self.count, rows, self.count)
        return Dense(values.diagonal(dim1=1, dim2=3).sum(-1))
