"""Roots of scalar maps over a wide range, without guesses: which fixed points exist, and which one is reached."""

from __future__ import annotations

from collections.abc import Callable

import torch
from scipy.optimize import minimize_scalar, root_scalar
from torch import Tensor

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
