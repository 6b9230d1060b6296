"""LayerNorm before or after the activation."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from sigprop.research.criticality.base import Architecture, Number
from sigprop.theory.activations.gaussian import as_double

_CEILING = 1e12
_FLOOR = 1e-18


class PreactivationNorm(Architecture):
    """LayerNorm on pre-activations (pre-LN): phi sees N(0, 1).

    K' = sigma_w^2 E phi^2 + sigma_b^2 + mu^2 K,  chi_J = sigma_w^2 E phi'^2 / K + mu^2
    (Doshi, He, Gromov 2023, eqs. 20 and 22). At the fixed point chi_J = (1 - mu^2) A / B + mu^2 with
    A = sigma_w^2 E phi'^2, B = sigma_w^2 E phi^2 + sigma_b^2.
    """

    norm: ClassVar[str] = "preactivation"

    def step(self, kernel: Number, sigma_w: Number, sigma_b: Number) -> Tensor:
        kernel, sigma_w, sigma_b = as_double(kernel, sigma_w, sigma_b)
        return sigma_w**2 * self.unit_square + sigma_b**2 + self.residual**2 * kernel

    def jacobian(self, kernel: Number, sigma_w: Number, sigma_b: Number) -> Tensor:
        kernel, sigma_w, sigma_b = as_double(kernel, sigma_w, sigma_b)
        factor = sigma_w**2 * self.unit_slope_square / kernel.clamp(min=_FLOOR)
        return factor + self.residual**2 + torch.zeros_like(sigma_b)

    def ray(self) -> float | None:
        """sigma_b / sigma_w on the critical line, whatever mu < 1; None where no bias is small enough."""
        square = (self.unit_slope_square - self.unit_square).item()
        return None if square < -1e-12 else max(square, 0.0) ** 0.5


class ActivationNorm(Architecture):
    """LayerNorm on activations: W sees unit variance.

    K' = sigma_w^2 + sigma_b^2 + mu^2 K,  chi_J = sigma_w^2 E phi'^2 / Var phi + mu^2 at h ~ N(0, K).
    """

    norm: ClassVar[str] = "activation"

    def step(self, kernel: Number, sigma_w: Number, sigma_b: Number) -> Tensor:
        kernel, sigma_w, sigma_b = as_double(kernel, sigma_w, sigma_b)
        return sigma_w**2 + sigma_b**2 + self.residual**2 * kernel

    def jacobian(self, kernel: Number, sigma_w: Number, sigma_b: Number) -> Tensor:
        kernel, sigma_w, sigma_b = as_double(kernel, sigma_w, sigma_b)
        kernel = kernel.clamp(_FLOOR, _CEILING)
        factor = sigma_w**2 * self.slope_square(kernel) / self.spread(kernel)
        return factor + self.residual**2 + torch.zeros_like(sigma_b)

    def critical_at(self, kernel: Tensor) -> tuple[Tensor, Tensor]:
        """(sigma_w^2, sigma_b^2) at which `kernel` is a fixed point with chi_J = 1; the latter may be negative."""
        weight = self.keep * self.spread(kernel) / self.slope_square(kernel)
        return weight, self.keep * kernel - weight
