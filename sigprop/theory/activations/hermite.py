"""E f(x) f(y) for any function: the Hermite (Mehler) series in the correlation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from sigprop.theory.activations.gaussian import correlation, unit_gauss_legendre
from sigprop.theory.activations.quadrature import Few, Function, few, fixed_rule, rule, samples

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

    def spread(self, nodes: Few, shape: torch.Size) -> Series:
        """At all settings that a few stand for."""
        coefficients, rest, power = (nodes.spread(t, shape) for t in (self.coefficients, self.rest, self.power))
        return Series(coefficients, rest.clamp_min(0.0), power)


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
    nodes = few(variance, mean)
    if nodes is not None:
        return _series(function, derivative, nodes.variance, nodes.mean, kinks).spread(nodes, variance.shape)
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
