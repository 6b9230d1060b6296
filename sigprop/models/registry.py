"""Reference networks by name. One file, one registration, one test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from sigprop.errors import require_settings
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
