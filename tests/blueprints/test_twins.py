"""A blueprint and the reference model of the same name give the same rows, within what they state.

Both by theory, on white inputs and with one loss. What does not hold is named, so that it is seen when it is mended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sigprop.blueprints import BLUEPRINTS, MLP, Blueprint, Mixer, ResNet, Transformer, ViT
from sigprop.blueprints import predict as predict_blueprint
from sigprop.capture import predict
from sigprop.models import build
from sigprop.models.layers import initialize_
from sigprop.results import Profile

WORDS, TOKENS = 64, 24
IDS = torch.randint(WORDS, (1, TOKENS), generator=torch.Generator().manual_seed(0))
SHAPE: dict[str, Any] = {"width": 64, "depth": 3, "heads": 4}


@dataclass(frozen=True)
class Twin:
    """A model with its batch and a blueprint; `names` are the parameters whose rows differ by more than they state."""

    model: Callable[[], nn.Module]
    batch: Tensor
    blueprint: Blueprint
    loss: Any = "noise"
    names: tuple[str, ...] = ()


def next_token(logits: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.reshape(-1, WORDS), IDS[0].roll(-1))


def white(samples: int, size: int) -> Tensor:
    """Orthogonal rows of mean zero and mean square one: what blueprints call white."""
    columns = torch.randn(size, samples + 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    columns[:, 0] = 1.0
    return (torch.linalg.qr(columns)[0][:, 1:].T * size**0.5).float()


def image(side: int, patch: int, channels: int) -> Tensor:
    """White patches of one image."""
    count = side // patch
    patches = white(count**2, channels * patch**2).reshape(count, count, channels, patch, patch)
    return patches.permute(2, 0, 3, 1, 4).reshape(1, channels, side, side)


def by_fan_in(model: nn.Module, sigma_w: float, sigma_b: float = 0.0) -> nn.Module:
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=sigma_w / parameter[0].numel() ** 0.5)
        elif "norm" not in name:
            nn.init.normal_(parameter, std=sigma_b)
    return model


def transformer(**settings: Any) -> nn.Module:
    model = build("transformer", vocabulary=WORDS, context=TOKENS, **SHAPE, **settings)
    return initialize_(model, "xavier", embedding_std=1.0)


def vit() -> nn.Module:
    model = initialize_(build("vit", **SHAPE), "xavier", embedding_std=1.0)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and ("patch" in name or "position" in name):
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5 if "patch" in name else 1.0)
    return model


def of_transformer(kind: str, placement: str, loss: Any) -> Twin:
    top, settings = "cross_entropy" if callable(loss) else "white_noise", {"kind": kind, "norm_placement": placement}
    blueprint = Transformer(
        **SHAPE, **settings, vocabulary=WORDS, tokens=TOKENS, ids=IDS[0], init="xavier", bias_variance=0.0,
        activation="gelu", state="dense", top=top,
    )  # fmt: skip
    return Twin(lambda: transformer(**settings), IDS, blueprint, loss)


SMALL: dict[str, Any] = {"depth": 2, "width": 64, "image": 16, "token_hidden": 64, "channel_hidden": 128}
NORMED: dict[str, Any] = {"width": 64, "depth": 4, "inputs": 64, "activation": "tanh", "mu": 1.0}
NORMED |= {"norm_placement": "preactivation", "sigma_w": 1.0, "sigma_b": 0.3}
TWINS = {
    **{
        f"transformer, {kind}, {placement}-LN, {name}": of_transformer(kind, placement, loss)
        for kind in ("encoder", "decoder")
        for placement in ("pre", "post")
        for name, loss in (("noise", "noise"), ("cross-entropy", next_token))
    },
    "vit": Twin(vit, image(28, 7, 1), ViT(**SHAPE, init="xavier", top="white_noise", bias_variance=0.0)),
    "mlp": Twin(lambda: build("mlp", width=64, depth=4, inputs=64), white(2, 64), MLP(width=64, depth=4, inputs=64)),
    "mlp, norms": Twin(lambda: build("mlp", **NORMED), white(2, 64), MLP(**NORMED)),
    "mixer": Twin(lambda: by_fan_in(build("mixer", **SMALL), 1.0), image(16, 4, 3), Mixer(**SMALL)),
    "resnet": Twin(
        lambda: by_fan_in(build("resnet", depth=1, width=16, norm="layer_norm"), 2.0**0.5),
        torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0)),
        ResNet(depth=1, width=16, image=16, norm="layer_norm"),
    ),
}


def outside(found: Profile, model: Profile) -> list[str]:
    """Rows of both whose numbers differ by more than the larger of the errors that they state; guesses state none."""
    names = []
    for mine, theirs in (("sites", "sites"), ("parameters", "parameters")):
        others = {row.name: row for row in getattr(model, theirs)}
        for row in getattr(found, mine):
            other = others.get(row.name)
            for column in row.stated_errors if other is not None else ():
                one, two = getattr(row, column), getattr(other, column)
                stated = max(row.stated_errors[column], other.stated_errors.get(column, 1.0))
                if two and one is not None and abs(one / two - 1.0) > stated:
                    names.append(f"{row.name} {column}")
    return names


def test_every_blueprint_has_a_twin():
    assert {type(twin.blueprint) for twin in TWINS.values()} == set(BLUEPRINTS.values())


@pytest.mark.parametrize("name", TWINS)
def test_a_blueprint_gives_the_rows_of_the_model(name):
    twin = TWINS[name]
    torch.manual_seed(0)
    model, found = predict(twin.model, twin.batch, loss=twin.loss), predict_blueprint(twin.blueprint)
    names = {row.name for row in model.sites}
    assert {row.name for row in found.sites} - names <= {"embedding"}  # the sum of tables is no module
    assert {row.name for row in found.parameters} <= {row.name for row in model.parameters}
    assert outside(found, model) == list(twin.names)


def test_the_exact_chain_is_the_same_to_rounding():
    """One that has neither a norm nor a residual sum states a tenth, and agrees to the last digit."""
    twin = TWINS["mlp"]
    model, found = predict(twin.model, twin.batch, loss="noise"), predict_blueprint(twin.blueprint)
    for row, other in zip(found.parameters, model.parameters, strict=True):
        assert row.name == other.name
        assert row.grad_second_moment == pytest.approx(other.grad_second_moment, rel=1e-6)
    for row in found.sites:
        assert row.variance == pytest.approx(model[row.name].variance, rel=1e-6)
