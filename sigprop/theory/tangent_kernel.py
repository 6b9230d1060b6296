r"""Signal and tangent kernels of a Pre-LN Transformer, group by group, at leading order in 1/width.

The state is the signal kernel `G[t, t']` and, for every parameter group, its part of the neural tangent
kernel `Theta[t, t']`; the parts add up. With F = G / sqrt(G_tt G_t't'), Theta~ likewise, and Om the softmax of
Gaussian scores S of covariance `C_Q C_K F F` (heads independent):

    stem       G = C x.x'/n + C_PE delta,                  Theta = L x.x'/n + L_PE delta
    attention  G' = G + C_U C_V E[Om F Om^T]
               Theta' = Theta + C_U C_V E[Om Theta~ Om^T] + C_U C_V C_Q C_K (J[Theta~, F] + J[F, Theta~])
                        + (L_U C_V + L_V C_U) E[Om F Om^T] + C_U C_V (L_Q C_K + L_K C_Q) J[F, F]
    mlp        G' = G + C_X <f f>,   Theta' = Theta + C_X C_W <f' f'> Theta~ + L_X <f f> + L_W C_X <f' f'> F
    head       G = C F,              Theta = C Theta~ + L F + L_b

    J[B, D]_12 = B_12 sum_ab E[Om_1a Om_2b (F_ab - (Om F)_2a - (Om F)_1b + (Om F Om^T)_12)] D_ab

`C` are init variances and `L` learning-rate factors with their width powers taken out; an MLP's Gaussian
input has kernel C_W F. Attention expectations are sampled (`samples` draws of S). Assumes no dropout, zero norm
epsilon, and head size large (corrections 1/C_head, largest for Q and K).
Reference: Dinan, Yaida, Zhang, Effective Theory of Transformers at Initialization, eqs. (1.36) to (1.87) and
(1.117) to (1.190), as reconstructed and checked in the formula sheet, section 7.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from sigprop.errors import require
from sigprop.theory.activations import get


@dataclass(frozen=True)
class TangentState:
    """Signal kernel (T x T, float64) and the tangent kernel of every group."""

    signal: Tensor
    groups: dict[str, Tensor]

    @property
    def tangent_kernel(self) -> Tensor:
        """The whole neural tangent kernel."""
        return torch.stack(list(self.groups.values())).sum(dim=0)

    def shares(self) -> dict[str, float]:
        """Each group's share of the mean diagonal of the tangent kernel."""
        sizes = {name: float(kernel.diagonal().mean()) for name, kernel in self.groups.items()}
        total = sum(sizes.values())
        return {name: size / total for name, size in sizes.items()}


def stem(
    inputs: Tensor, c: float = 1.0, rate: float = 1.0, c_position: float = 0.0, rate_position: float = 0.0
) -> TangentState:
    """Embedding of tokens with inputs (T x n): `inputs . inputs' / n` is 1 where two one-hot tokens agree."""
    overlap = inputs.double() @ inputs.double().T / inputs.shape[1]
    return _stem(overlap, c, rate, c_position, rate_position)


def language_stem(
    tokens: Tensor, c: float = 1.0, rate: float = 1.0, c_position: float = 0.0, rate_position: float = 0.0
) -> TangentState:
    """Embedding of token ids (T): the overlap is 1 where two tokens agree, else 0."""
    return _stem((tokens[:, None] == tokens[None, :]).double(), c, rate, c_position, rate_position)


def _stem(overlap: Tensor, c: float, rate: float, c_position: float, rate_position: float) -> TangentState:
    positions = torch.eye(len(overlap), dtype=torch.float64)
    groups = {"embedding": rate * overlap, "position": rate_position * positions}
    return TangentState(c * overlap + c_position * positions, groups)


def attention(
    state: TangentState,
    c: dict[str, float] | None = None,
    rates: dict[str, float] | None = None,
    *,
    causal: bool = False,
    samples: int = 2000,
    generator: Generator | None = None,
    layer: str = "",
) -> TangentState:
    """One Pre-LN attention block; `c` and `rates` for Q, K, V, U (1 where not given)."""
    c, rates = _settings("QKVU", c), _settings("QKVU", rates)
    correlation = normalized(state.signal, state.signal)
    weights = _softmax_draws(correlation, c["Q"] * c["K"], causal, samples, generator)
    mixed = _mix(weights, correlation)
    outer = c["U"] * c["V"]
    groups = {}
    for name, kernel in state.groups.items():
        tangent = normalized(kernel, state.signal)
        through = _score_response(weights, correlation, tangent, correlation)
        through = through + _score_response(weights, correlation, correlation, tangent)
        groups[name] = kernel + outer * _mix(weights, tangent) + outer * c["Q"] * c["K"] * through
    own = _score_response(weights, correlation, correlation, correlation)
    groups |= {
        f"{layer}V": rates["V"] * c["U"] * mixed,
        f"{layer}U": rates["U"] * c["V"] * mixed,
        f"{layer}Q": outer * rates["Q"] * c["K"] * own,
        f"{layer}K": outer * rates["K"] * c["Q"] * own,
    }
    return TangentState(state.signal + outer * mixed, groups)


def mlp(
    state: TangentState,
    activation: str = "gelu",
    c: dict[str, float] | None = None,
    rates: dict[str, float] | None = None,
    *,
    layer: str = "",
) -> TangentState:
    """One Pre-LN MLP block; `c` and `rates` for W (into the hidden layer) and X (out of it)."""
    c, rates = _settings("WX", c), _settings("WX", rates)
    correlation = normalized(state.signal, state.signal)
    kernel = c["W"] * correlation
    variance = kernel.diagonal()
    function = get(activation)
    moments = function.cross_moment(variance[:, None], variance[None, :], kernel)
    slopes = function.derivative_cross_moment(variance[:, None], variance[None, :], kernel)
    groups = {
        name: tangent + c["X"] * c["W"] * slopes * normalized(tangent, state.signal)
        for name, tangent in state.groups.items()
    }
    groups |= {f"{layer}X": rates["X"] * moments, f"{layer}W": rates["W"] * c["X"] * slopes * correlation}
    return TangentState(state.signal + c["X"] * moments, groups)


def head(state: TangentState, c: float = 1.0, rate: float = 1.0, rate_bias: float = 0.0) -> TangentState:
    """Final norm and readout."""
    correlation = normalized(state.signal, state.signal)
    groups = {name: c * normalized(kernel, state.signal) for name, kernel in state.groups.items()}
    groups |= {"head": rate * correlation, "head_bias": rate_bias * torch.ones_like(correlation)}
    return TangentState(c * correlation, groups)


def normalized(kernel: Tensor, signal: Tensor) -> Tensor:
    """`kernel_12 / sqrt(signal_11 signal_22)`."""
    size = signal.diagonal().sqrt()
    return kernel / (size[:, None] * size[None, :])


def _softmax_draws(
    correlation: Tensor, variance: float, causal: bool, samples: int, generator: Generator | None
) -> Tensor:
    """Softmax of scores `sqrt(variance) F^{1/2} Z F^{1/2}`, one T x T matrix per draw."""
    require(samples > 0, "samples", samples, "a positive number")
    values, vectors = torch.linalg.eigh(correlation)
    root = vectors * values.clamp_min(0.0).sqrt() @ vectors.T
    noise = torch.randn(samples, *correlation.shape, dtype=torch.float64, generator=generator)
    scores = math.sqrt(variance) * root @ noise @ root
    if causal:
        future = torch.ones_like(correlation, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    return scores.softmax(dim=-1)


def _mix(weights: Tensor, kernel: Tensor) -> Tensor:
    """E[Om kernel Om^T]."""
    return (weights @ kernel @ weights.mT).mean(dim=0)


def _score_response(weights: Tensor, correlation: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """J[queries, keys]: how the output moves when scores move along a query and a key kernel."""
    values = weights @ correlation
    first = weights @ (correlation * keys) @ weights.mT
    second = weights @ (values * (weights @ keys.T)).mT
    third = (values * (weights @ keys)) @ weights.mT
    fourth = (values @ weights.mT) * (weights @ keys @ weights.mT)
    return queries * (first - second - third + fourth).mean(dim=0)


def _settings(names: str, given: dict[str, float] | None) -> dict[str, float]:
    given = given or {}
    for key in given:
        require(key in names, "group", key, f"one of {', '.join(names)}")
    return {name: float(given.get(name, 1.0)) for name in names}
