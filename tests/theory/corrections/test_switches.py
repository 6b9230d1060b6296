"""Every correction has a switch: nothing of finite width is left when all are off, and each changes something."""

import pytest
import torch

from sigprop.blueprints import MLP, Blueprint, Mixer, ResNet, Transformer, predict
from sigprop.capture import predict as predict_model
from sigprop.models import build
from sigprop.results import Profile
from sigprop.theory.corrections import NAMES, correcting

WIDTHS = (64, 256)
TOKENS = {"tokens": 16, "vocabulary": 100, "depth": 2, "init": "lecun", "top": "white_noise"}
STACKS = {
    "mlp": lambda width: MLP(depth=4, width=width, inputs=width),
    "mlp with norms": lambda width: MLP(depth=4, width=width, inputs=width, norm_placement="preactivation", mu=1.0),
    "mlp, batch norm": lambda width: MLP(depth=4, width=width, inputs=width, norm_placement="batch", samples=32),
    "mixer": lambda width: Mixer(depth=2, width=width, image=16, token_hidden=32, channel_hidden=2 * width),
    "resnet": lambda width: ResNet(depth=1, width=width, image=8, norm="layer_norm"),
    "encoder": lambda width: Transformer(width=width, heads=width // 16, **TOKENS),
    "decoder": lambda width: Transformer(width=width, heads=width // 16, kind="decoder", **TOKENS),
    "averaged decoder": lambda width: Transformer(
        width=width, heads=width // 16, kind="decoder", state="exchangeable", **TOKENS
    ),
}


def shape_of(profile: Profile) -> list[float]:
    """Numbers of the stream that no width enters: gradients beside that of the last block."""
    rows = [row for row in profile.sites if row.name != "head"]
    last = rows[-1].grad_variance
    return [
        number
        for row in rows
        for number in (row.variance, row.token_correlation, row.grad_variance / last, row.grad_token_correlation)
    ]


def predicted(blueprint: Blueprint, corrections: tuple[str, ...]) -> list[float]:
    with correcting(corrections):
        return shape_of(predict(blueprint))


@pytest.mark.parametrize("name", STACKS)
def test_without_corrections_no_width_is_left(name):
    narrow, wide = (predicted(STACKS[name](width), ()) for width in WIDTHS)
    assert narrow == pytest.approx(wide, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", ["mlp with norms", "encoder", "decoder", "averaged decoder"])
def test_finite_width_is_what_makes_the_width_count(name):
    narrow, wide = (predicted(STACKS[name](width), ("finite_width",)) for width in WIDTHS)
    assert narrow != pytest.approx(wide, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_each_switch_changes_a_gradient(name):
    """A Post-LN decoder has all that they are about: norms, pairs of tokens, activations, a loss on its stream."""
    ids = torch.randint(64, (1, 12), generator=torch.Generator().manual_seed(0))

    def gradients(corrections: tuple[str, ...]) -> list[float]:
        model = build("transformer", width=32, depth=2, heads=4, vocabulary=64, norm_placement="post", kind="decoder")
        with correcting(corrections):
            return [row.grad_second_moment for row in predict_model(model, ids, loss="cross_entropy").parameters]

    assert gradients(NAMES) != pytest.approx(gradients(tuple(other for other in NAMES if other != name)), rel=1e-4)
