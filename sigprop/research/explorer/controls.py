"""What can be set in the explorer: the controls of each architecture, their bounds, and the blueprint they make."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from sigprop.blueprints import MLP, Blueprint, Mixer, ResNet, Transformer, ViT
from sigprop.blueprints.mlp import PLACEMENTS as MLP_PLACEMENTS
from sigprop.blueprints.transformer import PLACEMENTS
from sigprop.errors import InputError, UnknownNameError, require_names
from sigprop.research.stack_laws import SCALINGS

TOKENS, HEAD_WIDTH = 128, 64
ACTIVATIONS = ("relu", "gelu", "silu", "tanh")
INITS = ("xavier", "lecun", "kaiming", "fixed", "gpt2")
SCALED = tuple(name for name in SCALINGS if name != "vanilla")
GAINS = {"kaiming": math.sqrt(2.0), "lecun": 1.0}


@dataclass(frozen=True)
class ExplorerSettings:
    """The values of all controls; those that an architecture does not have are not used."""

    architecture: str = "encoder"
    depth: int = 24
    width: int = 512
    norm: str = "pre"
    activation: str = "gelu"
    dropout: float = 0.0
    recipe: str = "xavier"
    skip: float = 1.0
    branch: float = 1.0
    query_key: float = 1.0


@dataclass(frozen=True)
class Choice:
    """One of a few names."""

    names: tuple[str, ...]

    def read(self, key: str, text: str) -> str:
        if text not in self.names:
            raise UnknownNameError(key, text, self.names)
        return text


@dataclass(frozen=True)
class Range:
    """A number between bounds; whole where its step is."""

    low: float
    high: float
    step: float

    def read(self, key: str, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not self.low <= number <= self.high:
            raise InputError(f"{key} = {text[:40]!r} is not allowed: needs a number from {self.low:g} to {self.high:g}")
        return round(number) if float(self.step).is_integer() else number


Control = Choice | Range
SKIP, BRANCH = Range(0.0, 2.0, 0.05), Range(0.0, 2.0, 0.05)
WIDTHS = Range(64, 4096, 64)


@dataclass(frozen=True)
class ArchitectureControls:
    """Its controls by name, how settings become a blueprint, what correlations are between, and where it starts."""

    controls: Mapping[str, Control]
    blueprint: Callable[[Any], Any]
    between: str
    start: Any = ExplorerSettings()


def _transformer(kind: str) -> Callable[[ExplorerSettings], Blueprint]:
    def make(settings: ExplorerSettings) -> Blueprint:
        options: dict[str, Any] = {"depth": settings.depth, "width": settings.width}
        options |= {"heads": settings.width // HEAD_WIDTH, "norm_placement": settings.norm}
        options |= {"activation": settings.activation, "dropout": settings.dropout}
        scaling = (
            SCALINGS[settings.recipe](settings.depth) if settings.recipe in SCALINGS else {"init": settings.recipe}
        )
        options |= {"skip_scale": 1.0, "branch_scale": 1.0} | scaling | {"query_key_gain": settings.query_key**2}
        for key, factor in (("skip_scale", settings.skip), ("branch_scale", settings.branch)):
            value = options[key]
            options[key] = [item * factor for item in value] if isinstance(value, list) else value * factor
        if kind == "vit":
            return ViT(image=32, channels=3, patch=4, **options)
        return Transformer(kind=kind, tokens=TOKENS, **options)

    return make


def _gain(settings: ExplorerSettings) -> float:
    return GAINS[settings.recipe]


def _mlp(settings: ExplorerSettings) -> Blueprint:
    return MLP(
        settings.depth,
        settings.width,
        activation=settings.activation,
        norm_placement=settings.norm,
        mu=settings.skip,
        sigma_w=_gain(settings),
    )


def _mixer(settings: ExplorerSettings) -> Blueprint:
    return Mixer(
        settings.depth, settings.width, activation=settings.activation, mu=settings.skip, sigma_w=_gain(settings)
    )


def _resnet(settings: ExplorerSettings) -> Blueprint:
    return ResNet(settings.depth, settings.width, norm=settings.norm, mu=settings.skip, sigma_w=_gain(settings))


def _stack(kind: str, depth: int, between: str) -> ArchitectureControls:
    controls: dict[str, Control] = {
        "depth": Range(2, depth, 1),
        "width": WIDTHS,
        "norm": Choice(PLACEMENTS),
        "activation": Choice(ACTIVATIONS),
        "dropout": Range(0.0, 0.9, 0.05),
        "recipe": Choice(INITS + SCALED),
        "skip": SKIP,
        "branch": BRANCH,
        "query_key": Range(0.0, 4.0, 0.1),
    }
    return ArchitectureControls(controls, _transformer(kind), between, ExplorerSettings(kind))


RECIPE = Choice(tuple(GAINS))
ARCHITECTURES = {
    "encoder": _stack("encoder", 128, "tokens"),
    "decoder": _stack("decoder", 48, "tokens"),
    "vit": _stack("vit", 128, "patches"),
    "mlp": ArchitectureControls(
        {
            "depth": Range(3, 128, 1),
            "width": WIDTHS,
            "norm": Choice(MLP_PLACEMENTS),
            "activation": Choice(ACTIVATIONS),
            "recipe": RECIPE,
            "skip": Range(0.0, 1.0, 0.05),
        },
        _mlp,
        "inputs",
        ExplorerSettings("mlp", norm="none", activation="relu", recipe="kaiming", skip=0.0),
    ),
    "mixer": ArchitectureControls(
        {"depth": Range(3, 64, 1), "width": WIDTHS, "activation": Choice(ACTIVATIONS), "recipe": RECIPE},
        _mixer,
        "patches",
        ExplorerSettings("mixer", width=128, recipe="lecun"),
    ),
    "resnet": ArchitectureControls(
        {
            "depth": Range(1, 18, 1),
            "width": Range(16, 256, 16),
            "norm": Choice(("batch_norm", "layer_norm")),
            "recipe": RECIPE,
            "skip": Range(0.0, 1.0, 0.05),
        },
        _resnet,
        "pixels",
        ExplorerSettings("resnet", depth=3, width=16, norm="batch_norm", recipe="kaiming"),
    ),
}


def read_settings(given: Mapping[str, str]) -> ExplorerSettings:
    """Settings from texts; what is not given is where the architecture starts."""
    require_names({key for item in ARCHITECTURES.values() for key in asdict(item.start)}, given, "setting")
    name = Choice(tuple(ARCHITECTURES)).read("architecture", given.get("architecture", next(iter(ARCHITECTURES))))
    controls, start = ARCHITECTURES[name].controls, ARCHITECTURES[name].start
    values: dict[str, Any] = {key: control.read(key, given[key]) for key, control in controls.items() if key in given}
    return replace(start, **values)
