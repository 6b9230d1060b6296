"""Elementwise nonlinearity."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.theory.activations import Activation as ActivationFunction
from sigprop.theory.gradient_along_signal import diagonal
from sigprop.theory.gradient_through_activation import Gate
from sigprop.theory.kernels import Kernel
from sigprop.theory.ops.base import Op
from sigprop.theory.pair_fluctuation import fresh_fluctuation
from sigprop.theory.states import Gradient, Signal
from sigprop.theory.status import Status

SMALL = 1e-3
"""Share of the tilt in a gradient's energy from which on its fourth moments count."""

ROUNDING = 1e-14
"""Share of the variance below which the differences between tokens are rounding."""


@dataclass(frozen=True)
class Activation(Op):
    """`y = f(x)` entry by entry, `x` Gaussian over channels.

    Forward   `K_y[t,t'] = E f(x_t) f(x_t')`, mean `E f(x_t)`
    Backward  `G_x[t,t'] = G_y[t,t'] E f'(x_t) f'(x_t')`
    Tilt      with `q = f f'`: `B_tt E q'`, and `B_ts E f' E f'` between tokens; the diagonal makes `B_tt B_t't' E q q'`
              of the kernel, in place of `E f f E f' f'`

    Exact for Gaussian inputs when the activation has a closed form (dslm B.4, B.5; apjn App. A).
    """

    function: ActivationFunction

    def _arguments(self, x: Signal):
        covariance = x.covariance
        variance = covariance.diagonal
        return (
            covariance.left(variance),
            covariance.right(variance),
            covariance.values,
            covariance.left(x.mean),
            covariance.right(x.mean),
        )

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel = x.kernel.like(self.function.cross_moment(*self._arguments(x)))
        mean = self.function.mean(x.covariance.diagonal, x.mean)
        out = Signal(
            kernel,
            mean,
            x.width,
            norm_fluctuation=x.norm_fluctuation + 3.0,
            **self._pairs(x, kernel),
            evidence=x.evidence,
        )
        if self.function.status == "exact":
            return out
        return out.note(Status.QUADRATURE, f"{self.function.name} has no closed form")

    def _pairs(self, x: Signal, made: Kernel) -> dict[str, Tensor | float]:
        """Fluctuation of pairs: fresh channels (see `pairs`), and the square of `E[f' f'] a_x / a_y` of the input's.

        `a` is the mean square of the differences between tokens, the slope is taken at the average pair.
        """
        if x.kernel.tokens < 2:
            return {"pair_fluctuation": x.pair_fluctuation, "pair_inherited": x.pair_inherited}
        covariance = x.covariance
        level, mean = covariance.token_average(covariance.diagonal), covariance.token_average(x.mean)
        pair = torch.minimum(covariance.pair_average().clamp_min(0.0), level)
        slope = self.function.derivative_cross_moment(level, level, pair, mean, mean)
        passed = (slope * _apart(covariance) / _apart(made)) ** 2
        fresh = fresh_fluctuation(self.function, pair, level - pair, mean)
        return {
            "pair_fluctuation": fresh + (x.pair_fluctuation - 1.0) * passed,
            "pair_inherited": x.pair_inherited * passed,
        }

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        slopes = self.function.derivative_cross_moment(*self._arguments(inputs[0]))
        kernel = gradient.kernel.like(gradient.kernel.values * slopes)
        made = Gradient(kernel, evidence=gradient.evidence, gates=(Gate(gradient.kernel, kernel, self.function),))
        return (self._tilted(made, gradient.tilt, slopes, output, *inputs),)

    def _tilted(
        self, made: Gradient, tilt: Tensor | float, slopes: Tensor, output: Signal, *inputs: Signal
    ) -> Gradient:
        if not isinstance(tilt, Tensor):
            return made
        (x,) = inputs
        own, variance = diagonal(tilt), x.covariance.diagonal
        square = self.function.half_square_slope
        if float((own**2 * output.kernel.diagonal).mean()) > SMALL * float(made.energy()):
            joint = square.cross_moment(*self._arguments(x)) - output.kernel.values * slopes
            made = replace(made, kernel=made.kernel.like(made.kernel.values + own[:, None] * joint * own))
        kept = own * square.derivative_mean(variance, x.mean)
        if tilt.ndim > 1:
            slope = self.function.derivative_mean(variance, x.mean)
            kept = (slope[:, None] * tilt * slope).diagonal_scatter(kept)
        return replace(made, tilt=kept)


def _apart(kernel: Kernel) -> Tensor:
    """Mean square of the differences between tokens, not below what rounding leaves of them."""
    floor = ROUNDING * kernel.token_average(kernel.diagonal) + torch.finfo(torch.float64).tiny
    return torch.maximum(kernel.apart(), floor)
