"""chi_J of whole blueprints: the chain of ops agrees with the recursion of one layer, and with real networks."""

import pytest
import torch

from sigprop.blueprints.criticality import block_factor, blueprint_diagram
from sigprop.blueprints.mlp import MLP
from sigprop.errors import InputError, UnknownNameError, UnsupportedError
from sigprop.measure.networks import network_phase
from sigprop.models import build
from sigprop.theory.criticality import architecture, factor_at_depth


@pytest.mark.parametrize("norm", ["none", "preactivation", "activation"])
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_one_chain_two_roads(norm, mu):
    """The MLP blueprint's penultimate block against the recursion; finite-width corrections of norms aside."""
    blueprint = MLP(depth=8, activation="gelu", norm_placement=norm, mu=mu, sigma_w=1.3, sigma_b=0.4, width=100000)
    got = block_factor(blueprint).item()
    want = factor_at_depth(architecture("gelu", norm, mu), 1.3, 0.4, 9).item()
    assert got == pytest.approx(want, rel=1e-4)


def test_mixer_against_real_networks():
    settings = {"depth": 6, "width": 64, "token_hidden": 96, "channel_hidden": 128}
    x, y, fixed = ("sigma_w", [0.7, 1.5]), ("residual", [0.95, 1.0]), {"sigma_b": 0.0}
    theory = blueprint_diagram("mixer", x, y, fixed, settings)
    measured = network_phase(
        lambda: build("mixer", **settings),
        lambda model: model.blocks[-2],
        lambda generator: torch.randn(1, 3, 32, 32, generator=generator),
        x,
        y,
        fixed,
        initializations=20,
    )
    chi, error = torch.tensor(measured.chi), torch.tensor(measured.standard_error)
    # 64 tokens and 64 channels: corrections of order 1 / 64 on top of the sampling error
    assert ((chi - torch.tensor(theory.chi)).abs() < 4 * error + 0.04 * chi).all()


def test_errors():
    with pytest.raises(UnknownNameError):
        blueprint_diagram("mixxer", ("sigma_w", [1.0]), ("residual", [1.0]))
    with pytest.raises(UnsupportedError, match="no biases"):
        blueprint_diagram("vit", ("sigma_w", [1.0]), ("sigma_b", [1.0]))
    with pytest.raises(InputError, match="three blocks"):
        block_factor(MLP(depth=2))
