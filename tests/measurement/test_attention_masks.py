"""Scores that a mask forbids are left out, and no others: of 0.02 or of 10,000."""

import math

import pytest
import torch

from sigprop import score_masks
from sigprop.score_masks import (
    allowed_scores,
    gradient_square_behind_output,
    score_gradient_square,
    score_summary,
)

SHAPE = (2, 4, 12, 12)


def scores_of(std, seed=0):
    return std * torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("std", [0.02, 1.0, 30.0, 300.0])
@pytest.mark.parametrize("mask", [-1e4, -1e9, -math.inf, torch.finfo(torch.float32).min])
def test_a_mask_is_told_from_the_scores(std, mask):
    hidden = torch.ones(SHAPE[-2:], dtype=torch.bool).triu(1)
    scores = scores_of(std) + torch.where(hidden, mask, 0.0)
    assert torch.equal(allowed_scores(scores), ~hidden.expand(SHAPE))
    assert float(score_summary(scores)["variance"]) == pytest.approx(std**2, rel=0.2)


def test_rows_that_may_look_nowhere_do_not_hide_the_mask():
    """Queries that are padding: all of their scores are lowered by 1e4, and nothing in their row stands out."""
    hidden = torch.zeros(SHAPE[-2:], dtype=torch.bool)
    hidden[:, 9:] = True
    hidden[9:] = True
    scores = scores_of(1.0) + torch.where(hidden, -1e4, 0.0)
    assert torch.equal(allowed_scores(scores)[..., :9, :], ~hidden.expand(SHAPE)[..., :9, :])


@pytest.mark.parametrize("std", [2e3, 1e4, 1e6])
def test_scores_that_spread_as_far_as_a_mask_are_scores(std):
    scores = scores_of(std)
    assert bool(allowed_scores(scores).all())
    assert float(score_summary(scores)["variance"]) == pytest.approx(float(scores.var()), rel=0.01)


@pytest.mark.parametrize("std", [0.02, 1.0, 5.0])
def test_a_mask_of_a_hundred_is_one(std):
    """Swin keeps windows that meet at the border of an image apart by -100."""
    hidden = torch.zeros(SHAPE[-2:], dtype=torch.bool)
    hidden[:6, 6:] = hidden[6:, :6] = True
    scores = scores_of(std) + torch.where(hidden, -100.0, 0.0)
    assert torch.equal(allowed_scores(scores), ~hidden.expand(SHAPE))


@pytest.mark.parametrize("std", [10.0, 30.0, 100.0])
def test_wide_scores_are_not_taken_for_a_mask(std):
    assert bool(allowed_scores(scores_of(std)).all())


def test_no_score_is_a_number():
    scores = scores_of(1.0)
    scores[0, 0, 3, 5] = math.nan
    assert bool(allowed_scores(scores).all())


@pytest.mark.parametrize("piece", [1, 30, 100, 1 << 18])
def test_pieces_add_up_to_softmax_and_autograd(monkeypatch, piece):
    """Whatever is converted at once: entropy, largest weight and gradient are those of torch's own softmax."""
    monkeypatch.setitem(score_masks.PIECE, "cpu", piece)
    generator = torch.Generator().manual_seed(3)
    hidden = torch.ones(SHAPE[-2:], dtype=torch.bool).triu(1)
    scores = scores_of(3.0).double().masked_fill(hidden, -math.inf).requires_grad_()
    value, arriving = (torch.randn(*SHAPE[:-1], 5, generator=generator, dtype=torch.float64) for _ in range(2))
    weights = scores.softmax(-1)
    (gradient,) = torch.autograd.grad(weights @ value, scores, arriving)
    wanted = float(gradient.square().sum() / (~hidden.expand(SHAPE)).sum())
    assert float(gradient_square_behind_output(scores, value, arriving)) == pytest.approx(wanted, rel=1e-12)
    assert float(score_gradient_square(scores, gradient)) == pytest.approx(wanted, rel=1e-12)
    found, seen = score_summary(scores), scores.detach()[~hidden.expand(SHAPE)]
    weights = weights.detach()
    assert float(found["mean"]) == pytest.approx(float(seen.mean()), rel=1e-12)
    assert float(found["variance"]) == pytest.approx(float(seen.var(correction=0)), rel=1e-12)
    assert float(found["entropy"]) == pytest.approx(float(-torch.xlogy(weights, weights).sum(-1).mean()), rel=1e-12)
    assert float(found["largest_weight"]) == pytest.approx(float(weights.amax(-1).mean()), rel=1e-12)
