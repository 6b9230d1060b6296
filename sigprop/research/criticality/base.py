"""What the theory needs to know about one repeated layer: how it moves the kernel and the Jacobian."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from sigprop.errors import require
from sigprop.theory.activations import ActivationFunction
from sigprop.theory.activations.gaussian import as_double

Number = Tensor | float


@dataclass(frozen=True)
class Architecture(ABC):
    """h <- W phi(h) + b + mu h, Var W = sigma_w^2 / N, Var b = sigma_b^2, at infinite width.

    The kernel K = E h^2 follows K' = step(K); the averaged partial Jacobian norm is multiplied by
    chi_J = jacobian(K) per layer; chi_K = dK'/dK is `kernel_slope` (Doshi, He, Gromov 2023, eqs. 9 to 12).
    All arguments broadcast: a whole (sigma_w, sigma_b) grid is one call.
    """

    activation: ActivationFunction
    residual: float = 0.0

    norm: ClassVar[str]

    def __post_init__(self) -> None:
        require(0 <= self.residual <= 1, "residual", self.residual, "a strength between 0 and 1")

    @abstractmethod
    def step(self, kernel: Number, sigma_w: Number, sigma_b: Number) -> Tensor:
        """The kernel one layer on."""

    @abstractmethod
    def jacobian(self, kernel: Number, sigma_w: Number, sigma_b: Number) -> Tensor:
        """chi_J at this kernel."""

    def kernel_slope(self, kernel: Number, sigma_w: Number, sigma_b: Number) -> Tensor:
        """chi_K = dK'/dK."""
        return derivative(lambda k: self.step(k, sigma_w, sigma_b), kernel)

    def fixed_point(self, sigma_w: Number, sigma_b: Number, start: Number | None = None) -> Tensor:
        """The kernel K* reached at infinite depth, `inf` where it grows without bound.

        A norm makes the step affine in K with slope mu^2, so K* does not depend on where it starts.
        """
        offset = self.step(0.0, sigma_w, sigma_b)
        keep = self.keep
        return offset / keep if keep else torch.where(offset > 0, torch.inf, 0.0)

    @property
    def keep(self) -> float:
        """1 - mu^2: what the residual leaves to the branch."""
        return 1 - self.residual**2

    @cached_property
    def unit_square(self) -> Tensor:
        """E phi^2 at unit variance, what a network with a norm before the activation needs."""
        return self.square(torch.ones((), dtype=torch.float64))

    @cached_property
    def unit_slope_square(self) -> Tensor:
        """E phi'^2 at unit variance."""
        return self.slope_square(torch.ones((), dtype=torch.float64))

    def square(self, kernel: Tensor) -> Tensor:
        """E phi^2."""
        return self.activation.second_moment(kernel)

    def slope_square(self, kernel: Tensor) -> Tensor:
        """E phi'^2."""
        return self.activation.derivative_second_moment(kernel)

    def spread(self, kernel: Tensor) -> Tensor:
        """Var phi."""
        return self.activation.second_moment(kernel) - self.activation.mean(kernel) ** 2


def derivative(function: Callable[[Tensor], Tensor], kernel: Number) -> Tensor:
    """d function / d kernel, elementwise, by autograd."""
    (leaf,) = as_double(kernel)
    leaf = leaf.detach().clone().requires_grad_()
    with torch.enable_grad():
        value = function(leaf)
        if not value.requires_grad:
            return torch.zeros_like(value)
        return torch.autograd.grad(value.sum(), leaf)[0]


def correlation_length(jacobian: Number) -> Tensor:
    """xi = 1 / |log chi_J|: the depth over which gradients change by e."""
    (value,) = as_double(jacobian)
    return 1 / torch.log(value).abs()
