r"""A tensor with infinitely many channels, at every input at once, and what each op does to it.

With K the NNGP kernel (the average over channels of x_c x'_c), m the mean over channels, and Theta the tangent kernel:

    linear        K' = s K + b,  Theta' = s Theta + (what its own weights add),  s = fan_in Var W,  b = Var bias
    activation    K' = E f(u) f(v),  Theta' = Theta E f'(u) f'(v),  (u, v) Gaussian with mean m and covariance K - m m'
    sum           K' = K_1 + K_2 + m_1 m_2' + m_2 m_1',  Theta' = Theta_1 + Theta_2, of operands that share no weights
    norm          K' = C / sqrt(C_11 C_22),  Theta' = Theta / sqrt(C_11 C_22),  C = K - m m' (LayerNorm) or K (RMSNorm)

A linear layer adds `s K + b` in the NTK parametrization (weights and biases of variance one, scaled in the forward
pass) and `fan_in K + 1` in the standard one; a gain adds K', a shift 1. References: Lee et al. 2018; Jacot et al. 2018;
Novak et al. 2020.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.errors import UnsupportedError
from sigprop.theory.activations import ActivationFunction

_NUMBERS = itertools.count()


@dataclass(frozen=True)
class WideSignal:
    """Kernel, mean and tangent kernel of a tensor, the weights that it depends on, and the numbers of an input."""

    kernel: Tensor
    mean: Tensor
    tangent_kernel: Tensor
    sources: frozenset[int]
    gaussian: bool
    values: Tensor | None = None

    @classmethod
    def of_values(cls, values: Tensor) -> WideSignal:
        """An input (rows by features), known exactly."""
        kernel = values @ values.T / values.shape[1]
        return cls(kernel, values.mean(1), torch.zeros_like(kernel), frozenset(), False, values)

    @property
    def covariance(self) -> Tensor:
        return self.kernel - self.mean[:, None] * self.mean


@dataclass(frozen=True)
class Readout:
    """What a linear layer is at infinite width: `fan_in Var W`, `Var bias`, and what training its weights adds to the
    tangent kernel, as factors of K and of one."""

    weight: float
    bias: float
    trained: tuple[float, float]


def linear(x: WideSignal, layer: Readout) -> WideSignal:
    kernel = layer.weight * x.kernel + layer.bias
    tangent = layer.weight * x.tangent_kernel + layer.trained[0] * x.kernel + layer.trained[1]
    return WideSignal(kernel, torch.zeros_like(x.mean), tangent, frozenset({next(_NUMBERS)}), True)


def activation(x: WideSignal, function: ActivationFunction) -> WideSignal:
    if not x.gaussian:
        raise UnsupportedError(
            f"{function.name or 'a function'} of what is not a Gaussian sum of many weights has no kernel of its own: "
            "put a linear layer before it"
        )
    covariance = x.covariance
    variance = covariance.diagonal()
    given = (variance[:, None], variance[None, :], covariance, x.mean[:, None], x.mean[None, :])
    kernel = function.cross_moment(*given)
    slopes = function.derivative_cross_moment(*given)
    mean = function.mean(variance, x.mean)
    kernel = _with_diagonal(kernel, function.second_moment(variance, x.mean))
    slopes = _with_diagonal(slopes, function.derivative_second_moment(variance, x.mean))
    return WideSignal(kernel, mean, x.tangent_kernel * slopes, x.sources, False)


def added(x: WideSignal, y: WideSignal) -> WideSignal:
    if x.sources & y.sources:
        raise UnsupportedError(
            "a sum of two tensors that depend on the same last weights, as x + relu(x), is not followed: "
            "end one branch in a linear layer of its own"
        )
    cross = x.mean[:, None] * y.mean
    return WideSignal(
        x.kernel + y.kernel + cross + cross.T,
        x.mean + y.mean,
        x.tangent_kernel + y.tangent_kernel,
        x.sources | y.sources,
        x.gaussian and y.gaussian,
    )


def scaled(x: WideSignal, factor: float) -> WideSignal:
    if x.values is not None:
        return WideSignal.of_values(factor * x.values)
    return replace(x, kernel=factor**2 * x.kernel, mean=factor * x.mean, tangent_kernel=factor**2 * x.tangent_kernel)


def shifted(x: WideSignal, by: float) -> WideSignal:
    if x.values is not None:
        return WideSignal.of_values(x.values + by)
    return replace(x, kernel=x.kernel + by * (x.mean[:, None] + x.mean) + by**2, mean=x.mean + by)


def normalized(x: WideSignal, centred: bool, eps: float, gain: bool, shift: bool) -> WideSignal:
    """LayerNorm (centred) or RMSNorm; `gain` and `shift` say whether they are trained, at one and zero."""
    kernel = x.covariance if centred else x.kernel
    size = (kernel.diagonal() + eps).sqrt()
    scale = size[:, None] * size
    made = kernel / scale
    tangent = x.tangent_kernel / scale + gain * made + float(shift)
    mean = torch.zeros_like(x.mean) if centred else x.mean / size
    return WideSignal(made, mean, tangent, x.sources, x.gaussian)


def _with_diagonal(matrix: Tensor, diagonal: Tensor) -> Tensor:
    made = matrix.clone()
    made.diagonal().copy_(diagonal)
    return made
