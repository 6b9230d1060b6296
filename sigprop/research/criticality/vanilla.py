"""No normalization: the kernel follows a nonlinear map of its own."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from sigprop.research.criticality.base import Architecture, Number
from sigprop.research.criticality.fixed_points import reached
from sigprop.theory.activations.gaussian import as_double

_CEILING = 1e12  # stands for an infinite kernel in the moments


class Vanilla(Architecture):
    """K' = sigma_w^2 E phi^2 + sigma_b^2 + mu^2 K,  chi_J = sigma_w^2 E phi'^2 + mu^2 at h ~ N(0, K)."""

    norm: ClassVar[str] = "none"

    def step(self, kernel: Number, sigma_w: Number, sigma_b: Number) -> Tensor:
        kernel, sigma_w, sigma_b = as_double(kernel, sigma_w, sigma_b)
        return sigma_w**2 * self.square(kernel) + sigma_b**2 + self.residual**2 * kernel

    def jacobian(self, kernel: Number, sigma_w: Number, sigma_b: Number) -> Tensor:
        kernel, sigma_w, sigma_b = as_double(kernel, sigma_w, sigma_b)
        factor = self.slope_square(kernel.clamp(max=_CEILING))
        return sigma_w**2 * factor + self.residual**2 + torch.zeros_like(sigma_b)

    def fixed_point(self, sigma_w: Number, sigma_b: Number, start: Number | None = None) -> Tensor:
        """The first fixed point on the way up or down from `start` (default: unit inputs, sigma_w^2 + sigma_b^2)."""
        weight, bias = torch.broadcast_tensors(*(t**2 for t in as_double(sigma_w, sigma_b)))
        (begin,) = as_double(weight + bias if start is None else start)
        flat = (t.expand(weight.shape).flatten() for t in (weight, bias, begin))
        return reached(self.square, *flat, keep=self.keep).reshape(weight.shape)

    def critical_at(self, kernel: Tensor) -> tuple[Tensor, Tensor]:
        """(sigma_w^2, sigma_b^2) at which `kernel` is a fixed point with chi_J = 1; the latter may be negative."""
        ratio = 1 / self.slope_square(kernel)
        return self.keep * ratio, self.keep * (kernel - self.square(kernel) * ratio)
