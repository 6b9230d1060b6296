"""chi_J of whole blueprints: the chain of ops agrees with the recursion of one layer, and with real networks."""

import pytest
import torch

from sigprop.blueprints.mlp import MLP
from sigprop.errors import InputError, UnknownNameError
from sigprop.models import build
from sigprop.research.criticality import architecture, factor_at_depth, growth_exponent
from sigprop.research.phase.networks import network_phase
from sigprop.research.phase.predicted import block_factor, blueprint_at, blueprint_diagram, blueprint_line, depth_law


@pytest.mark.parametrize("norm", ["none", "preactivation", "activation"])
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_one_chain_two_roads(norm, mu):
    """The MLP blueprint's penultimate block against the recursion; finite-width corrections of norms aside."""
    blueprint = MLP(depth=8, activation="gelu", norm_placement=norm, mu=mu, sigma_w=1.3, sigma_b=0.4, width=1_000_000)
    got = block_factor(blueprint).item()
    want = factor_at_depth(architecture("gelu", norm, mu), 1.3, 0.4, 9).item()
    assert got == pytest.approx(want, rel=1e-4)


def measured(name, settings, x, y, fixed, initializations=20, size=32):
    diagram = network_phase(
        lambda: build(name, **settings),
        lambda model: model.blocks[-2],
        lambda generator: torch.randn(1, 3, size, size, generator=generator),
        x,
        y,
        fixed,
        initializations=initializations,
    )
    return torch.tensor(diagram.chi), torch.tensor(diagram.standard_error)


def test_mixer_against_real_networks():
    settings = {"depth": 6, "width": 64, "token_hidden": 96, "channel_hidden": 128}
    x, y, fixed = ("sigma_w", [0.7, 1.5]), ("residual", [1.0]), {"sigma_b": 0.0}
    theory = blueprint_diagram("mixer", x, y, fixed, settings)
    chi, error = measured("mixer", settings, x, y, fixed)
    # 64 tokens and 64 channels: corrections of order 1 / 64 on top of the sampling error
    assert ((chi - torch.tensor(theory.chi)).abs() < 4 * error + 0.04 * chi).all()


def test_token_mixing_must_be_drawn_where_the_residual_is_weak():
    """One matrix serves all channels: its average, to first order, misses a sixth of chi_J, its draws do not."""
    settings = {"depth": 6, "width": 96, "token_hidden": 64, "channel_hidden": 96, "image": 16}
    chi, error = measured("mixer", settings, ("sigma_w", [1.5]), ("residual", [0.3]), {"sigma_b": 0.0}, 30, size=16)
    point = {"sigma_w": 1.5, "residual": 0.3}
    draws = torch.stack([block_factor(blueprint_at("mixer", point, {**settings, "seed": seed})) for seed in range(16)])
    error = (error.item() ** 2 + draws.var().item() / len(draws)) ** 0.5
    assert abs(draws.mean().item() - chi.item()) < 4 * error
    averaged = block_factor(blueprint_at("mixer", point, {**settings, "seed": None})).item()
    assert abs(chi.item() - averaged) > 4 * error


def test_biases_of_a_transformer_against_real_networks():
    settings = {"depth": 4, "width": 64, "heads": 4, "image": 16, "channels": 3, "patch": 4}
    x, y, fixed = ("sigma_w", [1.0, 1.6]), ("sigma_b", [0.0, 0.7]), {"residual": 1.0}
    chi, error = measured("vit", settings, x, y, fixed, 24, size=16)
    theory = torch.tensor(blueprint_diagram("vit", x, y, fixed, settings).chi)
    assert ((chi - theory).abs() < 4 * error + 0.02 * chi).all()  # 16 tokens, 64 channels
    assert (theory[0] - theory[1] > 0.02).all()


@pytest.mark.parametrize("name", ["vit", "transformer", "resnet", "mixer"])
def test_a_plane_at_once_is_the_same_as_point_by_point(name):
    settings = {"depth": 3, "width": 32} | ({"heads": 2} if name in ("vit", "transformer") else {})
    x, y = ("sigma_w", [0.5, 1.7]), ("sigma_b", [0.0, 0.6, 0.9])
    diagram = blueprint_diagram(name, x, y, {"residual": 1.0}, settings)
    for i, sigma_b in enumerate(y[1]):
        for j, sigma_w in enumerate(x[1]):
            alone = block_factor(blueprint_at(name, {"sigma_w": sigma_w, "sigma_b": sigma_b}, settings)).item()
            assert diagram.chi[i][j] == pytest.approx(alone, rel=1e-9)


def test_critical_line_of_a_blueprint():
    """On the line chi_J = 1; beside it not. Pre-LN without biases settles below 1 at every sigma_w: no line."""
    settings = {"depth": 8, "width": 64, "heads": 4, "image": 16, "patch": 4}
    line = blueprint_line("vit", ("sigma_w", [0.3, 1.0, 2.0, 3.0]), ("residual", [0.9, 0.95]), None, settings)
    assert line
    for sigma_w, mu in line:
        on, beside = (
            block_factor(blueprint_at("vit", {"sigma_w": w, "residual": mu}, settings)).item()
            for w in (sigma_w, 1.05 * sigma_w)
        )
        assert on == pytest.approx(1.0, abs=1e-5)
        assert abs(beside - 1) > 1e-3
    assert blueprint_line("vit", ("sigma_w", [0.5, 1.0]), ("residual", [0.2]), None, settings) == []


def test_laws_of_depth():
    settings = {"activation": "erf", "norm_placement": "preactivation", "width": 10**6, "sigma_w": 1.2, "sigma_b": 0.1}
    law, exponent = depth_law(MLP(depth=400, mu=1.0, **settings))
    assert law == "power"
    assert exponent == pytest.approx(growth_exponent(architecture("erf", "preactivation", 1.0), 1.2, 0.1), rel=0.01)
    law, rate = depth_law(MLP(depth=40, mu=0.5, **settings))
    settled = architecture("erf", "preactivation", 0.5)
    chi = settled.jacobian(settled.fixed_point(1.2, 0.1), 1.2, 0.1)
    assert (law, rate) == ("exponential", pytest.approx(chi.log().item(), rel=1e-4))


def test_errors():
    with pytest.raises(UnknownNameError):
        blueprint_diagram("mixxer", ("sigma_w", [1.0]), ("residual", [1.0]))
    with pytest.raises(InputError, match="axis"):
        blueprint_diagram("vit", ("sigma_w", [1.0]), ("gain", [1.0]))
    with pytest.raises(InputError, match="two different"):
        blueprint_line("vit", ("sigma_w", [1.0]), ("sigma_w", [1.0]))
    with pytest.raises(InputError, match="three blocks"):
        block_factor(MLP(depth=2))
