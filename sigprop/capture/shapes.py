"""The shapes of a call's results, as torch itself gives them on meta tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import resolve_name

from sigprop.capture.record import Call, Record, leaves, mapped
from sigprop.errors import NoRule, SigpropError


def result_shape(call: Call) -> tuple[int, ...]:
    """The shape of the one tensor that a call makes."""
    return tuple(on_meta(call).shape)


def on_meta(call: Call) -> Any:
    """What a call gives, as tensors without numbers."""

    def meta(item: Any) -> Any:
        if isinstance(item, Record):
            return torch.empty(item.shape, dtype=item.dtype, device="meta")
        if isinstance(item, Tensor) and item.is_floating_point():
            return item.to("meta")
        return item

    args, kwargs = mapped((call.args, call.kwargs), meta)
    try:
        return call.function(*args, **kwargs)
    except (RuntimeError, NotImplementedError):
        args, kwargs = mapped((args, kwargs), _single)
        return call.function(*args, **kwargs)


def made_on_meta(call: Call) -> Any:
    """The same; that the function itself refuses such tensors is a refusal of its call."""
    try:
        return on_meta(call)
    except SigpropError:
        raise
    except Exception as error:
        raise no_rule(call, f"it cannot be run without values: {type(error).__name__}: {error}") from error


def no_rule(call: Call, reason: str) -> NoRule:
    """The refusal of a call, with what can be done."""
    function = resolve_name(call.function) or call.name
    given = [item for item in leaves((call.args, call.kwargs)) if isinstance(item, (Record, Tensor))]
    shapes = ", ".join(f"{type(item).__name__.lower()} {tuple(item.shape)}" for item in given)
    return NoRule(
        f"no rule follows {function} in {call.module!r} on {shapes}: {str(reason).splitlines()[0]}. "
        f"Register one with @sigprop.capture.rule({call.name!r}), a function of (capture, call, *args, **kwargs) that "
        "returns a sigprop.capture.Field; docs/do/rules.md has one that runs."
    )


def _single(item: Any) -> Any:
    """On meta, in float32 where it is floating: a shape does not depend on precision, mixed ones would be refused."""
    if not isinstance(item, Tensor):
        return item
    return item.to("meta", torch.float32) if item.is_floating_point() else item.to("meta")
