"""How kernel and Jacobian travel with depth: the exact recursion, and its laws where nothing settles (mu = 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sigprop.errors import require
from sigprop.research.criticality.base import Architecture, Number, derivative
from sigprop.research.criticality.batch_norm import BatchNormStack
from sigprop.research.criticality.layer_norm import PreactivationNorm
from sigprop.research.criticality.vanilla import Vanilla
from sigprop.theory.activations import ActivationFunction
from sigprop.theory.activations.gaussian import as_double


@dataclass(frozen=True)
class Trajectory:
    """Kernel K^l and factor chi_J^l at layers l = 1 .. depth (first axis), and the Jacobian J^{1,l}."""

    kernel: Tensor
    jacobian_factor: Tensor

    @property
    def jacobian(self) -> Tensor:
        """J^{1,l} = product of chi_J^1 .. chi_J^{l-1}."""
        ones = torch.ones_like(self.jacobian_factor[:1])
        return torch.cat([ones, torch.cumprod(self.jacobian_factor[:-1], 0)])


def trajectory(
    network: Architecture, sigma_w: Number, sigma_b: Number, depth: int, input_square: float = 1.0
) -> Trajectory:
    """Iterate from the first layer, K^1 = sigma_w^2 (mean square of the inputs) + sigma_b^2."""
    require(depth >= 1, "depth", depth, "at least one layer")
    sigma_w, sigma_b = torch.broadcast_tensors(*as_double(sigma_w, sigma_b))
    kernel = sigma_w**2 * input_square
    kernel = kernel if isinstance(network, BatchNormStack) else kernel + sigma_b**2
    kernels, factors = [], []
    for _ in range(depth):
        kernels.append(kernel)
        factors.append(network.jacobian(kernel, sigma_w, sigma_b))
        kernel = network.step(kernel, sigma_w, sigma_b)
    return Trajectory(torch.stack(kernels), torch.stack(factors))


def factor_at_depth(
    network: Architecture, sigma_w: Number, sigma_b: Number, depth: int, input_square: float = 1.0
) -> Tensor:
    """chi_J of the penultimate block of a network with `depth` layers: at h^{depth - 2}."""
    require(depth >= 3, "depth", depth, "at least three layers, to have a penultimate block")
    sigma_w, sigma_b = torch.broadcast_tensors(*as_double(sigma_w, sigma_b))
    kernel = sigma_w**2 * input_square
    kernel = kernel if isinstance(network, BatchNormStack) else kernel + sigma_b**2
    for _ in range(depth - 3):
        kernel = network.step(kernel, sigma_w, sigma_b)
    return network.jacobian(kernel, sigma_w, sigma_b)


def growth_exponent(network: Architecture, sigma_w: float, sigma_b: float) -> float:
    """With mu = 1 and a norm before the activation, J ~ l^g.

    The kernel grows by B per layer, so chi_J - 1 = A / (B l) and g = A / B, with A = sigma_w^2 E phi'^2 and
    B = sigma_w^2 E phi^2 + sigma_b^2 at unit variance; with BatchNorm (E phi'^2 / Var phi)^m.
    """
    require(network.keep == 0, "residual", network.residual, "mu = 1; below it the kernel settles")
    if isinstance(network, BatchNormStack):
        return network.stage_factor() ** network.stages
    require(isinstance(network, PreactivationNorm), "norm", network.norm, "'preactivation' or 'batch'")
    growth = network.step(0.0, sigma_w, sigma_b)
    return (network.jacobian(1.0, sigma_w, sigma_b).item() - 1) / growth.item()


def stretched_rate(network: Vanilla, sigma_w: float, sigma_b: float) -> float | None:
    """c in log J ~ 2 c sqrt(l): networks without norm, mu = 1, bounded activation. None if phi is not bounded.

    K grows by P = sigma_w^2 phi(inf)^2 + sigma_b^2 per layer and E phi'^2 -> d / sqrt(K), d = int phi'^2 dx /
    sqrt(2 pi); so chi_J = 1 + c / sqrt(l), c = sigma_w^2 d / sqrt(P). For erf c = 2 sigma_w^2 / (pi sqrt(sigma_w^2 +
    sigma_b^2)) (Doshi, He, Gromov 2023, theorem 4.3, where it is known for erf only).
    """
    require(network.keep == 0, "residual", network.residual, "mu = 1; below it the kernel settles")
    far = torch.tensor([1e8, 1e10], dtype=torch.float64)
    near, late = network.square(far).tolist()
    if late > 1.01 * near:
        return None
    plateau = (10 * late - near) / 9  # approached like 1 / sqrt(K)
    slopes = (network.slope_square(far) * far.sqrt()).tolist()
    return sigma_w**2 * slopes[1] / math.sqrt(sigma_w**2 * plateau + sigma_b**2)


def jacobian_from_input(
    activation: ActivationFunction, sigma_w: Number, sigma_b: Number, inputs: int, input_square: float = 1.0
) -> tuple[Tensor, Tensor]:
    """J^{0,2} of a network without norm, at finite input width N0, and its infinite-width value.

    J^{0,2} = sigma_w^2 [chi_J^1 + (2 sigma_w^2 / N0) chi_D q], chi_D = sigma_w^2 E[phi''^2 + phi''' phi'] =
    sigma_w^2 d E phi'^2 / dK at K^1 = sigma_w^2 q + sigma_b^2, q = mean square of the inputs: the first weights enter
    both the kernel and the Jacobian (Doshi, He, Gromov 2023, lemma D.1). Zero for scale-invariant phi.
    """
    require(inputs >= 1, "inputs", inputs, "at least one input")
    sigma_w, sigma_b = as_double(sigma_w, sigma_b)
    kernel = sigma_w**2 * input_square + sigma_b**2
    plain = sigma_w**2 * activation.derivative_second_moment(kernel)
    bend = sigma_w**2 * derivative(activation.derivative_second_moment, kernel)
    corrected = plain + 2 * sigma_w**2 / inputs * bend * input_square
    return sigma_w**2 * corrected, sigma_w**2 * plain
