"""Kernels of finite width, drawn together for several replays.

The kernel of `d` drawn channels fluctuates by 1/sqrt(d) about its expectation. Where only effects of second order are
wanted, what is linear in the fluctuations is noise: it is removed by making their average over the replicas zero.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sigprop.compat import standard_gamma
from sigprop.graph.evaluate import Evaluation
from sigprop.graph.graph import Node
from sigprop.theory.drawing import DTYPE, root_of


class Ensemble:
    """Roots of the kernels of nodes, expected ones and drawn ones, the latter for each replica; made when asked for."""

    def __init__(self, states: Evaluation, replicas: int, generator: torch.Generator):
        self.replicas = replicas
        self._states = states
        self._generator = generator
        self._expected: dict[Node, Tensor] = {}
        self._drawn: dict[Node, Tensor] = {}
        self._without: dict[Node, Tensor] = {}

    def again(self, generator: torch.Generator) -> Ensemble:
        """Other draws about the same expectations."""
        made = Ensemble(self._states, self.replicas, generator)
        made._expected, made._without = self._expected, self._without
        return made

    def expected(self, node: Node) -> Tensor:
        """`R` with `R R^T` the covariance of a node."""
        if node not in self._expected:
            self._expected[node] = root_of(self._states.signal(node).covariance.values)
        return self._expected[node]

    def without(self, node: Node, bias: float) -> Tensor:
        """`R` with `R R^T` the covariance of a node less that of a bias, which is the same for all tokens."""
        if node not in self._without:
            self._without[node] = root_of(self._states.signal(node).covariance.values - bias)
        return self._without[node]

    def drawn(self, node: Node) -> Tensor:
        """For each replica `R` with `R R^T` the kernel of the node's channels in one initialization."""
        if node not in self._drawn:
            signal, root = self._states.signal(node), self.expected(node)
            noise = channel_noise(root.shape[1], signal.independent_channels, self.replicas, self._generator)
            made = root.to(DTYPE) @ noise
            made[..., -1] += signal.mean.to(DTYPE)
            if isinstance(signal.fluctuation.norm, float) and signal.fluctuation.norm == 0.0:
                level = signal.kernel.diagonal.clamp_min(0.0).to(DTYPE)
                made *= (level / made.square().sum(-1).clamp_min(torch.finfo(DTYPE).tiny)).sqrt()[..., None]
            self._drawn[node] = made
        return self._drawn[node]


def channel_noise(positions: int, width: int, replicas: int, generator: torch.Generator) -> Tensor:
    """`N` of every replica, `N N^T` the mean square over `width` channels of standard normal numbers, the last column
    their mean.

    Where there are channels enough, the replicas are recentred so that `N N^T` is the identity on average over them,
    exactly, and the last column zero. They are drawn with `width (1 - 1/replicas)` channels, so that their variance
    after it is that of `width` channels.
    """
    balanced = replicas >= fewest_balanced(positions, width)
    channels = width * (1.0 - 1.0 / replicas) if balanced else float(width)
    made = torch.stack([_columns(positions, channels, generator) for _ in range(replicas)])
    if balanced:
        made[..., -1] -= made[..., -1].mean(0)
        average = (made @ made.mT).mean(0)
        made = torch.linalg.solve_triangular(torch.linalg.cholesky(average), made, upper=False)
    return made


def fewest_balanced(positions: int, width: int) -> int:
    """Replicas that have channels enough to be balanced, twice as many as there are positions."""
    return 1 + math.ceil(2 * positions / width)


def _columns(positions: int, channels: float, generator: torch.Generator) -> Tensor:
    """With more channels than positions by Bartlett's decomposition: `sum (z - mean)(z - mean)^T = B B^T`, `B` lower
    triangular with standard normal entries and chi on its diagonal."""
    if channels <= positions + 1:
        count = max(1, round(channels))
        noise = torch.randn(positions, count, generator=generator, dtype=DTYPE)
        average = noise.mean(1, keepdim=True)
        return torch.cat(((noise - average) / count**0.5, average), 1)
    noise = torch.randn(positions, positions + 1, generator=generator, dtype=DTYPE)
    freedom = channels - 1.0 - torch.arange(positions, dtype=DTYPE)
    chi = (2.0 * standard_gamma(freedom / 2.0, generator=generator)).sqrt()
    return torch.cat((noise[:, :-1].tril(-1) + chi.diag(), noise[:, -1:]), 1) / channels**0.5
