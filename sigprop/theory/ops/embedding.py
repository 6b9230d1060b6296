"""Where the signal starts: token, position and segment embeddings, and image patches."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sigprop.errors import require
from sigprop.theory.kernels import Dense, Exchangeable
from sigprop.theory.states import Signal
from sigprop.theory.status import Status

EULER = 0.5772156649015329
SEGMENT_CORRELATION = 2.0 / 3.0


def zipf_coincidence(vocabulary: int) -> float:
    """Probability `sum_i p_i^2` that two tokens drawn from Zipf's law are equal (corrects dslm B.1).

    Exact; for large vocabularies about `(pi^2/6) / (gamma + log V)^2`.
    """
    require(vocabulary >= 1, "vocabulary", vocabulary, "at least 1")
    rank = torch.arange(1, vocabulary + 1, dtype=torch.float64)
    return float((1 / rank**2).sum() / (1 / rank).sum() ** 2)


def zipf_coincidence_asymptotic(vocabulary: int) -> float:
    return (math.pi**2 / 6) / (EULER + math.log(vocabulary)) ** 2


def token_embedding(ids: Tensor, variance: Tensor | float, width: int) -> Signal:
    """Embeddings of real token ids: two tokens share a vector exactly when their ids are equal."""
    equal = (ids[..., :, None] == ids[..., None, :]).double()
    kernel = Dense(equal).scale(variance)
    return Signal(kernel, torch.zeros_like(kernel.diagonal), width)


def zipf_embedding(variance, vocabulary: int, *, tokens: int, width: int) -> Signal:
    """Embeddings of exchangeable tokens drawn from Zipf's law."""
    kernel = Exchangeable.of(variance, zipf_coincidence(vocabulary) * torch.as_tensor(variance), tokens)
    out = Signal(kernel, torch.zeros_like(kernel.diagonal), width)
    return out.note(Status.ASYMPTOTIC, "tokens drawn from Zipf's law")


def learned_positions(variance, *, tokens: int, width: int) -> Signal:
    """A learned vector per position: independent over positions."""
    kernel = Exchangeable.of(variance, torch.zeros_like(torch.as_tensor(variance, dtype=torch.float64)), tokens)
    return Signal(kernel, torch.zeros_like(kernel.diagonal), width)


def segments(variance, *, tokens: int, width: int) -> Signal:
    """Two segments split at a uniformly random point: correlation 2/3."""
    variance = torch.as_tensor(variance, dtype=torch.float64)
    kernel = Exchangeable.of(variance, SEGMENT_CORRELATION * variance, tokens)
    return Signal(kernel, torch.zeros_like(kernel.diagonal), width)


def sinusoidal_positions(tokens: int, width: int, amplitude: float = 1.0) -> Signal:
    """The fixed sine and cosine table: `K[t,t'] = (1/width) sum_c e_tc e_t'c`, deterministic."""
    position = torch.arange(tokens, dtype=torch.float64)[:, None]
    rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10000.0) / width))
    table = torch.cat((torch.sin(position * rate), torch.cos(position * rate)), -1) * amplitude
    return Signal(Dense(table @ table.T / table.shape[-1]), table.mean(-1), width)


def patches(pixels: Tensor, variance: Tensor | float, width: int) -> Signal:
    """Linear embedding of image patches `[..., T, pixels_per_patch]`: `K = n_patch * variance * (x x^T / n_patch)`."""
    x = pixels.double()
    kernel = Dense(x @ x.transpose(-1, -2)).scale(variance)
    return Signal(kernel, torch.zeros_like(kernel.diagonal), width)


def add_sources(*signals: Signal) -> Signal:
    """Sum of independent sources (token + position + segment)."""
    first = signals[0]
    if any(isinstance(s.kernel, Dense) for s in signals):
        signals = tuple(as_dense(s) for s in signals)
    kernel, mean, evidence = signals[0].kernel, signals[0].mean, signals[0].evidence
    for other in signals[1:]:
        cross = kernel.outer(mean, other.mean) + kernel.outer(other.mean, mean)
        kernel, mean, evidence = (
            kernel + other.kernel + cross,
            mean + other.mean,
            evidence.join(other.evidence),
        )
    return Signal(kernel, mean, first.width, evidence=evidence)


def as_dense(signal: Signal) -> Signal:
    if isinstance(signal.kernel, Dense):
        return signal
    assert isinstance(signal.kernel, Exchangeable)
    kernel = signal.kernel.dense()
    return Signal(kernel, signal.mean[..., None].expand_as(kernel.diagonal), signal.width, evidence=signal.evidence)
