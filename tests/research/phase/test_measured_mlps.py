"""Measured phase diagrams against exact Jacobians, the theory of wide networks, and themselves."""

import math

import pytest
import torch

from sigprop.errors import InputError, UnknownNameError
from sigprop.research.criticality import architecture, factor_at_depth, predicted_diagram
from sigprop.research.phase.diagram import PhaseDiagram
from sigprop.research.phase.diagrams import mlp_phase
from sigprop.research.phase.networks import MeasuredMLP, Network, block_factor, draw_

X, Y = ("sigma_w", [0.8, 1.4, 2.0]), ("sigma_b", [0.1, 0.6])


def measured(network, x=X, y=Y, fixed=None, **run):
    """chi_J and its standard error, [y, x]."""
    found = mlp_phase(network, x, y, fixed, **run)
    return (torch.tensor(values, dtype=torch.float64) for values in (found.chi, found.standard_error))


@pytest.mark.parametrize("norm", ["none", "preactivation", "activation", "batch"])
def test_probes_give_the_frobenius_norm(norm):
    """Many sign probes through one block, against its full Jacobian by autograd."""
    network = Network("tanh", norm, depth=4, width=12, inputs=5, batch=3 if norm == "batch" else 1)
    generator = torch.Generator().manual_seed(5)
    model = MeasuredMLP(network).requires_grad_(False)
    draw_(model, generator)
    x = torch.randn(network.batch, network.inputs, generator=generator)
    setting = [torch.tensor(value) for value in (1.4, 0.3, 0.5)]

    def probe(output):
        return torch.randint(0, 2, output.shape, generator=generator).float() * 2 - 1

    found = torch.stack([block_factor(model, model.blocks[1], x, *setting, probe) for _ in range(1500)])

    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.mul_(1.4)
            module.bias.mul_(0.3)
    for block in model.blocks:
        block.residual.skip_scale = 0.5
    h = model.blocks[0](model.input(x))
    exact = torch.func.jacrev(model.blocks[1])(h).square().sum() / h.numel()
    assert abs(found.mean() - exact) < 4 * found.std() / len(found) ** 0.5


@pytest.mark.parametrize(
    ("activation", "norm", "mu"),
    [("relu", "none", 0.0), ("erf", "none", 0.5), ("gelu", "preactivation", 0.7), ("tanh", "activation", 0.0)],
)
def test_wide_networks_agree_with_theory(activation, norm, mu):
    network = Network(activation, norm, depth=12, width=200, inputs=300)
    chi, error = measured(network, fixed={"residual": mu}, initializations=50)
    theory = factor_at_depth(architecture(activation, norm, mu), *GRID, 12)
    assert (error / chi < 0.05).all()
    assert ((chi - theory).abs() < 4 * error).all()


GRID = torch.tensor([X[1]]).double(), torch.tensor(Y[1])[:, None].double()


def test_batch_norm_factor():
    network = Network("relu", "batch", depth=6, width=150, inputs=150, batch=150)
    chi, error = measured(network, ("sigma_w", [1.0]), ("sigma_b", [0.0]), initializations=10)
    assert abs(chi.item() - math.pi / (math.pi - 1)) < 4 * error.item() + 0.02


def test_a_wrong_theory_is_seen():
    network = Network("erf", depth=12, width=200, inputs=300)
    chi, error = measured(network, initializations=30)
    wrong = factor_at_depth(architecture("tanh"), *GRID, 12)
    assert ((chi - wrong).abs() > 5 * error).any()


def test_faint_signals_do_not_underflow():
    """ReLU without biases shrinks by 0.07 per layer: 1e-50 after 50 layers, and chi_J = sigma_w^2 / 2 all the way."""
    network = Network("relu", depth=50, width=100, inputs=20)
    chi, error = measured(network, ("sigma_w", [0.1, 0.0]), ("sigma_b", [0.0]), initializations=30)
    assert abs(chi[0, 0] - 0.005) < 4 * error[0, 0]
    assert chi[0, 1] == 0.0


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
    whole.to_json(tmp_path / "phase.json")
    assert PhaseDiagram.from_json(tmp_path / "phase.json") == whole


def test_common_random_numbers():
    """A point gives the same number alone and inside a grid."""
    network = Network("erf", depth=6, width=64, inputs=30)
    grid, _ = measured(network, initializations=2)
    alone, _ = measured(network, ("sigma_w", X[1][1:2]), ("sigma_b", Y[1][:1]), initializations=2)
    torch.testing.assert_close(grid[:1, 1:2], alone, rtol=1e-4, atol=0)


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
        mlp_phase(Network("relu"), X, Y, initializations=0)
