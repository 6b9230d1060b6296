"""Fixed points, recursions over depth, growth laws, and the finite input width, against iteration and Monte Carlo."""

import math

import pytest
import torch

from sigprop.errors import InputError
from sigprop.research.criticality import (
    architecture,
    factor_at_depth,
    growth_exponent,
    jacobian_from_input,
    stretched_rate,
    trajectory,
)
from sigprop.theory.activations import get

GRID_W = torch.linspace(0.2, 2.6, 7, dtype=torch.float64)[:, None]
GRID_B = torch.linspace(0.0, 1.0, 5, dtype=torch.float64)


@pytest.mark.parametrize("activation", ["erf", "gelu", "relu", "tanh", "softplus"])
@pytest.mark.parametrize("mu", [0.0, 0.6])
def test_fixed_point_is_where_iteration_ends(activation, mu):
    network = architecture(activation, residual=mu)
    found = network.fixed_point(GRID_W, GRID_B)
    kernel = GRID_W**2 + GRID_B**2
    slow = torch.zeros_like(found, dtype=torch.bool)
    for _ in range(400):
        after = network.step(kernel, GRID_W, GRID_B).clamp(max=1e30)
        slow = (after / kernel - 1).abs() > 1e-9
        kernel = after
    finite = torch.isfinite(found)
    settled = finite & ~slow
    torch.testing.assert_close(kernel[settled], found[settled], rtol=1e-6, atol=1e-9)
    assert (kernel[~finite] > 1e3).all()
    assert settled.sum() > 10


def test_fixed_point_depends_on_the_start_where_there_are_two():
    """GELU between its critical points: kernels below the unstable fixed point die, those above grow."""
    network = architecture("gelu")
    small, large = (network.fixed_point(1.6, 0.0, start=start).item() for start in (1e-3, 50.0))
    assert small == 0.0
    assert large == math.inf


def test_fixed_point_of_a_map_that_falls():
    """A bump: E phi^2 falls with K, and the map is not monotone."""
    network = architecture(lambda x: torch.exp(-x * x))
    kernel = network.fixed_point(torch.tensor([0.5, 1.0]).double(), 0.3)
    torch.testing.assert_close(network.step(kernel, torch.tensor([0.5, 1.0]), 0.3), kernel)


def test_kernel_slope_closed_forms():
    k = torch.tensor([0.1, 1.0, 30.0], dtype=torch.float64)
    erf = 4 * 1.3**2 / math.pi / ((1 + 2 * k) * torch.sqrt(1 + 4 * k))
    torch.testing.assert_close(architecture("erf").kernel_slope(k, 1.3, 0.2), erf)
    gelu = torch.asin(k / (1 + k)) + (4 * k**3 + 11 * k**2 + 5 * k) / ((1 + k) ** 2 * (1 + 2 * k) ** 1.5)
    torch.testing.assert_close(architecture("gelu").kernel_slope(k, 1.3, 0.2), 1.69 / 4 + 1.69 / (2 * math.pi) * gelu)
    relu = architecture("relu", residual=0.5).kernel_slope(k, 1.3, 0.2)
    torch.testing.assert_close(relu, torch.full_like(k, 1.69 / 2 + 0.25))


@pytest.mark.parametrize(
    ("activation", "sigma_w", "sigma_b"), [("erf", 1.4, 0.3), ("gelu", 1.4, 0.0), ("relu", 1.4, 0.5)]
)
def test_growth_exponent_of_full_residual(activation, sigma_w, sigma_b):
    network = architecture(activation, norm="preactivation", residual=1.0)
    run = trajectory(network, sigma_w, sigma_b, 10000)
    log_j = torch.log(run.jacobian)
    slope = (log_j[-1] - log_j[4999]).item() / math.log(2)
    assert slope == pytest.approx(growth_exponent(network, sigma_w, sigma_b), rel=3e-4)
    closed = {"erf": 2 / math.sqrt(5) / math.asin(2 / 3), "relu": 1.0, "gelu": 1.0720}
    assert growth_exponent(network, sigma_w, 0.0) == pytest.approx(closed[activation], rel=5e-5)


@pytest.mark.parametrize("activation", ["erf", "tanh", "sin"])
def test_stretched_exponential(activation):
    """log J ~ 2 c sqrt(l) + O(log l); sin oscillates instead of saturating, so its chi_J stays above one."""
    network = architecture(activation, residual=1.0)
    if activation == "sin":
        assert network.jacobian(1e9, 1.0, 0.0).item() == pytest.approx(1.5)
        return
    rate = stretched_rate(network, 0.8, 0.3)
    run = trajectory(network, 0.8, 0.3, 4000)
    early, late = ((run.jacobian_factor[layer - 1] - 1).item() * math.sqrt(layer) for layer in (1000, 4000))
    assert 2 * late - early == pytest.approx(rate, rel=2e-3)  # the correction is of order 1 / sqrt(l)
    if activation == "erf":
        assert rate == pytest.approx(2 * 0.64 / (math.pi * math.sqrt(0.64 + 0.09)), rel=1e-8)
    else:
        assert rate == pytest.approx(0.64 * 4 / 3 / math.sqrt(2 * math.pi) / math.sqrt(0.64 + 0.09), rel=1e-8)
    assert stretched_rate(architecture("relu", residual=1.0), 1.0, 0.0) is None


@pytest.mark.parametrize("mu", [0.0, 0.3, 0.9])
def test_batch_norm_factors(mu):
    for stages in (1, 2):
        network = architecture("relu", norm="batch", residual=mu, stages=stages)
        factor = network.jacobian(network.fixed_point(1.7, 0.4), 1.7, 0.4).item()
        want = (math.pi / (math.pi - 1)) ** stages * (1 - mu**2) + mu**2
        assert factor == pytest.approx(want, rel=1e-12)
        difference = network.fixed_point(1.7, 0.4).item()
        assert difference == pytest.approx(1.7**2 * (math.pi - 1) / (2 * math.pi * (1 - mu**2)), rel=1e-12)


def test_trajectory_agrees_with_the_factor_at_depth():
    network = architecture("gelu", residual=0.5)
    run = trajectory(network, GRID_W, GRID_B, 30)
    assert run.kernel.shape == (30, 7, 5)
    torch.testing.assert_close(run.jacobian_factor[27], factor_at_depth(network, GRID_W, GRID_B, 30))
    torch.testing.assert_close(run.jacobian[3], run.jacobian_factor[:3].prod(0))
    with pytest.raises(InputError, match="depth"):
        factor_at_depth(network, 1.0, 0.0, 2)


def test_finite_input_width():
    """Lemma D.1 against Monte Carlo; the uncorrected value must miss it."""
    inputs, width, nets, sigma_w, sigma_b = 6, 60, 20000, 1.5, 0.2
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(inputs, generator=generator, dtype=torch.float64)
    x = x / x.square().mean().sqrt()
    first = sigma_w / inputs**0.5 * torch.randn(nets, width, inputs, generator=generator, dtype=torch.float64)
    bias = sigma_b * torch.randn(nets, width, generator=generator, dtype=torch.float64)
    slopes = get("erf").derivative(first @ x + bias)
    # the average over second weights is exact: sigma_w^2 / N sum_k phi'(h_k)^2 sum_j W_kj^2
    each = sigma_w**2 * (slopes**2 * (first**2).sum(-1)).mean(-1)
    mean, error = each.mean().item(), each.std().item() / nets**0.5
    corrected, plain = jacobian_from_input(get("erf"), sigma_w, sigma_b, inputs)
    assert abs(mean - corrected.item()) < 4 * error
    assert abs(mean - plain.item()) > 10 * error
    relu = jacobian_from_input(get("relu"), sigma_w, sigma_b, inputs)
    assert relu[0].item() == pytest.approx(relu[1].item())
