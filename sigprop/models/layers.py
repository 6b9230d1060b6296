"""What the reference networks share: their registry, activations, norms, and the scaled residual junction.

A network is one file, one registration, one test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from sigprop.compat import fans
from sigprop.errors import InputError, UnknownNameError, require_settings
from sigprop.registry import Registry

Builder = Callable[..., nn.Module]


@dataclass(frozen=True)
class Reference:
    """What builds a network, and the dataclass of its settings."""

    build: Builder
    config: type


REFERENCE: Registry[Reference] = Registry("reference network", "sigprop.models")


def reference(name: str, config: type) -> Callable[[Builder], Builder]:
    """Decorator: the builder of a network, from the settings of `config`."""

    def add(function: Builder) -> Builder:
        REFERENCE.add(name, Reference(function, config))
        return function

    return add


def build(name: str, **settings) -> nn.Module:
    """Build a reference network; names of networks and settings are checked."""
    found = REFERENCE[name]
    require_settings(found.config, settings, name)
    return found.build(**settings)


class Erf(nn.Module):
    """erf(x), elementwise."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.erf(x)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "erf": Erf,
    "gelu": nn.GELU,
    "linear": nn.Identity,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer_norm": nn.LayerNorm,
    "rms_norm": lambda width: nn.RMSNorm(width, eps=1e-6),
}


def activation(name: str) -> nn.Module:
    """An activation module by name."""
    if name not in ACTIVATIONS:
        raise UnknownNameError("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]()


def norm(name: str, width: int) -> nn.Module:
    """A normalization over the last axis by name."""
    if name not in NORMS:
        raise UnknownNameError("norm", name, NORMS)
    return NORMS[name](width)


class Residual(nn.Module):
    """The junction `skip_scale * skip + branch_scale * branch`; scales are numbers or scalar parameters."""

    def __init__(self, skip_scale: float = 1.0, branch_scale: float = 1.0, learnable: bool = False):
        super().__init__()
        wrap = (lambda value: nn.Parameter(torch.tensor(float(value)))) if learnable else float
        self.skip_scale = wrap(skip_scale)
        self.branch_scale = wrap(branch_scale)

    def forward(self, skip: Tensor, branch: Tensor) -> Tensor:
        return _scaled(skip, self.skip_scale) + _scaled(branch, self.branch_scale)


def _scaled(x: Tensor, scale: float | Tensor) -> Tensor:
    return x if isinstance(scale, float) and scale == 1.0 else scale * x


def per_layer(key: str, value: float | Sequence[float], depth: int) -> list[float]:
    """One scale for each layer, from a single number or from `depth` numbers."""
    if isinstance(value, (int, float)):
        return [float(value)] * depth
    if len(value) != depth:
        raise InputError(f"{key} has {len(value)} values: needs one number, or one for each of {depth} layers")
    return [float(item) for item in value]


SCHEMES: dict[str, Callable[[int, int], float]] = {
    "gpt2": lambda fan_in, fan_out: 0.02,
    "he": lambda fan_in, fan_out: (2.0 / fan_in) ** 0.5,
    "lecun": lambda fan_in, fan_out: fan_in**-0.5,
    "xavier": lambda fan_in, fan_out: (2.0 / (fan_in + fan_out)) ** 0.5,
}


def initialize_(
    model: nn.Module, scheme: str, generator: Generator | None = None, embedding_std: float = 0.02
) -> nn.Module:
    """Normal weights with the scheme's standard deviation, zero biases, norms at identity; in place.

    A tied head keeps the embedding's scale.
    """
    if scheme not in SCHEMES:
        raise UnknownNameError("initialization scheme", scheme, SCHEMES)
    tied = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, 0.0, embedding_std, generator)
        elif isinstance(module, (nn.Linear, nn.Conv2d)):
            if id(module.weight) not in tied:
                fan_in, fan_out = fans(module.weight)
                nn.init.normal_(module.weight, 0.0, SCHEMES[scheme](fan_in, fan_out), generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm2d)):
            module.reset_parameters()
    return model
