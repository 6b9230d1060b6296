"""Moments at many nearly equal variances from a few."""

import math

import pytest
import torch

from sigprop.theory import activations
from sigprop.theory.activations import quadrature
from sigprop.theory.activations.quadrature import MANY, RANGE, few


def spelt_out_gelu(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


FUNCTIONS = {
    "gelu": activations.get(spelt_out_gelu, name="gelu"),
    "tanh": activations.get("tanh"),
    "hardtanh": activations.get(torch.nn.functional.hardtanh, kinks=(-1.0, 1.0)),
}


def settings(level: float, ratio: float, mean: float):
    variance = level * torch.logspace(0, math.log10(ratio), MANY + 7, dtype=torch.float64)
    return variance, torch.full_like(variance, mean)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("level", [0.01, 1.0, 50.0])
@pytest.mark.parametrize("mean", [0.0, 0.5])
def test_a_few_variances_stand_for_many(name, level, mean):
    f = FUNCTIONS[name]
    variance, means = settings(level, RANGE - 1e-9, mean)
    assert few(variance, means) is not None
    pairs = [(v[None], m[None]) for v, m in zip(variance, means, strict=True)]
    series = quadrature._series(f, f.derivative, variance, means, f.kinks)
    alone = torch.cat([quadrature._series(f, f.derivative, v, m, f.kinks).coefficients for v, m in pairs], 1)
    assert ((series.coefficients - alone) / alone.norm(dim=0)).abs().max() < 1e-12
    total = quadrature.expectation(f, variance, means, f.kinks)
    alone = torch.cat([quadrature.expectation(f, v, m, f.kinks) for v, m in pairs])
    torch.testing.assert_close(total, alone, rtol=1e-11, atol=1e-15)


def test_equal_variances_are_no_exception():
    f = FUNCTIONS["tanh"]
    variance, means = settings(0.7, 1.0, 0.0)
    torch.testing.assert_close(
        quadrature.expectation(lambda x: f(x) ** 2, variance, means, ()), f.second_moment(0.7).expand(len(variance))
    )


@pytest.mark.parametrize(
    ("variance", "mean"),
    [
        settings(1.0, 1.1 * RANGE, 0.0),  # too far apart
        (settings(1.0, 1.1, 0.0)[0][: MANY - 1], torch.zeros(MANY - 1)),  # too few
        (settings(1.0, 1.1, 0.0)[0], torch.linspace(0, 1, MANY + 7)),  # means of their own
        (torch.zeros(MANY), torch.zeros(MANY)),  # no scale
    ],
)
def test_others_are_not_interpolated(variance, mean):
    assert few(variance, mean) is None


def test_terms_that_vanish_are_left_out_without_a_trace():
    """The even part of a function has a gap at every second order, an odd one starts at order one."""
    variance, covariance = torch.tensor(1.3, dtype=torch.float64), torch.tensor([-1.3, -0.4, 0.0, 0.9, 1.3]).double()
    zero = torch.zeros((), dtype=torch.float64)
    for f, exact in (
        (lambda x: x**2, lambda c: variance**2 + 2 * c**2),
        (lambda x: x**3, lambda c: 9 * variance**2 * c + 6 * c**3),
        (lambda x: x**4 + x, lambda c: 9 * variance**4 + 72 * variance**2 * c**2 + 24 * c**4 + c),
    ):
        found = quadrature.cross_moment(f, None, variance, variance, covariance, zero, zero, ())
        torch.testing.assert_close(found, exact(covariance), rtol=1e-12, atol=1e-12)
