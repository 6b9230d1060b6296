"""Gradients that came through a function of the very signal they belong to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sigprop.theory.activations.base import ActivationFunction, Shifted
from sigprop.theory.corrections.along_signal import aligned_gain
from sigprop.theory.corrections.kurtosis import between
from sigprop.theory.kernels import Dense, Kernel

if TYPE_CHECKING:
    from sigprop.theory.states import Gradient


@dataclass(frozen=True)
class ActivationGradient:
    """`g_t = h_t f'(x_t)`, `h` independent of `x`: the gradient below an activation.

    `kernel` is `H`, that of `h`, and `passed` that of `g`, `H E[f' f']`.

    Gradient and signal are not independent. What an op below needs of both follows from `p(x) = x f'(x)` and Gaussian
    pairs of variance `v` and covariance `c`; `M = E p p'`, and Stein's lemma trades further factors for derivatives:

    gain          `E (sum_t g_t x_t)^2 = sum_tu H M`; were they independent, `sum_tu H E[f' f'] c`
    projection    `E g_t x_s sum_u g_u x_u = sum_u H_tu (K_ts B_tu + K_su E[f'_t p'_u])`, `B = (M - c E[f' p']) / v`
    its square    `E x_s x_s' (sum_u g_u x_u)^2 = K_ss' sum H M + 2 sum_uw H_uw (K_su D_uw K_ws' + K_su C_uw K_us')`,
                  `D = E[p' p']`, `C = (E[x p' p] - c D) / v`

    `share`: the signal is that part, by energy, of the function's argument, the rest being independent of it. What is
    beyond independence is then `share^2` of that of the argument (the square: `share^3`, without the fourth
    derivative). Projections are for a mean of zero. ReLU and its kin have `p = f`: arc-cosine kernels.
    """

    kernel: Kernel
    passed: Kernel
    function: ActivationFunction
    share: Tensor | float = 1.0
    kurtosis: Tensor | None = None
    """That of the argument."""

    def behind(self, constant: float) -> ActivationGradient:
        """The same gradient as one of the signal before a constant was added to it."""
        return replace(self, function=Shifted(self.function, constant))

    def excess(self, kernel: Kernel, mean: Tensor) -> Tensor:
        """Per pair, `H (M - K E[f' f'])`: what the square of a gain's gradient has beyond independence."""
        made, level = kernel.scale(1.0 / self.share), mean / kernel.per_token(self.share) ** 0.5
        pair = (*_pair(made - made.outer(level, level)), made.left(level), made.right(level))
        joint = self.function.radial.cross_moment(*pair)
        if self.kurtosis is not None:
            joint = joint + between(self.function.radial, made.diagonal - level**2, level, self.kurtosis)
        return (self.kernel.values * joint - self.passed.values * made.values) * made.spread(self.share) ** 2

    def projection(self, kernel: Dense) -> tuple[Tensor, Tensor]:
        """`E g_t x_s sum_u g_u x_u` and `E x_s x_s' (sum_u g_u x_u)^2`, over pairs, beyond independence."""
        made = kernel.scale(1.0 / self.share)
        c, grad = made.values, self.kernel.values
        variance = made.diagonal[:, None].clamp_min(torch.finfo(c.dtype).tiny)
        joint, mixed, slopes, steep = self.function.radial_moments(*_pair(made))
        one = (grad * (joint - c * mixed) / variance).sum(1)[:, None] * c + (grad * mixed) @ c
        bent = (grad * (steep - c * slopes) / variance).sum(1)
        both = c * (grad * joint).sum() + 2.0 * c @ (grad * slopes) @ c + 2.0 * (c * bent) @ c
        plain = projected(self.passed.values, c)
        return (one - plain[0]) * self.share**2, (both - plain[1]) * self.share**3


def projected(gradient: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    """The two moments of `ActivationGradient.projection` for a gradient that is independent of the signal."""
    along = gradient @ kernel
    return along, kernel * along.diagonal().sum() + 2.0 * kernel @ along


def excess_of(gradients: Iterable[ActivationGradient], kernel: Kernel, mean: Tensor) -> Tensor:
    """The excess of several gradients over pairs of one signal."""
    return sum((item.excess(kernel, mean) for item in gradients), start=torch.zeros_like(kernel.values))


def along_weights(
    gradient: Gradient, kernel: Kernel, entries: int, bias_variance: Tensor | float | None, bias: float
) -> float:
    """The part of the energy of a gradient that is along the weights of each output, so many entries that bring such a
    kernel: `E (sum_t g_t y_t)^2` of a channel `y` of it in units of an independent gradient's, which has one part of
    that many. The bias of the outputs has this variance and mean."""
    part = kernel.level / (kernel.level + (bias_variance or 0.0) + bias**2).clamp_min(1e-300)
    through, mean = gradient.through_activation, torch.zeros_like(kernel.diagonal)
    items = [replace(item.behind(bias) if bias else item, share=item.share * part) for item in through.gradients]
    excess = kernel.like(excess_of(items, kernel, mean)).total() + through.gain_excess * part**2
    usual = gradient.kernel.contract(kernel)
    times = 1.0 + (excess + aligned_gain(gradient, kernel)) / usual.clamp_min(1e-300)
    return float((times / entries).clamp(0.0, 1.0))


def activation_gain(gradient: Gradient, unit: Kernel, mean: Tensor, gain: Tensor | float = 1.0) -> Tensor | float:
    """`E (sum_t x_t g_t)^2` of one channel, the part that comes from an activation of `y`; `gain` is `E gain^2`. With a
    gain of zero no function above knows of the signal."""
    if not float(torch.as_tensor(gain).abs().max()):
        return 0.0
    through = gradient.through_activation
    if not through.gradients:
        return through.gain_excess / gain
    made = unit.scale(gain)
    excess = made.like(excess_of(through.gradients, made, mean * made.per_token(gain) ** 0.5)).total()
    return (excess + through.gain_excess) / gain


def _pair(kernel: Kernel) -> tuple[Tensor, Tensor, Tensor]:
    """Variances and covariances of all pairs; one variance stands for all where tokens have the same."""
    level = kernel.diagonal
    if isinstance(kernel, Dense) and level.ndim == 1 and bool(((level - level[0]).abs() <= 1e-9 * level[0]).all()):
        return level[:1, None], level[:1, None], kernel.values
    return kernel.left(kernel.diagonal), kernel.right(kernel.diagonal), kernel.values
