"""Ops that move, copy or scale tensors without mixing channels at random: what views and broadcasts come down to."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.theory import Dense, Gradient, Signal
from sigprop.theory.gates import excess_of
from sigprop.theory.ops.activation import Activation
from sigprop.theory.ops.base import Op, ParameterState
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.normalization import aligned_gain
from sigprop.theory.tilts import applied


def gradient_of(values: Tensor, like: Gradient) -> Gradient:
    return Gradient(Dense(values), like.radial_share, like.uniform_share, like.evidence)


@dataclass(frozen=True, eq=False)
class Gather(Op):
    """`y_p = x_index(p)`: slices, permutations and repeats of positions.

    `copies`: each entry of `x` also feeds that many channels, whose gradients add as independent.
    """

    index: Tensor
    copies: float = 1.0
    width: int | None = None

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel = Dense(x.kernel.values[self.index][:, self.index])
        return replace(x, kernel=kernel, mean=x.mean[self.index], width=self.width or x.width)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        size = len(inputs[0].mean)
        made = gradient_of(scattered(gradient.kernel.values, self.index, size) * self.copies, gradient)
        if not isinstance(gradient.tilt, Tensor):
            return (made,)
        if gradient.tilt.ndim == 1:
            tilt = torch.zeros(size, dtype=torch.float64).index_add(0, self.index, gradient.tilt)
        else:
            tilt = scattered(gradient.tilt, self.index, size)
        carried = gradient.alignment
        carried = scattered(carried, self.index, size) if isinstance(carried, Tensor) else carried
        return (replace(made, alignment=carried * self.copies, tilt=tilt * self.copies),)


@dataclass(frozen=True, eq=False)
class Scatter(Op):
    """`y_index(p) = x_p`, zero elsewhere; entries that meet add."""

    index: Tensor
    positions: int

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel = Dense(scattered(x.kernel.values, self.index, self.positions))
        mean = torch.zeros(self.positions, dtype=x.mean.dtype).index_add(0, self.index, x.mean)
        return replace(x, kernel=kernel, mean=mean)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        return (gradient_of(gradient.kernel.values[self.index][:, self.index], gradient),)


def scattered(values: Tensor, index: Tensor, size: int) -> Tensor:
    rows = torch.zeros(size, values.shape[1], dtype=values.dtype).index_add(0, index, values)
    return torch.zeros(size, size, dtype=values.dtype).index_add(1, index, rows)


@dataclass(frozen=True, eq=False)
class TokenMap(Op):
    """`y = M x` over positions, `M` a fixed matrix: pooling and interpolation. A tilt goes back like the gradient."""

    matrix: Tensor

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel = Dense(self.matrix @ x.kernel.values @ self.matrix.T)
        return replace(x, kernel=kernel, mean=self.matrix @ x.mean)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        made = gradient_of(self.matrix.T @ gradient.kernel.values @ self.matrix, gradient)
        if not isinstance(gradient.tilt, Tensor):
            return (made,)
        return (replace(made, tilt=self.matrix.T @ applied(gradient.tilt, self.matrix)),)


@dataclass(frozen=True, eq=False)
class Absorb(Op):
    """Positions become channels: `rows[r, q]` are the positions that position `r` takes in; -1 is a zero.

    Forward   `K'[r,r'] = average over q of K[rows(r,q), rows(r',q)]`

    `mixes`: the positions are to be mixed at random, alike in all `d` channels. The product of two such mixtures has
    the relative variance `sum_qq' E K^2 / (sum_q K_qq)^2`, of the part that differs between channels:
    `pair_fluctuation` is `d` times that, from the expected kernel and from its own fluctuation.
    """

    rows: Tensor
    width: int
    mixes: bool = False

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel, mean = torch.nn.functional.pad(x.kernel.values, (0, 1, 0, 1)), torch.nn.functional.pad(x.mean, (0, 1))
        values = sum(kernel[q][:, q] for q in self.rows.T) / self.rows.shape[1]
        assert isinstance(values, Tensor)
        made = replace(x, kernel=Dense(values), mean=mean[self.rows].mean(1), width=self.width)
        return replace(made, pair_fluctuation=self._of_mixtures(x)) if self.mixes else made

    def _of_mixtures(self, x: Signal) -> Tensor:
        common = x.mean.square().mean() / x.kernel.diagonal.mean().clamp_min(1e-300) + x.common_share
        kernel = torch.nn.functional.pad(x.covariance.scale_diagonal(1.0 - x.common_share).values, (0, 1, 0, 1))
        pairs = kernel.square()[self.rows[:, :, None], self.rows[:, None, :]].sum((1, 2))
        level = kernel.diagonal()[self.rows].sum(1).square().clamp_min(1e-300)
        inherited = (x.pair_fluctuation - 1.0) / (1.0 - common).clamp_min(1e-3) ** 2
        return x.width * (pairs / level).mean() + 1.0 + inherited

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        size = len(inputs[0].mean)
        values = torch.zeros(size + 1, size + 1, dtype=gradient.kernel.values.dtype)
        for q in self.rows.T:
            values[q[:, None], q[None, :]] += gradient.kernel.values
        return (replace(gradient_of(values[:size, :size], gradient), excess=gradient.excess),)


@dataclass(frozen=True, eq=False)
class Spread(Op):
    """A new position axis of `count` independent outputs, the last of the kernel's order."""

    count: int

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        covariance = torch.kron(x.covariance.values, torch.eye(self.count, dtype=x.mean.dtype))
        mean = x.mean.repeat_interleave(self.count)
        return replace(x, kernel=Dense(covariance + mean[:, None] * mean), mean=mean)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        (x,) = inputs
        made = gradient_of(self._together(gradient.kernel.values) / self.count, gradient)
        gates = [replace(gate, kernel=Dense(self._together(gate.kernel.values)),
                         passed=Dense(self._together(gate.passed.values))) for gate in gradient.gates]  # fmt: skip
        return (replace(made, excess=excess_of(gates, x.kernel, x.mean).sum() + gradient.excess),)

    def _together(self, values: Tensor) -> Tensor:
        """Sums over the new axis, at the same place of it in both positions of a pair."""
        rows = len(values) // self.count
        return values.reshape(rows, self.count, rows, self.count).diagonal(dim1=1, dim2=3).sum(-1)


@dataclass(frozen=True, eq=False)
class Part(Op):
    """A slice of the channels: the same state; the gradient is spread over all channels."""

    share: float
    width: int

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        part = self.width / x.width
        fluctuation = 1.0 + (x.pair_fluctuation - 1.0) * part
        return replace(x, width=self.width, pair_fluctuation=fluctuation, pair_inherited=x.pair_inherited * part)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        kernel, alignment = gradient.kernel.scale(self.share), gradient.alignment * self.share
        return (Gradient(kernel, evidence=gradient.evidence, alignment=alignment, tilt=gradient.tilt * self.share),)


@dataclass(frozen=True, eq=False)
class Join(Op):
    """Channels of several tensors side by side: the average of their states, weighted by their widths."""

    shares: tuple[float, ...]
    width: int

    def forward(self, *inputs: Signal) -> Signal:
        kernel = sum(share * x.kernel.values for share, x in zip(self.shares, inputs, strict=True))
        mean = sum(share * x.mean for share, x in zip(self.shares, inputs, strict=True))
        assert isinstance(kernel, Tensor)
        assert isinstance(mean, Tensor)
        evidence = inputs[0].evidence
        for x in inputs[1:]:
            evidence = evidence.join(x.evidence)
        return Signal(Dense(kernel), mean, self.width, evidence=evidence)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient, ...]:
        return tuple(Gradient(gradient.kernel, evidence=gradient.evidence) for _ in inputs)


@dataclass(frozen=True, eq=False)
class Stack(Op):
    """Positions of several independent tensors one after another."""

    def forward(self, *inputs: Signal) -> Signal:
        covariance = torch.block_diag(*(x.covariance.values for x in inputs))
        mean = torch.cat([x.mean for x in inputs])
        evidence = inputs[0].evidence
        for x in inputs[1:]:
            evidence = evidence.join(x.evidence)
        kernel = Dense(covariance + mean[:, None] * mean)
        return Signal(kernel, mean, inputs[0].width, evidence=evidence)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient, ...]:
        found, start = [], 0
        for x in inputs:
            stop = start + len(x.mean)
            found.append(gradient_of(gradient.kernel.values[start:stop, start:stop], gradient))
            start = stop
        return tuple(found)


@dataclass(frozen=True, eq=False)
class Scale(Op):
    """`y = factor * x`."""

    factor: float

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        return replace(x, kernel=x.kernel.scale(self.factor**2), mean=x.mean * self.factor)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        return (replace(gradient.scale(self.factor**2), tilt=gradient.tilt * self.factor**2),)


@dataclass(frozen=True, eq=False)
class Modulate(Op):
    """`y = c * x` with fixed numbers `c`, given by their kernel and mean over channels; also masks of 0 and 1."""

    kernel: Tensor
    mean: Tensor

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        return replace(x, kernel=Dense(x.kernel.values * self.kernel), mean=x.mean * self.mean)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        return (gradient_of(gradient.kernel.values * self.kernel, gradient),)


@dataclass(frozen=True, eq=False)
class Gain(Op):
    """`y = w * x`, `w` a parameter; `same[p,p']` tells whether two positions share its entries.

    Weights   total over entries `channels * sum_pp' same G K`, what the alignment of the gradient adds, and what an
              activation of the result does (see `Gate`)
    """

    second_moment: float
    mean: float
    same: Tensor
    shape: tuple[int, ...]
    channels: int

    def _factor(self) -> Tensor:
        return self.mean**2 + (self.second_moment - self.mean**2) * self.same

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        return replace(x, kernel=Dense(x.kernel.values * self._factor()), mean=x.mean * self.mean)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        made = gradient_of(gradient.kernel.values * self._factor(), gradient)
        return (replace(made, alignment=gradient.alignment, tilt=gradient.tilt * self.second_moment),)

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        (x,) = inputs
        pairs, common = gradient.kernel.values * x.kernel.values, aligned_gain(gradient, x.kernel)
        if gradient.gates and self.mean:
            made = self.forward(x)
            pairs = pairs + excess_of(gradient.gates, made.kernel, made.mean) / self.mean**2
        total = self.channels * ((pairs * self.same).sum() + common)
        return [ParameterState("weight", self.shape, "gain", 0.0, total / math.prod(self.shape))]


@dataclass(frozen=True, eq=False)
class ParameterSource(Op):
    """A parameter used as a tensor of the network: biases, learned positions, class tokens, latents."""

    variance: float
    average: float
    same: Tensor
    shape: tuple[int, ...]
    channels: int

    def forward(self, *inputs: Signal) -> Signal:
        kernel = Dense(self.variance * self.same + self.average**2)
        return Signal(kernel, torch.full((len(self.same),), self.average, dtype=torch.float64), self.channels)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient, ...]:
        return ()

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        total = self.channels * (gradient.kernel.values * self.same).sum()
        return [ParameterState("weight", self.shape, "source", self.variance, total / math.prod(self.shape))]


@dataclass(frozen=True)
class TokenActivation(Activation):
    """An activation on a dense kernel; one quadrature serves all tokens when they are alike, as after a norm."""

    def _arguments(self, x: Signal):
        covariance, mean = x.covariance.values, x.mean
        variance = covariance.diagonal()
        if bool(((variance - variance[0]).abs() <= 1e-9 * variance[0].abs()).all()) and bool((mean == mean[0]).all()):
            level, shift = variance[:1, None], mean[:1, None]
            return level, level, covariance, shift, shift
        return variance[:, None], variance[None, :], covariance, mean[:, None], mean[None, :]

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        made = super().forward(x)
        if not isinstance(x.common_share, Tensor):
            return made
        variance, mean = x.covariance.diagonal.mean(), x.mean.mean()
        level, average = self.function.second_moment(variance, mean), self.function.mean(variance, mean)
        shared = self.function.cross_moment(variance, variance, variance * x.common_share, mean, mean)
        kept = x.mixed * self.function.derivative_mean(variance, mean) ** 2 * variance / level
        return replace(made, common_share=(shared - average**2) / level, mixed=kept)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        (made,) = super().backward(gradient, output, *inputs)
        if float(gradient.uniform_share) == 1.0:
            return (made,)
        (x,) = inputs
        variance, mean = x.covariance.diagonal.mean(), x.mean.mean()
        slope = self.function.derivative_mean(variance, mean) ** 2
        kept = slope / self.function.derivative_second_moment(variance, mean).clamp_min(1e-300)
        return (replace(made, uniform_share=1.0 - (1.0 - gradient.uniform_share) * kept),)


@dataclass(frozen=True)
class TokenLinear(Linear):
    """A linear map over tokens, the same for every channel: what is uniform over channels stays so.

    Forward   the mean of the inputs and the bias give every output token a part common to all its channels; an output
              is made of `fan_in` tokens alike
    Weights   what is common to all channels meets the uniform share of the gradient only; so does the bias, which sums
              the gradient over channels: `width * G * uniform share`
    Backward  as Linear; the excess of the gradient counts without the share of the bias, squared

    The same numbers mix all `channels`: the products of two outputs and their norms fluctuate as `Absorb` says.
    """

    channels: int = 1

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        made = super().forward(x)
        common = self._common(x) * x.kernel.diagonal.mean() * self.fan_in * self.variance
        share = (common + (self.bias_variance or 0.0)) / made.kernel.diagonal.mean()
        pairs = x.pair_fluctuation * (1.0 - share) ** 2
        mixed = x.mixed or (x.pair_fluctuation - 1.0) / self.channels
        return replace(made, width=self.channels, common_share=share, mixed=mixed, pair_fluctuation=pairs,
                       norm_fluctuation=2.0 * pairs)  # fmt: skip

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        (made,) = super().backward(gradient, output, *inputs)
        own = 1.0 - (self.bias_variance or 0.0) / output.kernel.diagonal.mean()
        return (replace(made, uniform_share=gradient.uniform_share, excess=gradient.excess * own**2),)

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        (x,) = inputs
        weight, *bias = super().parameters(gradient, x)
        uniform = gradient.uniform_share
        seen = 1.0 - self._common(x) * (1.0 - uniform)
        factors = (seen, *(uniform for _ in bias))
        found = zip((weight, *bias), factors, strict=True)
        return [replace(item, grad_second_moment=item.grad_second_moment * factor) for item, factor in found]

    @staticmethod
    def _common(x: Signal) -> Tensor:
        """Share of the input that is the same in all channels: its mean, and what it has in common by itself."""
        return x.mean.square().mean() / x.kernel.diagonal.mean().clamp_min(1e-300) + x.common_share
