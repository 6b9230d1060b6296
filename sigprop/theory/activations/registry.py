"""Activations by name, by torch function, or from any elementwise callable."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor

from sigprop.errors import InputError
from sigprop.registry import Registry
from sigprop.theory.activations.base import ActivationFunction

Function = Callable[[Tensor], Tensor]
Factory = TypeVar("Factory", bound=Callable[..., ActivationFunction])

ACTIVATIONS: Registry[Callable[..., ActivationFunction]] = Registry("activation", __package__ or "")
_BY_CALLABLE: dict[Hashable, str] = {}


def register(name: str, *callables: Hashable) -> Callable[[Factory], Factory]:
    """Decorator: make an ActivationFunction class (or a factory of one) known by name and by torch functions."""

    def add(factory: Factory) -> Factory:
        ACTIVATIONS.add(name, factory)
        _BY_CALLABLE.update(dict.fromkeys(callables, name))
        return factory

    return add


def names() -> list[str]:
    """All registered names."""
    return list(ACTIVATIONS)


def get(activation: str | ActivationFunction | Function, **parameters: Any) -> ActivationFunction:
    """The activation of that name, with its parameters, or an elementwise callable wrapped as one.

    For a callable: `kinks=(...)` are the points where its derivative jumps, `name=` is its name.
    """
    if isinstance(activation, ActivationFunction):
        return activation
    if isinstance(activation, str):
        factory = ACTIVATIONS[activation]
        try:
            return factory(**parameters)
        except TypeError as error:
            raise InputError(f"activation {activation!r} does not take {sorted(parameters)}: {error}") from None
    if not callable(activation):
        raise InputError(f"activation = {activation!r} is not allowed: needs a name or an elementwise callable")
    known = _BY_CALLABLE.get(activation) if len(ACTIVATIONS) and isinstance(activation, Hashable) else None
    if known is not None:
        return ACTIVATIONS[known](**parameters)
    return UserActivation(activation, **parameters)


class UserActivation(ActivationFunction):
    """Any elementwise torch function; all moments by quadrature, derivatives by autograd."""

    def __init__(self, function: Function, kinks: tuple[float, ...] = (), name: str | None = None):
        self.name = name or getattr(function, "__name__", type(function).__name__)
        self.function = function
        self.kinks = tuple(float(k) for k in kinks)
        _require_elementwise(function, self.name)

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x)


def _require_elementwise(function: Function, name: str) -> None:
    """Shape, finiteness, differentiability, and that no output looks at another input."""
    x = torch.tensor([-3.1, -1.3, -0.4, 0.2, 0.9, 2.3, 4.7], dtype=torch.float64).requires_grad_()
    problem = f"activation {name!r} is not an elementwise torch function: "
    try:
        value = function(x)
        alone = torch.cat([function(part) for part in x.detach().flip(0).split(1)]).flip(0)
    except Exception as error:
        raise InputError(f"{problem}it failed on a vector of 7 float64 numbers ({error})") from error
    if not isinstance(value, Tensor) or value.shape != x.shape:
        came = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"{problem}an input of shape (7,) gave {came}")
    if not torch.isfinite(value).all():
        where = x[~torch.isfinite(value)][0].item()
        raise InputError(f"activation {name!r} is not finite at x = {where}: it must be defined on the whole line")
    if not torch.allclose(value.detach(), alone, rtol=1e-9, atol=1e-12):
        raise InputError(f"{problem}an output depends on the other inputs, or on chance")
    if not value.requires_grad:
        raise InputError(f"{problem}autograd cannot differentiate it (written without torch operations?)")
