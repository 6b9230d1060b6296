"""Gaussian expectations of any elementwise function of one variable, by Gauss-Legendre panels.

Panels are graded towards the origin, where activations have their structure, and cut at kinks, so that a
sharp function (large variance) and a kinked one integrate as well as a smooth one. Stated accuracy: relative
1e-12 at variance 1e-3 to 1e3 for functions whose structure is not finer than that of tanh.

E f(x) f(y) for any function: the Hermite (Mehler) series in the correlation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from sigprop.errors import InputError
from sigprop.theory.activations.gaussian import SQRT_TWO_PI, correlation, unit_gauss_legendre

Function = Callable[[Tensor], Tensor]

_ORDER = 10
_REACH = 12.0  # standard deviations; the Hermite coefficients need sqrt(density) to vanish there
_GRADED = (0.006, 0.02, 0.06, 0.18, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.5, 10.0, _REACH)
_EVEN = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.5, 10.0, _REACH)
_SHARP = 1e4  # variance above which the graded panels no longer resolve the origin
_STRUCTURE = (0.5, 1.5, 4.0, 10.0, 30.0)  # distances from the origin between which activations are simple


@cache
def _legendre() -> tuple[Tensor, Tensor]:
    nodes, weights = np.polynomial.legendre.leggauss(_ORDER)
    return torch.from_numpy(nodes), torch.from_numpy(weights)


def _mirrored(points: tuple[float, ...]) -> list[float]:
    return [-p for p in reversed(points)] + [0.0, *points]


def _rule(edges: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes z and weights (density included) of the panels between sorted edges [..., p] -> [..., n]."""
    nodes, weights = (t.to(edges.device) for t in _legendre())
    half = (edges[..., 1:] - edges[..., :-1]).unsqueeze(-1) / 2
    middle = (edges[..., 1:] + edges[..., :-1]).unsqueeze(-1) / 2
    z = (middle + half * nodes).flatten(-2)
    w = (half * weights).flatten(-2)
    return z, w * torch.exp(-0.5 * z * z) / SQRT_TWO_PI


@cache
def fixed_rule(device: torch.device) -> tuple[Tensor, Tensor]:
    """The grid that serves centred inputs of moderate variance."""
    return _rule(torch.tensor(_mirrored(_GRADED), dtype=torch.float64, device=device))


def rule(variance: Tensor, mean: Tensor, kinks: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Standard normal nodes and weights, [n] where one grid serves all settings, else [..., n]."""
    sharp = bool(torch.any(variance > _SHARP))
    if all(k == 0 for k in kinks) and not sharp and not torch.any(mean):
        return fixed_rule(variance.device)
    variance, mean = torch.broadcast_tensors(variance, mean)
    places = torch.tensor([*_mirrored(_STRUCTURE), *kinks], dtype=torch.float64, device=variance.device)
    deviation = torch.sqrt(variance.clamp(min=1e-300)).unsqueeze(-1)
    moving = ((places - mean.unsqueeze(-1)) / deviation).clamp(-_REACH, _REACH)
    fixed = torch.tensor(_mirrored(_EVEN), dtype=torch.float64, device=variance.device)
    edges = torch.cat([moving, fixed.expand(*moving.shape[:-1], -1)], dim=-1)
    return _rule(edges.sort(dim=-1).values)


def samples(function: Function, variance: Tensor, mean: Tensor, z: Tensor) -> Tensor:
    """f(m + s z) at the nodes, [..., n]."""
    deviation = torch.sqrt(variance.clamp(min=1e-300)).unsqueeze(-1)
    return function(mean.unsqueeze(-1) + deviation * z)


def expectation(function: Function, variance: Tensor, mean: Tensor, kinks: tuple[float, ...]) -> Tensor:
    """E f(x), x ~ N(mean, variance)."""
    variance, mean = torch.broadcast_tensors(variance, mean)
    z, w = rule(variance, mean, kinks)
    terms = samples(function, variance, mean, z) * w
    total = terms.sum(-1)
    _refuse_divergence(terms, total, variance)
    return total


def _refuse_divergence(terms: Tensor, total: Tensor, variance: Tensor) -> None:
    """The outermost panels lie beyond 10 standard deviations: anything of weight there is divergence."""
    edge = terms[..., :_ORDER].abs().sum(-1) + terms[..., -_ORDER:].abs().sum(-1)
    bad = ~torch.isfinite(total) | (edge > 1e-8 * terms.abs().sum(-1))
    if torch.any(bad):
        where = variance.expand(bad.shape)[bad].flatten()[0].item()
        raise InputError(
            f"the activation's Gaussian moment at variance {where:.4g} diverges or lies beyond the reach of "
            "quadrature: use a smaller variance, or an activation that grows more slowly"
        )


# -- E f(x) f(y) for any function: the Hermite (Mehler) series in the correlation


TERMS = 96
ROUNDING = 1e-17
FEW_PAIRS = 256
_LAST = 16  # terms from which the sign and the coherence of the unresolved rest are read


@dataclass
class Series:
    """f(m + s z) = sum_k c_k he_k(z), he_k orthonormal under the standard normal."""

    coefficients: Tensor  # [TERMS, ...]
    rest: Tensor  # E f^2 - sum_k c_k^2: what the terms leave out
    power: Tensor  # the power of rho that stands for the rest

    def reshape(self, shape: torch.Size) -> Series:
        return Series(self.coefficients.reshape(TERMS, *shape), self.rest.reshape(shape), self.power.reshape(shape))


def cross_moment(
    function: Function,
    derivative: Function | None,
    variance_x: Tensor,
    variance_y: Tensor,
    covariance: Tensor,
    mean_x: Tensor,
    mean_y: Tensor,
    kinks: tuple[float, ...],
    other: Function | None = None,
) -> Tensor:
    """E f(x) f(y) = sum_k c_k(x) c_k(y) rho^k, TERMS terms and an estimate of the rest; `other` in place of f(y).

    The coefficients are per token, so a T x T kernel costs T quadratures and TERMS elementwise steps. At
    rho = 1 the rest is known by Parseval, sum c_k^2 = E f^2, and so is its slope, sum k c_k^2 = v E f'^2: a
    single power of rho that has both stands for it. A function that jumps (`derivative` None) has
    c_k^2 ~ k^(-3/2) instead.

    Error relative to sqrt(E f(x)^2 E f(y)^2): see docs/reference/activations.md; machine precision for |rho| <= 0.7,
    and for smooth functions at any correlation while the variance is at most 1.
    """
    rho = correlation(variance_x, variance_y, covariance)
    variance_x, mean_x = torch.broadcast_tensors(variance_x, mean_x)
    variance_y, mean_y = torch.broadcast_tensors(variance_y, mean_y)
    x = _series(function, derivative, variance_x, mean_x, kinks)
    same = other is None and _equal_in_order(variance_x, variance_y) and _equal_in_order(mean_x, mean_y)
    y = x.reshape(variance_y.shape) if same else _series(other or function, derivative, variance_y, mean_y, kinks)
    return _summed(x, y, rho, _rest(x, y, rho, jumps=derivative is None))


def _summed(x: Series, y: Series, rho: Tensor, rest: Tensor) -> Tensor:
    """sum_k c_k(x) c_k(y) rho^k + rest rho^TERMS: all terms at once for a few pairs, else by Horner's rule."""
    orders = _significant(x, y)
    if rho.numel() <= FEW_PAIRS:
        powers = torch.tensor(orders, dtype=rho.dtype, device=rho.device).view(-1, *[1] * rho.dim())
        return (_padded(x, orders, rho) * _padded(y, orders, rho) * rho**powers).sum(0) + rest * rho**TERMS
    total, power = rest, TERMS
    steps = {1: rho, 2: rho * rho}
    for k in reversed(orders):
        step = steps.get(power - k)
        step = rho ** (power - k) if step is None else step
        total, power = torch.addcmul(x.coefficients[k] * y.coefficients[k], total, step), k
    return total * rho**power if power else total


def _padded(series: Series, orders: list[int], rho: Tensor) -> Tensor:
    """The coefficients of some orders, broadcast to the pairs."""
    chosen = series.coefficients[orders]
    return chosen.view(len(orders), *[1] * (rho.dim() - chosen.dim() + 1), *chosen.shape[1:])


def _significant(x: Series, y: Series) -> list[int]:
    """The orders that matter: all others add less than rounding, whatever the correlation."""
    if torch.any(x.rest) or torch.any(y.rest):
        return list(range(TERMS))
    first, second = (_largest(series.coefficients.detach().reshape(TERMS, -1)) for series in (x, y))
    return torch.nonzero(first * second > ROUNDING / TERMS).flatten().tolist()


def _largest(coefficients: Tensor) -> Tensor:
    """Of each order, the largest coefficient of any setting, relative to the norm of its series."""
    return (coefficients.abs() / coefficients.norm(dim=0).clamp(min=1e-300)).amax(1)


def _equal_in_order(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.numel() == b.numel() and torch.equal(a.flatten(), b.flatten()))


def _series(
    function: Function, derivative: Function | None, variance: Tensor, mean: Tensor, kinks: tuple[float, ...]
) -> Series:
    z, w = rule(variance, mean, kinks)
    values = samples(function, variance, mean, z)
    c = _project(values, z, w)
    second_moment = (values * values * w).sum(-1)
    rest = second_moment - (c * c).sum(0)
    resolved = rest <= 1e-13 * second_moment
    power = torch.full_like(rest, float(TERMS))
    if derivative is not None and not torch.all(resolved):
        orders = torch.arange(TERMS, dtype=c.dtype, device=c.device).view(-1, *[1] * (c.dim() - 1))
        slope = variance * (samples(derivative, variance, mean, z) ** 2 * w).sum(-1) - (orders * c * c).sum(0)
        power = (slope / torch.where(resolved, 1.0, rest)).detach().clamp(TERMS, 1e4)
    return Series(c, torch.where(resolved, 0.0, rest), power)


def _project(values: Tensor, z: Tensor, w: Tensor) -> Tensor:
    """c_k = E[f(m + s z) he_k(z)] for k < TERMS: [..., n] -> [TERMS, ...]."""
    if z is fixed_rule(z.device)[0]:
        return (values @ _fixed_basis(z.device)).movedim(-1, 0)
    if z.dim() == 1:
        return (values @ torch.stack(list(_weighted_basis(z, w)), dim=1)).movedim(-1, 0)
    return torch.stack([(values * basis).sum(-1) for basis in _weighted_basis(z, w)])


@cache
def _fixed_basis(device: torch.device) -> Tensor:
    return torch.stack(list(_weighted_basis(*fixed_rule(device))), dim=1)


def _weighted_basis(z: Tensor, w: Tensor) -> Iterator[Tensor]:
    """w he_0(z), w he_1(z), ... by the three-term recursion."""
    before, basis = torch.zeros_like(z), w
    for k in range(TERMS):
        yield basis
        before, basis = basis, (z * basis - k**0.5 * before) / (k + 1) ** 0.5


def _rest(x: Series, y: Series, rho: Tensor, jumps: bool) -> Tensor:
    """What the terms leave out, divided by rho^TERMS.

    Even and odd orders may weigh differently (which matters at rho < 0) and the coefficients of two tokens may
    be out of step; both are read off the last terms.
    """
    if not (torch.any(x.rest) and torch.any(y.rest)):
        return torch.zeros_like(rho)
    left, right = x.coefficients[-_LAST:], y.coefficients[-_LAST:]
    norm = torch.sqrt((left * left).sum(0) * (right * right).sum(0)).clamp(min=1e-300)
    even, odd = (sum(left[k] * right[k] for k in range(start, _LAST, 2)) / norm for start in (0, 1))
    size = torch.sqrt(x.rest * y.rest) * (even + torch.where(rho < 0, -odd, odd))
    logarithm = torch.log(rho.abs().clamp(min=1e-300))
    if not jumps:
        return size * torch.exp((0.5 * (x.power + y.power) - TERMS) * logarithm)
    nodes, weights = unit_gauss_legendre(8)
    return size * sum(
        weight * torch.exp((TERMS / node**2 - TERMS) * logarithm)
        for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True)
    )
