"""Maps over the token axis, the same for every channel (MLP-Mixer)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.theory.carries import TRANSFORMED, Carries, ended
from sigprop.theory.gradient_along_signal import applied, diagonal
from sigprop.theory.kernels import Dense, Exchangeable, Kernel
from sigprop.theory.ops.base import Law, Op, ParameterState
from sigprop.theory.parts import AlongSignal
from sigprop.theory.states import Gradient, Signal
from sigprop.theory.status import Status


@dataclass(frozen=True)
class TokenMixing(Op):
    """`y_s = sum_t W_st x_t + b_s`, `Var W = variance`.

    Forward   `K_y[s,s] = variance * sum_t K_x[t,t] + bias_variance`, `K_y[s,s'] = 0`
    Backward  `G_x[t,t] = variance * sum_s G_y[s,s]`, different tokens 0
    Weights   `E[(dL/dW_st)^2] = width * G_y[s,s] K_x[t,t]` (plus the product of means over channels), averaged

    In expectation over W. But W is one matrix for all channels, so in one network its fluctuations do not average out:
    outputs are correlated with random signs, their strengths differ, and a norm then multiplies the gradient by
    `E 1/s^2 > 1/E s^2`. With a `seed` and a dense kernel W and b are therefore drawn:

    Forward   `K_y = W K_x W^T` about the means, mean `W m + b`
    Backward  `G_x = W^T G_y W`
    """

    carries = Carries(
        fluctuation=ended("averaged over the matrix, tokens are mixed afresh"),
        common=ended("averaged over the matrix, tokens are mixed afresh"),
        directions=ended("averaged over the matrix, tokens are mixed afresh"),
        along_signal=TRANSFORMED,
        through_activation=ended("tokens of one channel are summed with random signs"),
    )

    tokens_in: int
    tokens_out: int
    variance: Tensor | float
    bias_variance: Tensor | float | None = None
    seed: int | None = None

    def draw(self) -> tuple[Tensor, Tensor]:
        """W and b of this seed."""
        generator = torch.Generator().manual_seed(self.seed or 0)
        weight = torch.randn(self.tokens_out, self.tokens_in, generator=generator, dtype=torch.float64)
        bias = torch.randn(self.tokens_out, generator=generator, dtype=torch.float64)
        scales = (torch.as_tensor(v or 0.0, dtype=torch.float64).sqrt() for v in (self.variance, self.bias_variance))
        return next(scales) * weight, next(scales) * bias

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        if self.seed is not None and isinstance(x.kernel, Dense):
            weight, bias = self.draw()
            mean = x.mean @ weight.T + bias
            values = weight @ x.covariance.values @ weight.T + mean[..., :, None] * mean[..., None, :]
            return self.carries.signal(x, Dense(values), mean).note(Status.SAMPLED, "map over tokens drawn")
        level = self.variance * self.tokens_in * x.kernel.token_average(x.kernel.diagonal)
        if self.bias_variance is not None:
            level = level + self.bias_variance
        kernel = _diagonal(x.kernel, level, self.tokens_out)
        return self.carries.signal(x, kernel, torch.zeros_like(kernel.diagonal))

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        if self.seed is not None and isinstance(gradient.kernel, Dense):
            weight, _ = self.draw()
            return (self._passed(gradient, Dense(weight.T @ gradient.kernel.values @ weight), weight),)
        level = self.variance * self.tokens_out * gradient.energy()
        return (self._passed(gradient, _diagonal(gradient.kernel, level, self.tokens_in), None),)

    def _passed(self, gradient: Gradient, kernel: Kernel, weight: Tensor | None) -> Gradient:
        """`W^T B W`, drawn or on average."""
        slope = gradient.along_signal.slope
        if isinstance(slope, Tensor) and weight is not None:
            slope = weight.T @ applied(slope, weight)
        elif isinstance(slope, Tensor):
            slope = self.variance * diagonal(slope).sum() * torch.ones(self.tokens_in, dtype=slope.dtype)
        return self.carries.gradient(gradient, kernel, along_signal=AlongSignal(slope))

    def with_law(self, parameter: str, law: Law) -> TokenMixing:
        if parameter == "weight":
            return replace(self, variance=law.variance)
        return replace(self, bias_variance=law.second_moment)

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        (x,) = inputs
        weight = x.width * gradient.energy() * x.kernel.token_average(x.kernel.diagonal)
        shape = (self.tokens_out, self.tokens_in)
        found = [ParameterState("weight", shape, "hidden", self.variance, weight)]
        if self.bias_variance is not None:
            bias = x.width * gradient.energy()
            found.append(ParameterState("bias", (self.tokens_out,), "bias", self.bias_variance, bias))
        return found


def _diagonal(kernel: Kernel, level: Tensor, tokens: int) -> Kernel:
    if isinstance(kernel, Exchangeable):
        return Exchangeable.of(level, torch.zeros_like(level), tokens)
    eye = torch.eye(tokens, dtype=kernel.values.dtype, device=kernel.values.device)
    return Dense(level[..., None, None] * eye)
