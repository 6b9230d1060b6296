"""The shapes of a call's results, as torch itself gives them on meta tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sigprop.capture.record import Call, Record, mapped


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


def _single(item: Any) -> Any:
    """On meta, in float32 where it is floating: a shape does not depend on precision, mixed ones would be refused."""
    if not isinstance(item, Tensor):
        return item
    return item.to("meta", torch.float32) if item.is_floating_point() else item.to("meta")
