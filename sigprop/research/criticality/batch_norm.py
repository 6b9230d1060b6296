"""BatchNorm at large batch, one or more stages per residual block."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from sigprop.errors import require
from sigprop.research.criticality.base import Architecture, Number
from sigprop.theory.activations.gaussian import as_double


@dataclass(frozen=True)
class BatchNormStack(Architecture):
    """Blocks of m stages (BatchNorm, phi, linear) around a residual of strength mu.

    The kernel here is K(x, x) - K(x, x'), what BatchNorm divides by; biases cancel in it. At large batch the
    normalized pre-activations of two samples are independent, so one stage turns it into sigma_w^2 Var phi, and

        chi_J = (sigma_w^2 E phi'^2 / K) (E phi'^2 / Var phi)^(m - 1) + mu^2,

    at the fixed point (1 - mu^2) (E phi'^2 / Var phi)^m + mu^2: for ReLU (pi / (pi - 1))^m (1 - mu^2) + mu^2
    (Doshi, He, Gromov 2023, eqs. 24 to 26, where m = 2).
    """

    stages: int = 1

    norm: ClassVar[str] = "batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(isinstance(self.stages, int) and self.stages >= 1, "stages", self.stages, "a positive whole number")

    def step(self, kernel: Number, sigma_w: Number, sigma_b: Number) -> Tensor:
        kernel, sigma_w, sigma_b = as_double(kernel, sigma_w, sigma_b)
        return sigma_w**2 * self.unit_spread + self.residual**2 * kernel + torch.zeros_like(sigma_b)

    def jacobian(self, kernel: Number, sigma_w: Number, sigma_b: Number) -> Tensor:
        kernel, sigma_w, sigma_b = as_double(kernel, sigma_w, sigma_b)
        first = sigma_w**2 * self.unit_slope_square / kernel.clamp(min=1e-18)
        later = self.stage_factor() ** (self.stages - 1)
        return first * later + self.residual**2 + torch.zeros_like(sigma_b)

    @cached_property
    def unit_spread(self) -> Tensor:
        """Var phi at unit variance."""
        return self.spread(torch.ones((), dtype=torch.float64))

    def stage_factor(self) -> float:
        """E phi'^2 / Var phi at unit variance: what one stage does to the Jacobian."""
        return (self.unit_slope_square / self.unit_spread).item()
