"""Sums over heads where sequences attend within themselves, against the products written out."""

import pytest
import torch

from sigprop.trace.attention import between, over_outputs, over_values

REPLICAS, HEADS, BLOCKS, QUERIES, KEYS = 2, 3, 4, 5, 6
GENERATOR = torch.Generator().manual_seed(0)


def drawn(*shape):
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


MATRIX = drawn(REPLICAS, HEADS, BLOCKS, QUERIES, KEYS)
WHOLE = torch.stack([torch.block_diag(*item) for item in MATRIX.flatten(0, 1)]).unflatten(0, (REPLICAS, HEADS))
VALUES = drawn(REPLICAS, BLOCKS * KEYS, BLOCKS * KEYS)


def inside(full):
    """Entries of queries and keys of one sequence."""
    blocks = full.unflatten(-2, (BLOCKS, QUERIES)).unflatten(-1, (BLOCKS, KEYS))
    return blocks.diagonal(dim1=-4, dim2=-2).permute(0, 1, 4, 2, 3)


def test_over_values():
    kernel = VALUES @ VALUES.mT
    expected = WHOLE @ kernel[:, None] @ WHOLE.mT
    found, energies = over_values(MATRIX, kernel)
    assert torch.allclose(found, expected.sum((0, 1)))
    assert torch.allclose(energies, expected.diagonal(dim1=-2, dim2=-1).sum(-1))


@pytest.mark.parametrize("slope", [drawn(BLOCKS * QUERIES, BLOCKS * QUERIES), drawn(BLOCKS * QUERIES)], ids=[2, 1])
def test_over_outputs_and_between(slope):
    full = torch.diag(slope) if slope.ndim == 1 else slope
    assert torch.allclose(over_outputs(MATRIX, slope), (WHOLE.mT @ full @ WHOLE).sum((0, 1)))
    assert torch.allclose(between(MATRIX, slope, VALUES), inside(full @ WHOLE @ VALUES[:, None]))
