"""Standard errors of few draws keep their promise, skewed draws included."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from sigprop import predict
from sigprop.results import SiteRow
from sigprop.verification.spread import standard_error, widen

ROWS = 400


def widened(spread, count, seed=0):
    """Means of lognormal rows of mean one with their plain and widened errors."""
    drawn = np.random.default_rng(seed).lognormal(-(spread**2) / 2, spread, (count, ROWS))
    tables = [[SiteRow(str(n), 0, variance=float(value)) for n, value in enumerate(row)] for row in drawn]
    rows = [SiteRow(str(n), 0, variance=float(value)) for n, value in enumerate(drawn.mean(0))]
    plain = drawn.std(0, ddof=1) / math.sqrt(count)
    for row, error in zip(rows, plain, strict=True):
        row.errors["variance"] = float(error)
    widen(rows, tables)
    return rows, plain


@pytest.mark.parametrize("count", [3, 6, 24])
@pytest.mark.parametrize("spread", [0.1, 0.6])
def test_five_errors_are_hardly_ever_exceeded(spread, count):
    rows, plain = widened(spread, count)
    off = np.array([abs(row.variance - 1.0) for row in rows])
    errors = np.array([row.errors["variance"] for row in rows])
    assert (off > 5 * errors).mean() <= 0.005
    assert (errors >= plain - 1e-12).all()


def test_errors_of_many_draws_are_left_about_as_they_are():
    rows, plain = widened(0.1, 48)
    assert np.median([row.errors["variance"] for row in rows]) == pytest.approx(float(np.median(plain)), rel=0.1)


def test_a_lucky_handful_is_not_believed():
    assert standard_error([1.0]) == 0.0
    assert standard_error([0.0, 1.0, 2.0]) == pytest.approx(1 / math.sqrt(3))
    assert standard_error([0.1, 0.1, 3.0]) > np.std([0.1, 0.1, 3.0], ddof=1) / math.sqrt(3)


def test_what_the_draws_do_not_tell_is_assumed_and_says_so():
    """BatchNorm over four numbers: a few draws hold the mean of its gradients."""

    def norms() -> nn.Module:
        return nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU())))

    batch = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    found = predict(norms, batch)
    rows = [row for row in (*found.sites, *found.parameters) if "scatter" in row.reason]
    assert rows
    for row in rows:
        column = "grad_second_moment" if row in found.parameters else "grad_variance"
        assert row.status == "assumed"
        assert row.errors[column] > getattr(row, column) / 3
    for row in (*found.sites, *found.parameters):
        for column in ("variance", "grad_variance", "grad_second_moment"):
            if row.status in ("simulated", "disputed") and getattr(row, column, 0.0) > 0:
                assert row.errors.get(column, 0.0) <= getattr(row, column) / 3
