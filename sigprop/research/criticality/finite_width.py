"""Networks without norm or residual at finite width N: the kernel is a random walk.

Given the kernel K of a layer its N pre-activations are independent N(0, K), so the next kernel has

    mean  F(K) = sigma_w^2 E phi^2 + sigma_b^2,    variance  sigma_w^4 Var(phi^2) / N,

and depends on nothing else: a Markov chain in one number, and E chi_J is the average of chi_J(K) over it.
Where F has a slope near one the spread of K adds up over depth and shifts chi_J by far more than 1/N.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sigprop.errors import require
from sigprop.research.criticality.base import Number
from sigprop.research.criticality.vanilla import Vanilla
from sigprop.theory.activations.gaussian import as_double

_ATOMS, _NODES = 200, 7
_TABLE = (-14.0, 11.0, 3000)  # decades of the kernel


def factor_at_width(
    network: Vanilla,
    sigma_w: Number,
    sigma_b: Number,
    depth: int,
    width: int,
    inputs: int | None = None,
    input_square: float = 1.0,
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
    kernel, share = weight * input_square + bias, torch.ones_like(weight)
    if inputs is not None:
        kernel, share = _spread(kernel, share, 2 / inputs * (weight * input_square / kernel) ** 2)
    for _ in range(depth - 3):
        branch = weight * _read(squares, kernel)
        noise = (branch / (branch + bias)) ** 2 * _read(excess, kernel) / width
        kernel, share = _merge(*_spread(branch + bias, share, noise))
    chi = network.jacobian(kernel, weight.sqrt(), bias.sqrt())
    return (share * chi).sum(-1).reshape(settings[0].shape)


def _spread(kernel: Tensor, share: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
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
    low, high, count = _TABLE
    place = (torch.log10(kernel.clamp_min(1e-300)) - low) / (high - low) * (count - 1)
    index = place.long().clamp(0, count - 2)
    part = (place - index).clamp(0.0, 1.0)
    return table[index] * (1 - part) + table[index + 1] * part
