"""The battery that every registered activation inherits."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sigprop.theory.activations import get, names

from . import oracle
from .cases import CASES

VARIANCES = (1e-3, 0.05, 1.0, 10.0, 1e3)
CORRELATIONS = (-0.99, -0.4, 0.0, 0.7, 0.95, 0.999)
every = pytest.mark.parametrize("name", sorted(CASES))
exact = pytest.mark.parametrize("name", sorted(n for n in CASES if get(n).status == "exact"))
approximate = pytest.mark.parametrize("name", sorted(n for n in CASES if get(n).status != "exact"))


def build(name):
    return get(name, **CASES[name].parameters)


def variances(name):
    return [v for v in VARIANCES if v <= CASES[name].largest_variance]


def test_every_registered_activation_has_a_case():
    assert set(names()) == set(CASES)


@every
def test_function_and_derivative(name):
    case, activation = CASES[name], build(name)
    x = torch.linspace(-8, 8, 97, dtype=torch.float64) + 0.01
    torch.testing.assert_close(activation(x), torch.from_numpy(case.f(x.numpy())), rtol=1e-12, atol=1e-14)
    slope = torch.from_numpy(case.slope(x.numpy()).astype(float))
    torch.testing.assert_close(activation.derivative(x), slope, rtol=1e-10, atol=1e-14)
    near = 1e-6
    second = (activation.derivative(x + near) - activation.derivative(x - near)) / (2 * near)
    torch.testing.assert_close(activation.second_derivative(x), second, rtol=1e-6, atol=1e-8)


@every
def test_moments_of_one_variable(name):
    case, activation = CASES[name], build(name)
    for variance in variances(name):
        for mean in (0.0, 0.3 * math.sqrt(variance), -2.0 * math.sqrt(variance)):
            for got, f in (
                (activation.mean(variance, mean), case.f),
                (activation.second_moment(variance, mean), lambda x: case.f(x) ** 2),
                (activation.derivative_mean(variance, mean), case.slope),
                (activation.derivative_second_moment(variance, mean), lambda x: case.slope(x) ** 2),
            ):
                want = oracle.moment(f, variance, mean, case.kinks)
                floor = 1e-12 * math.sqrt(oracle.moment(lambda x, f=f: f(x) ** 2, variance, mean, case.kinks))
                assert got.item() == pytest.approx(want, rel=1e-10, abs=floor), (variance, mean)


def pairs(name):
    for variance in variances(name):
        for rho in CORRELATIONS:
            s = math.sqrt(variance)
            yield variance, variance, rho * variance, 0.0, 0.0
            yield variance, variance / 3, rho * variance / math.sqrt(3), 0.4 * s, -0.2 * s


def errors(name, which):
    """(variance, error, size of the moment, scale sqrt(E f(x)^2 E f(y)^2)) over the pairs."""
    case, activation = CASES[name], build(name)
    f = case.f if which == "cross_moment" else case.slope
    square = activation.second_moment if which == "cross_moment" else activation.derivative_second_moment
    columns = [torch.tensor(c, dtype=torch.float64) for c in zip(*pairs(name), strict=True)]
    got = getattr(activation, which)(*columns)
    scale = torch.sqrt(square(columns[0], columns[3]) * square(columns[1], columns[4]))
    for pair, value, size in zip(pairs(name), got.tolist(), scale.tolist(), strict=True):
        want = oracle.cross_moment(f, *pair, case.kinks)
        yield pair, abs(value - want), abs(want), size


@exact
@pytest.mark.parametrize("which", ["cross_moment", "derivative_cross_moment"])
def test_closed_form_cross_moments(name, which):
    for pair, error, size, scale in errors(name, which):
        assert error <= 1e-10 * size + 1e-13 * scale, pair


# Largest error of the Hermite series, relative to sqrt(E f(x)^2 E f(y)^2), by variance; docs/reference/activations.md.
STATED = {
    ("smooth", "cross_moment"): {1.0: 1e-12, 10.0: 3e-6, 1e3: 3e-2},
    ("smooth", "derivative_cross_moment"): {1.0: 1e-12, 10.0: 2e-4, 1e3: 0.3},
    ("kinked", "cross_moment"): {1.0: 2e-5, 10.0: 3e-5, 1e3: 2e-4},
    ("kinked", "derivative_cross_moment"): {1.0: 5e-3, 10.0: 5e-3, 1e3: 2e-2},
}


@approximate
@pytest.mark.parametrize("which", ["cross_moment", "derivative_cross_moment"])
def test_series_cross_moments(name, which):
    stated = STATED["kinked" if CASES[name].kinks else "smooth", which]
    for pair, error, _, scale in errors(name, which):
        rho = pair[2] / math.sqrt(pair[0] * pair[1])
        limit = 1e-10 if abs(rho) <= 0.7 else next(e for variance, e in stated.items() if pair[0] <= variance)
        assert error <= limit * scale, pair


@every
def test_price_theorem(name):
    """d E f(x) f(y) / d covariance = E f'(x) f'(y), through autograd of one and the formula of the other."""
    activation = build(name)
    covariance = torch.tensor([-0.3, 0.1, 0.4], dtype=torch.float64, requires_grad=True)
    activation.cross_moment(0.5, 0.8, covariance, 0.2, -0.1).sum().backward()
    want = activation.derivative_cross_moment(0.5, 0.8, covariance.detach(), 0.2, -0.1)
    torch.testing.assert_close(covariance.grad, want, rtol=1e-9, atol=1e-11)


@every
def test_gradients_for_root_finding(name):
    """d E f / dm = E f', and d E f^2 / dv agrees with a difference quotient."""
    activation = build(name)
    mean = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    variance = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(activation.mean(0.4, mean), mean)
    torch.testing.assert_close(slope, activation.derivative_mean(0.4, 0.3), rtol=1e-10, atol=1e-12)
    (rate,) = torch.autograd.grad(activation.second_moment(variance), variance)
    step = 1e-5
    quotient = (activation.second_moment(0.4 + step) - activation.second_moment(0.4 - step)) / (2 * step)
    torch.testing.assert_close(rate, quotient, rtol=1e-7, atol=1e-9)


@every
def test_full_correlation(name):
    """At correlation 1 the pair is one variable; at -1 it is x and -x; gradients stay finite."""
    case, activation = CASES[name], build(name)
    for variance in variances(name):
        v = torch.tensor(variance, dtype=torch.float64, requires_grad=True)
        together = activation.cross_moment(v, v, v, 0.3, 0.3)
        torch.testing.assert_close(together, activation.second_moment(v, 0.3), rtol=1e-9, atol=1e-14)
        (rate,) = torch.autograd.grad(together, v)
        assert torch.isfinite(rate)
        opposite = activation.cross_moment(variance, variance, -variance)
        want = oracle.moment(lambda x: case.f(x) * case.f(-x), variance, 0.0, (*case.kinks, *(-k for k in case.kinks)))
        scale = activation.second_moment(variance).item()
        tolerance = 1e-10 if activation.status == "exact" else 1e-5 if variance <= 1 else 3e-2
        assert opposite.item() == pytest.approx(want, abs=tolerance * scale)
        torch.testing.assert_close(
            activation.derivative_cross_moment(variance, variance, variance),
            activation.derivative_second_moment(variance),
            rtol=1e-9,
            atol=1e-14,
        )


@every
def test_zero_variance(name):
    """A constant input: the moments are those of a number, and nothing is nan."""
    case, activation = CASES[name], build(name)
    for mean in (0.0, 0.7, -0.7):
        value, slope = (float(g(np.array(mean))) for g in (case.f, case.slope))
        assert activation.mean(0.0, mean).item() == pytest.approx(value, abs=1e-12)
        assert activation.second_moment(0.0, mean).item() == pytest.approx(value**2, abs=1e-12)
        assert activation.cross_moment(0.0, 0.0, 0.0, mean, mean).item() == pytest.approx(value**2, abs=1e-12)
        if mean:
            assert activation.derivative_second_moment(0.0, mean).item() == pytest.approx(slope**2, abs=1e-12)
    v = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (rate,) = torch.autograd.grad(activation.second_moment(v), v)
    assert torch.isfinite(rate)


@every
def test_huge_variance(name):
    """Far above the scale of the function the moments stay finite and follow its growth."""
    case, activation = CASES[name], build(name)
    if case.growth > 2:
        pytest.skip("grows exponentially")
    small, large = (activation.second_moment(v).item() for v in (1e10, 1e12))
    assert large / small == pytest.approx(100.0**case.growth, rel=1e-3)
    narrow = [activation.derivative_second_moment(v).item() for v in (1e8, 1e10)]
    wide = oracle.moment(lambda x: case.slope(x) ** 2, 1e3, 0.0, case.kinks)
    if wide < 0.1:  # bounded: E f'^2 falls like 1 / sqrt(v)
        assert narrow[0] == pytest.approx(wide * math.sqrt(1e3 / 1e8), rel=2e-2)
        assert narrow[1] == pytest.approx(narrow[0] / 10, rel=1e-3)
    cross = activation.cross_moment(1e12, 1e12, 0.5e12)
    assert 0 <= cross.item() <= large


@every
def test_shapes_and_symmetry(name):
    activation = build(name)
    v = torch.tensor([0.3, 0.5, 0.9], dtype=torch.float64)
    rho = torch.tensor([[1.0, 0.2, -0.4], [0.2, 1.0, 0.6], [-0.4, 0.6, 1.0]], dtype=torch.float64)
    c = rho * torch.sqrt(v[:, None] * v[None])
    for which in (activation.cross_moment, activation.derivative_cross_moment):
        kernel = which(v[:, None], v[None], c)
        assert kernel.shape == (3, 3)
        assert kernel.dtype == torch.float64
        torch.testing.assert_close(kernel, kernel.T, rtol=1e-12, atol=1e-14)
        shifted = which(v[:, None], v[None], c.expand(2, 3, 3), torch.tensor([[[0.1]], [[0.2]]]), 0.0)
        assert shifted.shape == (2, 3, 3)
    assert activation.mean(v).shape == (3,)
    assert activation.second_moment(v[:, None], torch.zeros(1, 4)).shape == (3, 4)


@every
@settings(max_examples=15, deadline=None)
@given(
    vx=st.floats(1e-3, 0.5),
    vy=st.floats(1e-3, 0.5),
    rho=st.floats(-1, 1),
    mx=st.floats(-1, 1),
    my=st.floats(-1, 1),
)
def test_cauchy_schwarz(name, vx, vy, rho, mx, my):
    activation = build(name)
    c = rho * math.sqrt(vx * vy)
    cross = activation.cross_moment(vx, vy, c, mx, my)
    bound = torch.sqrt(activation.second_moment(vx, mx) * activation.second_moment(vy, my))
    assert abs(cross.item()) <= bound.item() * (1 + 1e-7)


@every
@pytest.mark.parametrize("mean", [5e-324, 1e-200, -1e-100])
def test_a_vanishing_mean_is_no_mean(name, mean):
    activation = build(name)
    for moment in (activation.second_moment, activation.derivative_second_moment):
        assert moment(0.5, mean).item() == pytest.approx(moment(0.5, 0.0).item(), rel=1e-6)
    cross = activation.cross_moment(0.5, 0.4, 0.2, mean, 0.0).item()
    assert cross == pytest.approx(activation.cross_moment(0.5, 0.4, 0.2).item(), rel=1e-6)


def test_two_tokens_that_are_equal_up_to_rounding_have_the_moments_of_one():
    """Below a bias that is a constant: the second moment was four times too large, from the last bit of a variance."""
    relu, one = get("relu"), torch.ones(1, dtype=torch.float64)
    for steps in range(-6, 7):
        near = one * (1.0 + steps * torch.finfo(torch.float64).eps)
        pair = relu.cross_moment(one, near, near, -one, -one)
        assert torch.allclose(pair, relu.second_moment(one, -one), rtol=1e-6)
