"""Entropy and largest weight of a softmax over random scores, against draws of their own and in their limits."""

import math

import numpy as np
import pytest
import torch

from sigprop.blueprints.prediction import softmax_sharpness


def drawn(variance: float, keys: int, head_width: int | None, rows: int = 4000) -> dict[str, tuple[float, float]]:
    """Mean and standard error over queries."""
    generator = torch.Generator().manual_seed(7)
    scores = torch.randn(rows, keys, generator=generator, dtype=torch.float64) * math.sqrt(variance)
    if head_width is not None:
        query = torch.randn(rows, head_width, generator=generator, dtype=torch.float64)
        scores = scores * query.square().mean(-1, keepdim=True).sqrt()
    weights = scores.softmax(-1)
    found = {"entropy": -torch.special.xlogy(weights, weights).sum(-1), "largest": weights.amax(-1)}
    return {name: (float(value.mean()), float(value.std() / rows**0.5)) for name, value in found.items()}


@pytest.mark.parametrize("variance", [0.01, 1.0, 9.0, 100.0])
@pytest.mark.parametrize(("keys", "head_width"), [(3, None), (64, None), (64, 16), (300, 64)])
def test_sharpness_agrees_with_draws(variance, keys, head_width):
    found = softmax_sharpness(np.array([variance]), keys, head_width)
    for name, (value, error) in drawn(variance, keys, head_width).items():
        assert float(getattr(found, name)[0]) == pytest.approx(value, abs=4 * error + 0.012), name


def test_limits():
    flat = softmax_sharpness(np.array([0.0, 1e-6]), 50)
    assert flat.entropy[0] == pytest.approx(math.log(50))
    assert flat.entropy[1] == pytest.approx(math.log(50) - 0.49e-6, abs=1e-9)
    sharp = softmax_sharpness(np.array([1e4]), 50)
    assert sharp.entropy[0] < 0.1
    assert sharp.largest[0] > 0.9
    alone = softmax_sharpness(np.array([4.0]), 1)
    assert (alone.entropy[0], alone.largest[0]) == (0.0, 1.0)
