"""Kernels through drawn attention weights, within sequences of a batch or windows of an image.

Weights are `[replica, head, sequence, output position, value position]`, the last two within one sequence. With `A` all
of them as one matrix, which joins positions of one sequence alone:

    over_values    sum A K A^T      the kernel of the output
    over_outputs   sum A^T G A      the gradient of the values
    between        S A K            products of a gradient that is `S y` with the values

`over_heads` is the first of them on a grid of settings, for one sequence: the average over heads of `A K A^T`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
