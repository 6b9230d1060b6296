"""Measured phase diagrams against exact Jacobians, the theory of wide networks, and themselves."""

import math

import pytest
import torch

from sigprop.errors import InputError, UnknownNameError
from sigprop.research.criticality import architecture, factor_at_depth, predicted_diagram
from sigprop.research.phase.diagram import PhaseDiagram
from sigprop.research.phase.diagrams import block_factors, measure_factors, mlp_phase
from sigprop.research.phase.networks import Layers, Network, Points

SIGMA_W = torch.tensor([0.8, 1.4, 2.0])
SIGMA_B = torch.tensor([0.3, 0.1, 0.6])


@pytest.mark.parametrize("norm", ["none", "preactivation", "activation", "batch"])
def test_probes_give_the_frobenius_norm(norm):
    """Many sign probes through one block, against the full Jacobian of each point by autograd."""
    network = Network("tanh", norm, depth=4, width=12, inputs=5, batch=3 if norm == "batch" else 1)
    points = Points.of(SIGMA_W, SIGMA_B, torch.tensor([0.0, 0.5, 1.0]), "cpu")
    layers = Layers(network, points, seed=5)
    with torch.no_grad():
        h = layers.linear(network.inputs)(layers.normal(network.batch, network.inputs))
        h = layers.block()(h)
    block = layers.block()
    exact = []
    for p in range(3):
        jacobian = torch.func.jacrev(lambda row, p=p: block(torch.cat([h[:p], row[None], h[p + 1 :]]))[p])(h[p])
        exact.append(jacobian.square().sum() / h[p].numel())
    estimate = block_factors(network, points, seed=5, probes=1500)
    torch.testing.assert_close(estimate, torch.stack(exact), rtol=0.1, atol=0)


@pytest.mark.parametrize(
    ("activation", "norm", "mu"),
    [("relu", "none", 0.0), ("erf", "none", 0.5), ("gelu", "preactivation", 0.7), ("tanh", "activation", 0.0)],
)
def test_wide_networks_agree_with_theory(activation, norm, mu):
    network = Network(activation, norm, depth=12, width=200, inputs=300)
    average = measure_factors(network, SIGMA_W, SIGMA_B, mu, initializations=30, probes=2)
    theory = factor_at_depth(architecture(activation, norm, mu), SIGMA_W.double(), SIGMA_B.double(), 12)
    assert (average.standard_error / average.mean < 0.05).all()
    assert ((average.mean - theory).abs() < 4 * average.standard_error).all()


def test_batch_norm_factor():
    network = Network("relu", "batch", depth=6, width=150, inputs=150, batch=150)
    average = measure_factors(network, torch.tensor([1.0]), torch.tensor([0.0]), 0.0, initializations=8)
    assert abs(average.mean.item() - math.pi / (math.pi - 1)) < 4 * average.standard_error.item() + 0.02


def test_a_wrong_theory_is_seen():
    network = Network("erf", depth=12, width=200, inputs=300)
    average = measure_factors(network, SIGMA_W, SIGMA_B, 0.0, initializations=20, probes=2)
    wrong = factor_at_depth(architecture("tanh"), SIGMA_W.double(), SIGMA_B.double(), 12)
    assert ((average.mean - wrong).abs() > 5 * average.standard_error).any()


def test_faint_signals_do_not_underflow():
    """ReLU without biases shrinks by 0.07 per layer: 1e-50 after 50 layers, and chi_J = sigma_w^2 / 2 all the way."""
    sigma_w = torch.tensor([0.1, 0.0])
    network = Network("relu", depth=50, width=100, inputs=20)
    average = measure_factors(network, sigma_w, torch.zeros(1), initializations=30)
    assert abs(average.mean[0].item() - 0.005) < 4 * average.standard_error[0].item()
    assert average.mean[1].item() == 0.0


def test_reproducible_and_resumable(tmp_path):
    network = Network("gelu", depth=5, width=40, inputs=20)
    grid = {"x": ("sigma_w", [0.5, 1.0, 2.0]), "y": ("residual", [0.0, 1.0]), "fixed": {"sigma_b": 0.2}}
    whole = mlp_phase(network, **grid, initializations=6, seed=3)
    state = tmp_path / "state.json"
    mlp_phase(network, **grid, initializations=2, seed=3, resume=state)
    seen = []
    rest = mlp_phase(network, **grid, initializations=6, seed=3, resume=state, progress=lambda i, n: seen.append(i))
    assert seen == [3, 4, 5, 6]
    torch.testing.assert_close(torch.tensor(rest.chi), torch.tensor(whole.chi))
    torch.testing.assert_close(torch.tensor(rest.standard_error), torch.tensor(whole.standard_error))
    assert mlp_phase(network, **grid, initializations=6, seed=4).chi != whole.chi
    with pytest.raises(InputError, match="other settings"):
        mlp_phase(network, **grid, initializations=6, seed=4, resume=state)
    path = whole.save(tmp_path / "phase.json")
    assert PhaseDiagram.load(path) == whole


def test_common_random_numbers():
    """A point gives the same number alone and inside a grid."""
    network = Network("erf", depth=6, width=64, inputs=30)
    grid = measure_factors(network, SIGMA_W, SIGMA_B, initializations=2)
    alone = measure_factors(network, SIGMA_W[1:2], SIGMA_B[1:2], initializations=2)
    torch.testing.assert_close(grid.mean[1:2], alone.mean, rtol=1e-4, atol=0)


def test_bad_settings():
    for settings, match in (
        ({"depth": 2}, "depth"),
        ({"norm": "layer"}, "norm"),
        ({"norm": "batch", "batch": 1}, "batch"),
        ({"stages": 2}, "stages"),
    ):
        with pytest.raises(InputError, match=match):
            Network("relu", **settings)
    with pytest.raises(UnknownNameError, match="activation"):
        Network("rellu")
    with pytest.raises(InputError, match="sigma_w"):
        measure_factors(Network("relu"), torch.tensor([-1.0]), torch.tensor([0.0]))
    with pytest.raises(InputError, match="axis"):
        mlp_phase(Network("relu"), ("gain", [1.0]), ("sigma_b", [0.0]))
    for values, match in (([], "at least one"), ([-1.0], "not negative"), ([float("nan")], "finite")):
        with pytest.raises(InputError, match=match):
            mlp_phase(Network("relu"), ("sigma_w", values), ("sigma_b", [0.0]))
        with pytest.raises(InputError, match=match):
            predicted_diagram("relu", ("sigma_w", values), ("sigma_b", [0.0]))
    with pytest.raises(InputError, match="between 0 and 1"):
        mlp_phase(Network("relu"), ("sigma_w", [1.0]), ("sigma_b", [0.0]), {"residual": 1.5})
    with pytest.raises(InputError, match="initializations"):
        measure_factors(Network("relu"), SIGMA_W, SIGMA_B, initializations=0)
