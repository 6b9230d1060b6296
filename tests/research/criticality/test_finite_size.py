"""chi_J at finite width and batch, against the infinite limit, a simulated chain and real networks."""

import pytest
import torch

from sigprop.errors import InputError
from sigprop.research.criticality import architecture, batch_norm_factor, factor_at_depth, factor_at_width
from sigprop.research.phase.diagrams import mlp_phase
from sigprop.research.phase.networks import Network


@pytest.mark.parametrize(("activation", "mu", "stages"), [("relu", 0.0, 2), ("gelu", 0.6, 1), ("tanh", 0.9, 3)])
def test_batch_norm_tends_to_the_large_batch_limit(activation, mu, stages):
    network = architecture(activation, "batch", mu, stages)
    large = factor_at_depth(network, 1.3, 0.2, 7).item()
    shifts = [batch_norm_factor(network, 7, size, size).item() - large for size in (10**4, 10**6)]
    assert shifts[0] == pytest.approx(100 * shifts[1], rel=0.01)
    assert abs(shifts[1]) < 1e-3


@pytest.mark.parametrize(
    ("activation", "mu", "stages", "batch"),
    [("relu", 0.0, 1, 150), ("relu", 0.7, 2, 150), ("tanh", 0.5, 1, 80), ("erf", 0.0, 2, 150)],
)
def test_batch_norm_against_real_networks(activation, mu, stages, batch):
    """Within 4 standard errors, while the large-batch limit is further off."""
    network = Network(activation, "batch", 5, 150, inputs=200, batch=batch, stages=stages)
    plane = (("sigma_w", [1.0]), ("sigma_b", [0.0]), {"residual": mu})
    found = mlp_phase(network, *plane, initializations=200)
    assert found.standard_error is not None
    mean, error = found.chi[0][0], found.standard_error[0][0]
    known = architecture(activation, "batch", mu, stages)
    finite = batch_norm_factor(known, 5, 150, batch, inputs=200)
    large = factor_at_depth(known, 1.0, 0.0, 5)
    assert error < 0.004 * mean
    assert abs(mean - finite.item()) < 4 * error
    assert abs(mean - large.item()) > 4 * error


def test_kernel_that_walks():
    """GELU between its critical points: the chain of kernels simulated with real draws of 200 channels."""
    sigma_w, sigma_b, width, chains = 1.4692, 0.195, 200, 1500
    network, generator = architecture("gelu"), torch.Generator().manual_seed(0)
    kernel = torch.full((chains, 1), sigma_w**2 + sigma_b**2)
    for _ in range(20 - 3):
        h = kernel.sqrt() * torch.randn(chains, width, generator=generator)
        kernel = sigma_w**2 * torch.nn.functional.gelu(h).square().mean(1, keepdim=True) + sigma_b**2
    chi = network.jacobian(kernel, sigma_w, sigma_b)
    error = chi.std().item() / chains**0.5
    assert abs(chi.mean().item() - factor_at_width(network, sigma_w, sigma_b, 20, width).item()) < 4 * error
    assert abs(chi.mean().item() - factor_at_depth(network, sigma_w, sigma_b, 20).item()) > 8 * error


def test_wide_networks_do_not_walk():
    sigma_w, sigma_b = torch.tensor([0.7, 1.2, 1.9]).double(), torch.tensor([0.0, 0.5, 0.1]).double()
    for activation in ("erf", "gelu", "relu"):
        network = architecture(activation)
        wide = factor_at_width(network, sigma_w, sigma_b, 12, 10**9, inputs=10**9)
        torch.testing.assert_close(wide, factor_at_depth(network, sigma_w, sigma_b, 12), rtol=1e-4, atol=0)


def test_bad_sizes():
    with pytest.raises(InputError, match="batch"):
        batch_norm_factor(architecture("relu", "batch"), 6, 100, 2)
    with pytest.raises(InputError, match="depth"):
        batch_norm_factor(architecture("relu", "batch"), 2, 100, 100)
    with pytest.raises(InputError, match="residual"):
        factor_at_width(architecture("relu", residual=0.5), 1.0, 0.0, 10, 100)
