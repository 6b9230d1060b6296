"""One repeated layer at infinite width: its kernel, its Jacobian factor, its fixed points; with and without norms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from scipy.optimize import minimize_scalar, root_scalar
from torch import Tensor

from sigprop.errors import require
from sigprop.theory.activations import ActivationFunction
from sigprop.theory.activations.gaussian import as_double

Map = Callable[[Tensor], Tensor]

_LOWEST, _HIGHEST, _POINTS = -14.0, 11.0, 1200  # decades of the kernel that are searched


def reached(square: Map, weight: Tensor, bias: Tensor, start: Tensor, keep: float) -> Tensor:
    """The fixed point of K' = weight E phi^2(K) + bias + (1 - keep) K that iteration from `start` ends in.

    E phi^2 grows with K, so the iteration is monotone and stops at the first zero of the excess
    weight E phi^2(K) + bias - keep K above the start (excess positive) or below it (negative); `inf` or 0 if
    there is none. All arguments are vectors of settings. The excess is tabulated once on a logarithmic grid.
    Where E phi^2 falls somewhere (a bump, say), the map is iterated instead; nan where it does not settle.
    """

    def excess(kernel: Tensor) -> Tensor:
        return weight * square(kernel) + bias - keep * kernel

    grid = torch.logspace(_LOWEST, _HIGHEST, _POINTS, dtype=torch.float64, device=weight.device)
    moments = square(grid)
    if torch.any(moments[1:] < moments[:-1] * (1 - 1e-9)):
        return _iterated(lambda kernel: excess(kernel) + kernel, start)
    table = weight[:, None] * moments + bias[:, None] - keep * grid
    first = excess(start)
    still = first.abs() <= 1e-13 * (start + bias)
    rising = first > 0
    ahead = torch.where(rising[:, None], grid > start[:, None], grid < start[:, None])
    crossed = ahead & torch.where(rising[:, None], table < 0, table > 0)
    exists = crossed.any(1)
    index = torch.where(rising, crossed.int().argmax(1), _POINTS - 1 - crossed.int().flip(1).argmax(1))
    beyond = grid[index]
    before = grid[(index - torch.where(rising, 1, -1)).clamp(0, _POINTS - 1)]
    near = torch.where(rising, torch.maximum(before, start), torch.minimum(before, start))
    found = _false_position(excess, torch.where(exists, near, start), torch.where(exists, beyond, start))
    end = torch.where(rising, torch.inf, 0.0)
    return torch.where(still, start, torch.where(exists, found, end))


def _iterated(step: Map, kernel: Tensor, steps: int = 400) -> Tensor:
    for _ in range(steps):
        before, kernel = kernel, step(kernel).clamp(max=10.0**_HIGHEST)
    kernel = torch.where(kernel >= 10.0**_HIGHEST, torch.inf, kernel)
    return torch.where((kernel - before).abs() > 1e-6 * kernel, torch.nan, kernel)


def _false_position(function: Map, a: Tensor, b: Tensor, steps: int = 30) -> Tensor:
    """Roots between a and b, elementwise, by the Illinois variant of false position."""
    fa, fb = function(a), function(b)
    for _ in range(steps):
        gap = fb - fa
        c = torch.where(gap == 0, b, b - fb * (b - a) / torch.where(gap == 0, 1.0, gap))
        fc = function(c)
        crossed = fc * fb < 0
        a, fa = torch.where(crossed, b, a), torch.where(crossed, fb, fa / 2)
        b, fb = c, fc
        if torch.all((fb.abs() <= 1e-15 * b.abs()) | ((b - a).abs() <= 1e-14 * b.abs())):
            break
    return b


def all_roots(function: Map, low: float = -8.0, high: float = 6.0, points: int = 1500) -> list[float]:
    """Every root on a logarithmic range (powers of ten), also where the function only touches zero.

    The function must be of order one where it is far from a root. An identically vanishing function gives [].
    """
    grid = torch.logspace(low, high, points, dtype=torch.float64)
    values = function(grid)
    if values.abs().max() < 1e-10:
        return []

    def at(kernel: float) -> float:
        return function(torch.tensor(kernel, dtype=torch.float64)).item()

    found = []
    for i in range(points - 1):
        if values[i] * values[i + 1] < 0:
            bracket = (grid[i].item(), grid[i + 1].item())
            found.append(float(root_scalar(at, bracket=bracket, xtol=1e-14, rtol=1e-14).root))
    size = values.abs()
    dips = (size[1:-1] < size[:-2]) & (size[1:-1] <= size[2:]) & (size[1:-1] < 1e-3)
    for i in (dips.nonzero().flatten() + 1).tolist():
        if values[i - 1] * values[i] > 0 and values[i] * values[i + 1] > 0:
            bounds = (grid[i - 1].item(), grid[i + 1].item())
            best = minimize_scalar(lambda k: abs(at(k)), bounds=bounds, method="bounded")
            if best.fun < 1e-11:
                found.append(float(best.x))
    return sorted(found)


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
    def branch(self, kernel: Tensor) -> Tensor:
        """What sigma_w^2 multiplies in the kernel one layer on."""

    @abstractmethod
    def slope(self, kernel: Tensor) -> Tensor:
        """What sigma_w^2 multiplies in chi_J at this kernel."""

    def step(self, kernel: Number, sigma_w: Number, sigma_b: Number) -> Tensor:
        """The kernel one layer on."""
        kernel, sigma_w, sigma_b = as_double(kernel, sigma_w, sigma_b)
        return sigma_w**2 * self.branch(kernel) + self.bias(sigma_b) + self.residual**2 * kernel

    def bias(self, sigma_b: Tensor) -> Tensor:
        """What biases add to the kernel."""
        return sigma_b**2

    def jacobian(self, kernel: Number, sigma_w: Number, sigma_b: Number) -> Tensor:
        """chi_J at this kernel."""
        kernel, sigma_w, sigma_b = as_double(kernel, sigma_w, sigma_b)
        return sigma_w**2 * self.slope(kernel) + self.residual**2 + torch.zeros_like(sigma_b)

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


_CEILING = 1e12
"""It stands for an infinite kernel in the moments."""


class Vanilla(Architecture):
    """K' = sigma_w^2 E phi^2 + sigma_b^2 + mu^2 K,  chi_J = sigma_w^2 E phi'^2 + mu^2 at h ~ N(0, K)."""

    norm: ClassVar[str] = "none"

    def branch(self, kernel: Tensor) -> Tensor:
        return self.square(kernel)

    def slope(self, kernel: Tensor) -> Tensor:
        return self.slope_square(kernel.clamp(max=_CEILING))

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


_FLOOR = 1e-18


class PreactivationNorm(Architecture):
    """LayerNorm on pre-activations (pre-LN): phi sees N(0, 1).

    K' = sigma_w^2 E phi^2 + sigma_b^2 + mu^2 K,  chi_J = sigma_w^2 E phi'^2 / K + mu^2
    (Doshi, He, Gromov 2023, eqs. 20 and 22). At the fixed point chi_J = (1 - mu^2) A / B + mu^2 with
    A = sigma_w^2 E phi'^2, B = sigma_w^2 E phi^2 + sigma_b^2.
    """

    norm: ClassVar[str] = "preactivation"

    def branch(self, kernel: Tensor) -> Tensor:
        return self.unit_square

    def slope(self, kernel: Tensor) -> Tensor:
        return self.unit_slope_square / kernel.clamp(min=_FLOOR)

    def ray(self) -> float | None:
        """sigma_b / sigma_w on the critical line, whatever mu < 1; None where no bias is small enough."""
        square = (self.unit_slope_square - self.unit_square).item()
        return None if square < -1e-12 else max(square, 0.0) ** 0.5


class ActivationNorm(Architecture):
    """LayerNorm on activations: W sees unit variance.

    K' = sigma_w^2 + sigma_b^2 + mu^2 K,  chi_J = sigma_w^2 E phi'^2 / Var phi + mu^2 at h ~ N(0, K).
    """

    norm: ClassVar[str] = "activation"

    def branch(self, kernel: Tensor) -> Tensor:
        return torch.ones_like(kernel)

    def slope(self, kernel: Tensor) -> Tensor:
        kernel = kernel.clamp(_FLOOR, _CEILING)
        return self.slope_square(kernel) / self.spread(kernel)

    def critical_at(self, kernel: Tensor) -> tuple[Tensor, Tensor]:
        """(sigma_w^2, sigma_b^2) at which `kernel` is a fixed point with chi_J = 1; the latter may be negative."""
        weight = self.keep * self.spread(kernel) / self.slope_square(kernel)
        return weight, self.keep * kernel - weight


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

    def branch(self, kernel: Tensor) -> Tensor:
        return self.unit_spread

    def bias(self, sigma_b: Tensor) -> Tensor:
        return torch.zeros_like(sigma_b)

    def slope(self, kernel: Tensor) -> Tensor:
        return self.unit_slope_square / kernel.clamp(min=_FLOOR) * self.stage_factor() ** (self.stages - 1)

    @cached_property
    def unit_spread(self) -> Tensor:
        """Var phi at unit variance."""
        return self.spread(torch.ones((), dtype=torch.float64))

    def stage_factor(self) -> float:
        """E phi'^2 / Var phi at unit variance: what one stage does to the Jacobian."""
        return (self.unit_slope_square / self.unit_spread).item()
