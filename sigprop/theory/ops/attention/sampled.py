"""Attention on a full token kernel by sampling heads: the reference for any kernel, mask or additive bias.

Queries and keys of a few heads are drawn from their kernels at the true head width, the softmax is taken, and the
kernels are averaged over heads. Exact for wide models up to the sampling error, which falls with the root of
`samples`; the draw is fixed by `seed`. Keys and values made from one input of finite width are aligned: a query pulls
the output towards itself. That part, of order `score variance / width`, is added in closed form; it matters where
tokens are nearly uncorrelated and the rest is of order `1 / tokens`.

Kernels through drawn attention weights, within sequences of a batch or windows of an image.

Weights are `[replica, head, sequence, output position, value position]`, the last two within one sequence. With `A` all
of them as one matrix, which joins positions of one sequence alone:

    over_values    sum A K A^T      the kernel of the output
    over_outputs   sum A^T G A      the gradient of the values
    between        S A K            products of a gradient that is `S y` with the values

`over_heads` is the first of them on a grid of settings, for one sequence: the average over heads of `A K A^T`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sigprop.theory.kernels import Dense
from sigprop.theory.ops.attention.dense import spread_over_keys, visible_keys
from sigprop.theory.states import Status

if TYPE_CHECKING:
    from sigprop.theory.ops.attention.op import Attention


@dataclass(frozen=True)
class Sequences:
    """Parts of a batch, or windows of an image, that attend within themselves: how many, and the positions of outputs
    and of values in their order, one part after the other; None where that is the order of positions.
    """

    count: int = 1
    outputs: Tensor | None = None
    values: Tensor | None = None

    def by_outputs(self, matrix: Tensor) -> Tensor:
        """A matrix over output positions, or its diagonal, in the order of sequences."""
        if self.outputs is None:
            return matrix
        return matrix[self.outputs] if matrix.ndim == 1 else matrix[self.outputs][:, self.outputs]

    def rows_by_outputs(self, rows: Tensor) -> Tensor:
        return rows if self.outputs is None else rows[self.outputs]

    def outputs_back(self, matrix: Tensor) -> Tensor:
        """A matrix over output positions, in their own order again."""
        return placed_back(matrix, self.outputs, self.outputs)

    def values_back(self, matrix: Tensor) -> Tensor:
        return placed_back(matrix, self.values, self.values)

    def back(self, matrix: Tensor) -> Tensor:
        """A matrix of output over value positions, in their own order again."""
        return placed_back(matrix, self.outputs, self.values)


def placed_back(matrix: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    if rows is None or columns is None:
        return matrix
    return matrix[torch.argsort(rows)][:, torch.argsort(columns)]


def sequences_apart(rows: Tensor, columns: Tensor | None, positions: int) -> Sequences:
    """The sequences within which rows read columns of their own alone; one where it is not so."""
    if columns is None:
        return Sequences()
    blocks = positions // columns.shape[1] if columns.shape[1] and positions % columns.shape[1] == 0 else 1
    if blocks == 1 or len(rows) % blocks:
        return Sequences()
    each = columns.view(blocks, -1, columns.shape[1])
    values = each[:, 0].flatten()
    apart = torch.equal(values.sort().values, torch.arange(positions)) and torch.equal(
        each, each[:, :1].expand_as(each)
    )
    if not apart or not torch.equal(rows.sort().values, torch.arange(len(rows))):
        return Sequences()
    straight = torch.equal(rows, torch.arange(len(rows))) and torch.equal(values, torch.arange(positions))
    return Sequences(blocks) if straight else Sequences(blocks, rows, values)


def over_heads(matrix: Tensor, kernel: Tensor) -> Tensor:
    """`E[A K A^T]` over heads, `matrix[..., head, output, value]`; of transposed weights `E[A^T G A]`."""
    return (matrix @ kernel[..., None, :, :] @ matrix.mT).mean(-3)


def over_values(matrix: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    """`sum A K A^T` over replicas and heads, and the trace of each; sequences attend within themselves."""
    replicas, heads, blocks, queries, keys = matrix.shape
    rows = matrix.transpose(1, 2).reshape(replicas, blocks, heads * queries, keys)
    half = (rows @ kernel.view(replicas, blocks, keys, -1)).view(replicas, blocks, heads, queries, blocks, keys)
    own = half.diagonal(dim1=1, dim2=4).permute(0, 1, 4, 2, 3)
    left = half.permute(4, 1, 3, 0, 2, 5).reshape(blocks, blocks * queries, -1)
    right = matrix.permute(2, 0, 1, 4, 3).reshape(blocks, -1, queries)
    return (left @ right).transpose(0, 1).reshape(blocks * queries, -1), (own * matrix).sum((-1, -2, -3))


def over_outputs(matrix: Tensor, kernel: Tensor) -> Tensor:
    """`sum A^T G A` over replicas and heads; a diagonal `G` may be a vector."""
    replicas, heads, blocks, queries, keys = matrix.shape
    if kernel.ndim == 1:
        scaled = (matrix * kernel.view(blocks, queries, 1)).transpose(1, 2).transpose(0, 1).reshape(blocks, -1, keys)
        return torch.block_diag(*scaled.mT @ matrix.permute(2, 0, 1, 3, 4).reshape(blocks, -1, keys))
    columns = matrix.permute(2, 3, 0, 1, 4).reshape(blocks, queries, -1)
    half = kernel.view(-1, blocks, queries).transpose(0, 1) @ columns
    half = half.view(blocks, blocks, queries, replicas * heads, keys).permute(1, 3, 2, 0, 4)
    rows = matrix.permute(2, 4, 0, 1, 3).reshape(blocks, keys, -1)
    return (rows @ half.reshape(blocks, replicas * heads * queries, -1)).view(blocks * keys, -1)


def between(matrix: Tensor, slope: Tensor, kernel: Tensor) -> Tensor:
    """`S A K` within each sequence, for every replica and head; a diagonal `S` may be a vector."""
    replicas, heads, blocks, queries, keys = matrix.shape
    if slope.ndim == 1:
        own = kernel.view(replicas, blocks, keys, blocks, keys).diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
        return (matrix * slope.view(blocks, queries, 1)) @ own[:, None]
    columns = kernel.view(replicas, 1, blocks, keys, -1)
    half = (matrix @ columns).view(replicas, heads, blocks * queries, blocks, keys)
    return slope.view(blocks, queries, -1) @ half.permute(0, 1, 3, 2, 4)


EVIDENCE = (Status.SAMPLED, "attention heads sampled from the token kernel")
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


def weights(op: Attention, query: Dense, key: Dense) -> SampledWeights:
    generator = torch.Generator().manual_seed(op.seed)
    drawn_query = draw(query.values, op.samples, op.head_width, generator)
    drawn_key = draw(key.values, op.samples, op.head_width, generator)
    scores = op.score_scale * drawn_query @ drawn_key.transpose(-1, -2)
    if op.bias is not None:
        scores = scores + op.bias.to(scores)
    visible = visible_keys(op, query.tokens, key.tokens, scores.device)
    matrix = scores.masked_fill(visible == 0, -torch.inf).softmax(-1)
    raw = op.score_scale**2 * op.head_width * query.diagonal * key.diagonal.mean(-1, keepdim=True)
    return SampledWeights(raw, matrix, drawn_query, drawn_key, visible)


def mean(weights: SampledWeights, value_mean: Tensor) -> Tensor:
    return (weights.matrix.mean(-3) @ value_mean[..., None])[..., 0]


def forward(op: Attention, weights: SampledWeights, query: Dense, key: Dense, value: Dense) -> Dense:
    matrix, noise = weights.matrix, op.dropout / (1.0 - op.dropout)
    out = Dense(over_heads(matrix, value.values))
    own = (matrix.square() @ value.diagonal[..., None, :, None])[..., 0].mean(-2)
    _, live = spread_over_keys(weights.visible, value)
    pull = _spread_weight(weights) ** 2 * _live_scores(op, weights, query) / op.common_width
    root = (pull * live).sqrt()
    aligned = query.like(query.normalized().values.clamp_min(0.0)) * query.outer(root, root)
    return (out + aligned).add_diagonal(noise * own)


def _spread_weight(weights: SampledWeights) -> Tensor:
    """`1 - E sum_k A_ik^2` per row: 1 for weights spread over many keys, 0 for a single one."""
    return 1.0 - weights.matrix.square().sum(-1).mean(-2)


def _live_scores(op: Attention, weights: SampledWeights, query: Dense) -> Tensor:
    """Variance of the scores within a row, from the drawn keys."""
    keys = Dense((weights.key @ weights.key.transpose(-1, -2)).mean(-3) / op.head_width)
    _, live = spread_over_keys(weights.visible, keys)
    return op.score_scale**2 * op.head_width * query.diagonal * live


def backward(op: Attention, weights: SampledWeights, gradient: Dense, query: Dense, key: Dense, value: Dense):
    matrix, noise = weights.matrix, op.dropout / (1.0 - op.dropout)
    to_value = Dense(over_heads(matrix.mT, gradient.values))
    own = (matrix.square().transpose(-1, -2) @ gradient.diagonal[..., None, :, None])[..., 0].mean(-2)
    to_value = to_value.add_diagonal(noise * own)

    generator = torch.Generator().manual_seed(op.seed + 1)
    drawn_gradient = draw(gradient.values, op.samples, op.head_width, generator)
    drawn_value = draw(value.values, op.samples, op.head_width, generator)
    to_weight = drawn_gradient @ drawn_value.transpose(-1, -2)
    if op.dropout:
        keep = torch.rand(to_weight.shape[-3:], generator=generator, dtype=torch.float64).to(to_weight)
        to_weight = to_weight * (keep >= op.dropout) / (1.0 - op.dropout)
    to_score = matrix * (to_weight - (matrix * to_weight).sum(-1, keepdim=True)) * op.score_scale
    to_query, to_key = to_score @ weights.key, to_score.transpose(-1, -2) @ weights.query
    _, live_value = spread_over_keys(weights.visible, value)
    _, live_key = spread_over_keys(weights.visible, key)
    pull = op.score_scale**2 * op.head_width * _spread_weight(weights) * live_value * live_key / op.common_width
    aligned = gradient * gradient.outer(pull.sqrt(), pull.sqrt())
    return _average(to_query) + aligned, _average(to_key), to_value


def _average(samples: Tensor) -> Dense:
    """Token kernel of drawn gradients, averaged over samples and channels."""
    return Dense((samples @ samples.transpose(-1, -2)).mean(-3) / samples.shape[-1])
