"""Attention on a full token kernel by sampling heads: the reference for any kernel.

Queries and keys of a few heads are drawn from their kernels at the true head width, the softmax is taken, and the
kernels are averaged over heads. Exact for wide models up to the sampling error, which falls with the root of
`samples`; the draw is fixed by `seed`. Keys and values made from one input of finite width are aligned: a query pulls
the output towards itself. That part, of order `score variance / width`, is added in closed form; it matters where
tokens are nearly uncorrelated and the rest is of order `1 / tokens`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sigprop.theory.kernels import Dense
from sigprop.theory.ops.attention.dense import spread_over_keys, visible_keys
from sigprop.theory.states import Evidence, Status

if TYPE_CHECKING:
    from sigprop.theory.ops.attention.op import Attention


EVIDENCE = Evidence(Status.SAMPLED, "attention heads sampled from the token kernel")
_JITTER = 1e-9


@dataclass(frozen=True)
class SampledWeights:
    """Sampled attention matrices `[..., sample, i, k]` with the queries and keys that made them."""

    raw_variance: Tensor
    matrix: Tensor
    query: Tensor
    key: Tensor
    visible: Tensor

    def doubts(self, width: float) -> tuple[float, float, float]:
        return 0.0, 0.0, 0.0


def draw(kernel: Tensor, samples: int, width: int, generator: torch.Generator) -> Tensor:
    """`[..., sample, t, channel]`, Gaussian with the given token kernel."""
    size = kernel.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None].clamp_min(1e-300)
    eye = torch.eye(kernel.shape[-1], dtype=kernel.dtype, device=kernel.device)
    values, vectors = torch.linalg.eigh(kernel / size + _JITTER * eye)
    root = vectors * values.clamp_min(0.0).sqrt()[..., None, :]
    noise = torch.randn(samples, kernel.shape[-1], width, dtype=torch.float64, generator=generator)
    return (root * size.sqrt())[..., None, :, :] @ noise.to(kernel.device, kernel.dtype)


def over_heads(matrix: Tensor, kernel: Tensor) -> Tensor:
    """`E[A K A^T]` over heads, `matrix[..., head, output, value]`; of transposed weights `E[A^T G A]`."""
    return (matrix @ kernel[..., None, :, :] @ matrix.mT).mean(-3)


def weights(op: Attention, query: Dense, key: Dense) -> SampledWeights:
    generator = torch.Generator().manual_seed(op.seed)
    drawn_query = draw(query.values, op.samples, op.head_width, generator)
    drawn_key = draw(key.values, op.samples, op.head_width, generator)
    scores = op.score_scale * drawn_query @ drawn_key.transpose(-1, -2)
    visible = visible_keys(op, query.tokens, key.tokens, scores.device)
    matrix = scores.masked_fill(visible == 0, -torch.inf).softmax(-1)
    raw = op.reach * query.diagonal * key.diagonal.mean(-1, keepdim=True)
    return SampledWeights(raw, matrix, drawn_query, drawn_key, visible)


def mean(weights: SampledWeights, value_mean: Tensor) -> Tensor:
    return (weights.matrix.mean(-3) @ value_mean[..., None])[..., 0]


def forward(op: Attention, weights: SampledWeights, query: Dense, key: Dense, value: Dense) -> Dense:
    matrix = weights.matrix
    out = Dense(over_heads(matrix, value.values))
    own = (matrix.square() @ value.diagonal[..., None, :, None])[..., 0].mean(-2)
    keys = Dense((weights.key @ weights.key.transpose(-1, -2)).mean(-3) / op.head_width)
    (_, live), (_, live_key) = (spread_over_keys(weights.visible, item) for item in (value, keys))
    scores = op.reach * query.diagonal * live_key
    root = (_spread_weight(weights) ** 2 * scores / op.common_width * live).sqrt()
    aligned = query.like(query.normalized().values.clamp_min(0.0)) * query.outer(root, root)
    return (out + aligned).add_diagonal(op.noise * own)


def _spread_weight(weights: SampledWeights) -> Tensor:
    """`1 - E sum_k A_ik^2` per row: 1 for weights spread over many keys, 0 for a single one."""
    return 1.0 - weights.matrix.square().sum(-1).mean(-2)


def backward(op: Attention, weights: SampledWeights, gradient: Dense, query: Dense, key: Dense, value: Dense):
    matrix = weights.matrix
    to_value = Dense(over_heads(matrix.mT, gradient.values))
    own = (matrix.square().transpose(-1, -2) @ gradient.diagonal[..., None, :, None])[..., 0].mean(-2)
    to_value = to_value.add_diagonal(op.noise * own)

    generator = torch.Generator().manual_seed(op.seed + 1)
    drawn_gradient = draw(gradient.values, op.samples, op.head_width, generator)
    drawn_value = draw(value.values, op.samples, op.head_width, generator)
    to_weight = drawn_gradient @ drawn_value.transpose(-1, -2)
    if op.dropout:
        keep = torch.rand(to_weight.shape[-3:], generator=generator, dtype=torch.float64).to(to_weight)
        to_weight = to_weight * (keep >= op.dropout) / (1.0 - op.dropout)
    to_score = matrix * (to_weight - (matrix * to_weight).sum(-1, keepdim=True)) * op.score_scale
    to_query, to_key = to_score @ weights.key, to_score.transpose(-1, -2) @ weights.query
    (_, live_value), (_, live_key) = (spread_over_keys(weights.visible, item) for item in (value, key))
    pull = op.reach * _spread_weight(weights) * live_value * live_key / op.common_width
    aligned = gradient * gradient.outer(pull.sqrt(), pull.sqrt())
    return _average(to_query) + aligned, _average(to_key), to_value


def _average(samples: Tensor) -> Dense:
    """Token kernel of drawn gradients, averaged over samples and channels."""
    return Dense((samples @ samples.transpose(-1, -2)).mean(-3) / samples.shape[-1])
