"""MLP, ViT, ResNet, Mixer: shapes, the equations in their headers, and clear errors."""

import pytest
import torch

from sigprop.errors import InputError, UnknownNameError
from sigprop.models import build
from sigprop.models.mlp import MLP, MLPConfig


@pytest.mark.parametrize("placement", ["none", "preactivation", "activation"])
@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_mlp_is_its_recursion(placement, mu):
    torch.manual_seed(0)
    model = build(
        "mlp",
        inputs=6,
        width=8,
        depth=3,
        outputs=2,
        activation="erf",
        norm_placement=placement,
        mu=mu,
        sigma_b=0.3,
    )
    x = torch.randn(4, 6)
    h = x @ model.input.weight.T + model.input.bias

    def standard(z):
        return (z - z.mean(-1, keepdim=True)) / (z.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()

    for block in model.blocks:
        z = {
            "none": torch.erf,
            "preactivation": lambda v: torch.erf(standard(v)),
            "activation": lambda v: standard(torch.erf(v)),
        }[placement](h)
        h = z @ block.linear.weight.T + block.linear.bias + mu * h
    torch.testing.assert_close(model(x), torch.erf(h) @ model.head.weight.T + model.head.bias)


def test_mlp_draws_its_variances_from_the_generator():
    config = MLPConfig(inputs=300, width=300, depth=1, sigma_w=1.7, sigma_b=0.4)
    model = MLP(config, torch.Generator().manual_seed(1))
    weight, bias = model.blocks[0].linear.weight, model.blocks[0].linear.bias
    assert abs(weight.var().item() * 300 / 1.7**2 - 1) < 5 * (2 / weight.numel()) ** 0.5
    assert abs(bias.var().item() / 0.16 - 1) < 5 * (2 / bias.numel()) ** 0.5
    again = MLP(config, torch.Generator().manual_seed(1))
    assert torch.equal(again.head.weight, model.head.weight)


def test_resnet_110_has_110_weight_layers_and_two_projections():
    model = build("resnet")
    layers = [m for m in model.modules() if isinstance(m, (torch.nn.Conv2d, torch.nn.Linear))]
    projections = [b.shortcut for b in model.blocks if b.shortcut is not None]
    assert len(layers) - len(projections) == 110
    assert len(projections) == 2


@pytest.mark.parametrize("norm", ["layer_norm", "batch_norm"])
def test_resnet_without_branch_scales_its_stream_by_mu(norm):
    model = build("resnet", width=4, depth=2, norm=norm, mu=0.5)
    block = model.blocks[1]
    torch.nn.init.zeros_(block.conv2.weight)
    x = torch.randn(2, 4, 8, 8)
    torch.testing.assert_close(block(x), 0.5 * x)
    assert model(torch.randn(2, 3, 8, 8)).shape == (2, 10)


def test_layer_norm_of_the_resnet_is_over_channels_and_pixels_of_one_image():
    block = build("resnet", width=4, depth=1, norm="layer_norm").blocks[0]
    out = block.norm1(torch.randn(3, 4, 8, 8) * 5 + 2)
    torch.testing.assert_close(out.mean((1, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.var((1, 2, 3), correction=0), torch.ones(3), atol=1e-4, rtol=0)


def test_vit_and_mixer_shapes():
    images = torch.randn(2, 1, 8, 8)
    for name in ("vit", "mixer"):
        small = {"image": 8, "channels": 1, "patch": 4, "width": 16, "depth": 2, "classes": 3}
        model = build(name, **small)
        out = model(images)
        assert out.shape == (2, 3)
        out.sum().backward()
        assert all(p.grad is not None for p in model.parameters())


def test_vit_without_positions_does_not_care_about_the_order_of_patches():
    torch.manual_seed(0)
    model = build("vit", image=8, patch=4, width=16, depth=2)
    torch.nn.init.zeros_(model.position_embedding.weight)
    images = torch.randn(2, 1, 8, 8)
    swapped = torch.cat((images[..., 4:], images[..., :4]), dim=-1)
    torch.testing.assert_close(model(images), model(swapped))


def test_mixer_mixes_tokens_and_channels():
    torch.manual_seed(0)
    model = build("mixer", image=8, channels=1, patch=4, width=6, depth=1)
    jacobian = torch.autograd.functional.jacobian(model.blocks[0], torch.randn(1, 4, 6)).reshape(24, 24)
    assert (jacobian.abs() > 1e-9).double().mean() > 0.9


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("vit", {"patch": 5}),
        ("mixer", {"patch": 5}),
        ("resnet", {"norm": "none"}),
        ("mlp", {"norm_placement": "x"}),
    ],
)
def test_wrong_settings_are_named(name, settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        build(name, **settings)


def test_unknown_names_show_the_nearest():
    with pytest.raises(UnknownNameError, match="transformer"):
        build("tranformer")
    with pytest.raises(UnknownNameError, match="width"):
        build("mlp", widht=3)
    with pytest.raises(UnknownNameError, match="gelu"):
        build("mlp", activation="glu")
