"""Corrections of order depth over width and one over the batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from sigprop.errors import require
from sigprop.research.criticality.networks import BatchNormStack, Number, Vanilla
from sigprop.theory.activations import ActivationFunction, quadrature
from sigprop.theory.activations.gaussian import as_double


def batch_norm_factor(network: BatchNormStack, depth: int, width: int, batch: int, inputs: int | None = None) -> Tensor:
    """chi_J of the penultimate block of `depth` layers, on white-noise inputs; the same at every sigma_w and sigma_b.

    The first layer maps `inputs` values (default: the width) to the width; then follow blocks of m stages,
    K' = Var phi + mu^2 K in units of sigma_w^2. With f = phi'^2, a stage's normalization contributes

        chi = [E f (1 + 2r - 1/B) - E f x^2 / B + (e/8) E f He4] / (mean square before it)

    and every further stage in the block a factor 1 + `link`, because its normalization and slopes share the weights
    and samples of the stage before.
    """
    require(depth >= 3, "depth", depth, "at least three layers, to have a penultimate block")
    require(width >= 2, "width", width, "at least 2 channels")
    require(batch >= 3, "batch", batch, "at least 3 samples: two are spent on mean and variance")
    moments = _Moments(network.activation)
    blocks, share = depth - 2, width / (inputs or width)
    kernels = _kernels(network, blocks, lambda block: moments.variance)
    correlation = _spread(network, kernels, moments.correlation_response, moments.correlation_noise, 1.0, share)
    strength = _spread(network, kernels, moments.strength_response, moments.strength_noise, 2.0, share)
    r = 1 / batch + correlation / width
    excess = strength / width - 2 * r
    variance = moments.variance_at(correlation / width, excess, r, batch)
    kernel = _kernels(network, blocks, lambda block: variance[block, -1], first=1 - 1 / batch)[-1]
    factors = moments.slope_at(excess[-1], r[-1], batch) / torch.stack([kernel, *variance[-1, :-1]])
    links = 1 + moments.link(strength[-1, :-1], width, batch)
    return factors.prod() * links.prod() + network.residual**2


def _kernels(network: BatchNormStack, blocks: int, variance: Callable[[int], Tensor], first: float = 1.0) -> Tensor:
    """The mean square at the input of each block, in units of sigma_w^2."""
    found = [torch.tensor(first, dtype=torch.float64)]
    for block in range(blocks - 1):
        found.append(variance(block) + network.residual**2 * found[-1])
    return torch.stack(found)


def _spread(
    network: BatchNormStack,
    kernels: Tensor,
    response: Tensor,
    noise: Callable[[Tensor], Tensor],
    unit: float,
    share: float,
) -> Tensor:
    """q or k at the input of each stage [blocks, stages].

    The state is the coefficients of the noises of all first stages, which are correlated, and the variance of the
    rest, which is independent of them: the inputs' part, carried along, and the noise of later stages. `own` is
    seen by each channel separately: its share of the noise, 1/N, points along what the residual keeps of it.
    """
    blocks, stages = len(kernels), network.stages
    order = torch.arange(blocks)
    kept = network.residual ** (order[:, None] - order).abs().double()
    noises = noise(kept * torch.sqrt(torch.minimum(kernels[:, None] / kernels, kernels / kernels[:, None])))
    alone = noise(torch.ones((), dtype=torch.float64))
    coefficients, rest = torch.zeros(blocks, dtype=torch.float64), torch.tensor(unit * share, dtype=torch.float64)
    own = torch.zeros((), dtype=torch.float64)
    rows = []
    for block in range(blocks):
        branch, fresh, row = coefficients, torch.zeros((), dtype=torch.float64), []
        for stage in range(stages):
            row.append(branch @ noises @ branch + response ** (2 * stage) * rest + fresh + own * (stage == 0))
            branch = response * branch + (order == block) * (stage == 0)
            fresh = response**2 * fresh + (alone if stage else 0.0)
        rows.append(torch.stack(row))
        if block + 1 < blocks:
            skip = network.residual**2 * kernels[block] / kernels[block + 1]
            own = 2 * unit * skip * (1 - skip) * response**stages + skip**2 * own
            coefficients = skip * coefficients + (1 - skip) * branch
            rest = (skip + (1 - skip) * response**stages) ** 2 * rest + (1 - skip) ** 2 * fresh
    return torch.stack(rows)


class _Moments:
    """What an activation contributes, all under z ~ N(0, 1)."""

    def __init__(self, activation: ActivationFunction):
        self.activation = activation
        self.mean = activation.mean(1.0)
        self.variance = activation.second_moment(1.0) - self.mean**2
        self.slope = activation.derivative_mean(1.0)
        self.slope_square = activation.derivative_second_moment(1.0)

    def centred(self, x: Tensor) -> Tensor:
        return (self.activation(x) - self.mean) ** 2

    def expect(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        return self.activation.expectation(function, 1.0, 0.0)

    @cached_property
    def curvature(self) -> Tensor:
        """E phi He2 = E phi''."""
        return self.expect(lambda x: self.activation(x) * _he2(x))

    @property
    def correlation_response(self) -> Tensor:
        """(E phi')^2 / Var phi: how a stage passes a small correlation on."""
        return self.slope**2 / self.variance

    @cached_property
    def strength_response(self) -> Tensor:
        """How a stage passes on that a sample is stronger than the others."""
        return 0.5 * self.expect(lambda x: self.centred(x) * _he2(x)) / self.variance

    def correlation_noise(self, tau: Tensor) -> Tensor:
        """N times the covariance of the sampling noises of c at two layers whose channels have correlation tau."""
        cross = self.activation.cross_moment(1.0, 1.0, tau)
        return ((cross - self.mean**2) / self.variance) ** 2

    def strength_noise(self, tau: Tensor) -> Tensor:
        """The same for v."""
        one, zero = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        steep = lambda x: 2 * (self.activation(x) - self.mean) * self.activation.derivative(x)  # noqa: E731
        cross = quadrature.cross_moment(self.centred, steep, one, one, tau, zero, zero, self.activation.kinks)
        return cross / self.variance**2 - 1

    def variance_at(self, square: Tensor, excess: Tensor, r: Tensor, batch: int) -> Tensor:
        """The variance of phi over a batch: E phi^2 less the product of two samples' phi."""
        second = self.activation.second_moment(1.0) + excess / 8 * self.expect(
            lambda x: self.activation(x) ** 2 * _he4(x)
        )
        fourth = self.expect(lambda x: self.activation(x) * _he4(x))
        pair = self.mean**2 + self.mean * fourth * excess / 4 + self.curvature**2 * (square - r) / 2
        return (1 - 1 / batch) * (second - pair) + self.slope**2 / batch

    def slope_at(self, excess: Tensor, r: Tensor, batch: int) -> Tensor:
        """The mean square slope of normalization and activation, before the division by the mean square."""
        squared = lambda x: self.activation.derivative(x) ** 2  # noqa: E731
        plain = self.slope_square * (1 + 2 * r - 1 / batch) - self.expect(lambda x: squared(x) * x**2) / batch
        return plain + excess / 8 * self.expect(lambda x: squared(x) * _he4(x))

    def link(self, strength: Tensor, width: int, batch: int) -> Tensor:
        """What two successive stages of a block share, relative to independent ones."""
        squared = lambda x: self.activation.derivative(x) ** 2  # noqa: E731
        bend = self.expect(lambda x: squared(x) * _he2(x)) / self.slope_square
        joint = self.expect(lambda x: squared(x) * self.centred(x)) / (self.slope_square * self.variance) - 1
        lifted = (1.5 * bend * joint - 2 + bend**2 / 4 * self.strength_response * strength) / width
        return lifted + (self.slope**2 + self.curvature**2) / (self.slope_square * batch)


def _he2(x: Tensor) -> Tensor:
    return x**2 - 1


def _he4(x: Tensor) -> Tensor:
    return x**4 - 6 * x**2 + 3


_ATOMS, _NODES = 200, 7
_TABLE = (-14.0, 11.0, 3000)  # decades of the kernel


def factor_at_width(
    network: Vanilla,
    sigma_w: Number,
    sigma_b: Number,
    depth: int,
    width: int,
    inputs: int | None = None,
) -> Tensor:
    """chi_J of the penultimate block of `depth` layers of `width` channels, on Gaussian inputs (default: any number).

    The distribution of K is 200 weighted atoms. A layer spreads each over 7 nodes of a lognormal with the mean and
    variance above; neighbours are then merged, which keeps the mean.
    """
    require(depth >= 3, "depth", depth, "at least three layers, to have a penultimate block")
    require(width >= 1, "width", width, "a positive whole number")
    require(network.residual == 0, "residual", network.residual, "0: a residual keeps more of a layer than its kernel")
    settings = torch.broadcast_tensors(*as_double(sigma_w, sigma_b))
    weight, bias = (setting.reshape(-1, 1) ** 2 for setting in settings)
    grid = torch.logspace(*_TABLE, dtype=torch.float64)
    squares = network.square(grid)
    fourth = network.activation.expectation(lambda x: network.activation(x) ** 4, grid, 0.0)
    excess = (fourth / squares.clamp_min(1e-300) ** 2 - 1).clamp_min(0.0)
    kernel, share = weight + bias, torch.ones_like(weight)
    if inputs is not None:
        kernel, share = _weight_fluctuation(kernel, share, 2 / inputs * (weight / kernel) ** 2)
    for _ in range(depth - 3):
        branch = weight * _read(squares, kernel)
        noise = (branch / (branch + bias)) ** 2 * _read(excess, kernel) / width
        kernel, share = _merge(*_weight_fluctuation(branch + bias, share, noise))
    chi = network.jacobian(kernel, weight.sqrt(), bias.sqrt())
    return (share * chi).sum(-1).reshape(settings[0].shape)


def _weight_fluctuation(kernel: Tensor, share: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Each atom as a few nodes of a lognormal with that relative variance."""
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(_NODES))
    logarithm = torch.log1p(variance)[..., None]
    made = kernel[..., None] * torch.exp(nodes * logarithm.sqrt() - logarithm / 2)
    return made.flatten(1), (share[..., None] * weights / weights.sum()).flatten(1)


def _merge(kernel: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Atoms in order, joined into groups of about equal weight."""
    kernel, order = kernel.sort(1)
    share = share.gather(1, order)
    group = ((share.cumsum(1) - share / 2) * _ATOMS).long().clamp(0, _ATOMS - 1)
    empty = torch.zeros(len(kernel), _ATOMS, dtype=torch.float64)
    total = empty.scatter_add(1, group, share)
    first = empty.scatter_add(1, group, share * kernel)
    return torch.where(total > 0, first / total.clamp_min(1e-300), kernel[:, :1]), total


def _read(table: Tensor, kernel: Tensor) -> Tensor:
    """The table at a kernel, linear between its nodes and constant beyond them, where slopes no longer change."""
    places = torch.log10(kernel.clamp_min(1e-300))
    return torch.from_numpy(np.interp(places.numpy(), np.linspace(*_TABLE), table.numpy()))
