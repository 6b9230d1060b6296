"""Phase diagrams of other networks: shared random weights under vmap against networks built at each setting."""

import pytest
import torch

from sigprop.errors import InputError
from sigprop.models import build
from sigprop.research.criticality import architecture, factor_at_depth
from sigprop.research.phase.networks import block_factor, draw_, network_phase

CASES = {
    "vit": ({"depth": 3, "width": 16, "heads": 2, "image": 8, "patch": 4}, (2, 1, 8, 8)),
    "mixer": ({"depth": 3, "width": 8, "image": 8, "token_hidden": 6, "channel_hidden": 12}, (2, 3, 8, 8)),
    "resnet": ({"depth": 1, "width": 4, "norm": "layer_norm", "bias": True}, (2, 3, 8, 8)),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_scaled_weights_equal_a_network_drawn_at_that_setting(name):
    """sigma_w, sigma_b and mu put into the parameters by hand give the same Jacobian factor."""
    settings, shape = CASES[name]
    sigma_w, sigma_b, mu = 1.3, 0.4, 0.6
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    model = build(name, **settings).requires_grad_(False)
    draw_(model, torch.Generator().manual_seed(2))
    probe = lambda output: torch.ones_like(output)  # noqa: E731
    values = [torch.tensor(v) for v in (sigma_w, sigma_b, mu)]
    got = block_factor(model, model.blocks[-2], x, *values, probe)

    by_hand = build(name, **settings, **({"skip_scale": mu} if name == "vit" else {"mu": mu})).requires_grad_(False)
    by_hand.load_state_dict(model.state_dict())
    for module in by_hand.modules():
        if isinstance(module, (torch.nn.Linear, torch.nn.Conv2d)):
            module.weight.mul_(sigma_w)
            module.bias.mul_(sigma_b)
    seen = {}
    handle = by_hand.blocks[-2].register_forward_hook(lambda m, i, o: seen.update(x=i[0]))
    by_hand(x)
    handle.remove()
    output, pull = torch.func.vjp(by_hand.blocks[-2], seen["x"])
    want = pull(torch.ones_like(output))[0].square().sum() / output.numel()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=0)


def test_grid_agrees_with_the_theory_of_wide_mlps():
    diagram = network_phase(
        lambda: build("mlp", depth=8, width=150, activation="erf", norm_placement="preactivation", mu=0.5),
        lambda model: model.blocks[-2],
        lambda generator: torch.randn(1, 784, generator=generator),
        ("sigma_w", [0.5, 2.0]),
        ("sigma_b", [0.0, 0.5]),
        {"residual": 0.5},
        initializations=25,
        chunk=3,
    )
    grid_w, grid_b = torch.tensor([[0.5, 2.0]]).double(), torch.tensor([[0.0], [0.5]]).double()
    theory = factor_at_depth(architecture("erf", "preactivation", 0.5), grid_w, grid_b, 9)
    error = torch.tensor(diagram.standard_error).double()
    assert ((torch.tensor(diagram.chi).double() - theory).abs() < 4 * error).all()


def test_batch_norm_network_runs_and_junctions_are_restored():
    model = build("resnet", depth=1, width=4, norm="batch_norm")
    diagram = network_phase(
        lambda: model,
        lambda m: m.blocks[-2],
        lambda generator: torch.randn(8, 3, 8, 8, generator=generator),
        ("sigma_w", [1.0, 2.0]),
        ("residual", [0.0, 1.0]),
        initializations=2,
    )
    assert torch.isfinite(torch.tensor(diagram.chi)).all()
    assert diagram.chi[0][0] == pytest.approx(diagram.chi[0][1], rel=1e-3)  # mu = 0: BatchNorm forgets sigma_w
    assert all(block.residual.skip_scale == 1.0 for block in model.blocks)


def test_errors():
    with pytest.raises(InputError, match="chunk"):
        network_phase(lambda: None, lambda m: m, lambda g: None, ("sigma_w", [1]), ("sigma_b", [0]), chunk=0)  # type: ignore
    with pytest.raises(InputError, match="axis"):
        network_phase(lambda: None, lambda m: m, lambda g: None, ("gain", [1]), ("sigma_b", [0]))  # type: ignore
