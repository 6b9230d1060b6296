"""What has no rule: the call is kept to be replayed, and the state of its result sampled when someone asks for it."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from sigprop.capture.capture import Capture
from sigprop.capture.derived_weights import of_weights
from sigprop.capture.layout import (
    CHANNEL,
    KEY,
    Layout,
    Misaligned,
    arranged,
    common_layout,
    fresh,
    layout_like,
    of_roles,
    resized,
)
from sigprop.capture.record import Call, Field, made_on_meta, mapped, no_rule, on_meta


def replayed(capture: Capture, call: Call, reason: str = "") -> Any:
    """Records for the results of a call, each with the layout of the operand it looks like."""
    records = call.records
    fields = [item for item in records if isinstance(item, Field)]
    if not fields:
        return of_weights(capture, call)
    result = made_on_meta(call)
    reason = reason or _sampled(call)
    if isinstance(result, Tensor):
        return _like(capture, call, result, fields, None, reason)
    if isinstance(result, (tuple, list)):
        made = [
            _like(capture, call, item, fields, number, reason) if isinstance(item, Tensor) else item
            for number, item in enumerate(result)
        ]
        return tuple(made)
    return result


def recorded(capture: Capture, call: Call) -> Any:
    """Records for the results of a call that is only replayed: a loss, and what it is made of.

    Nobody asks for their states, so their dimensions have no roles. Results that a shape cannot be told of without
    values (entries picked by a mask) have that of one draw.
    """
    try:
        result = on_meta(call)
    except Exception:
        args, kwargs = mapped((call.args, call.kwargs), capture.value_of)
        result = call.function(*args, **kwargs)
    if isinstance(result, Tensor):
        return _bare(capture, call, result, None)
    if isinstance(result, (tuple, list)):
        made = [_bare(capture, call, item, n) if isinstance(item, Tensor) else item for n, item in enumerate(result)]
        return type(result)(made) if type(result) is not tuple and not hasattr(result, "_fields") else tuple(made)
    return result


def _bare(capture: Capture, call: Call, result: Tensor, output: int | None) -> Field:
    layout = of_roles(tuple(result.shape), [CHANNEL] * result.dim())
    made = capture.drawn_field(layout, call, call.records, _sampled(call), output=output)
    made.dtype = result.dtype
    return made


def kept(capture: Capture, call: Call) -> Field:
    """The record of a call that gives no floating-point numbers, to be replayed only."""
    fields = [item for item in call.records if isinstance(item, Field)]
    result = made_on_meta(call)
    made = capture.drawn_field(_layout(call, tuple(result.shape), fields), call, call.records, _sampled(call))
    made.dtype = result.dtype
    return made


def _sampled(call: Call) -> str:
    return f"{call.name} sampled on the predicted state"


def _like(capture: Capture, call: Call, result: Tensor, fields: list[Field], output: int | None, reason: str) -> Any:
    layout = _layout(call, tuple(result.shape), fields)
    made = capture.drawn_field(layout, call, call.records, reason, output=output)
    if not (result.is_floating_point() or result.is_complex()):
        return capture.concrete(made).detach()
    made.dtype = result.dtype if result.is_complex() else made.dtype
    return made


def _layout(call: Call, shape: tuple[int, ...], fields: list[Field]) -> Layout:
    same = [item.layout for item in fields if item.shape == shape]
    if same:
        return max(same, key=lambda layout: (_has_keys(layout), layout.positions))
    try:
        layout, _ = common_layout([item.layout for item in fields])
    except Misaligned:
        layout = None
    if layout is not None and layout.shape == shape:
        return layout
    found = _extended(shape, fields) or _by_place(shape, fields) or _with_channels(shape, fields)
    if found is None:
        given = ", ".join(str(item.shape) for item in fields)
        raise no_rule(call, f"it makes {shape} of {given}, and it is not known which of its dimensions are tokens")
    return found


def _extended(shape: tuple[int, ...], fields: list[Field]) -> Layout | None:
    """Broadcast against real tensors: dimensions that no field has take the role of their place."""
    model = max((item.layout for item in fields), key=lambda layout: layout.positions)
    rank = len(shape)
    padded = Layout(((),) * (rank - len(model.dims)) + model.dims, model.order)
    known = all(not dim or size == n for dim, size, n in zip(padded.dims, padded.shape, shape, strict=False))
    if len(padded.dims) != rank or not known:
        return None
    return layout_like(padded, shape)


def _by_place(shape: tuple[int, ...], fields: list[Field]) -> Layout | None:
    """A dimension that has another size has the role of the one in its place; of a field with more dimensions those
    that are left, in order."""
    model = max((item.layout for item in fields), key=lambda layout: (len(layout.dims), layout.positions))
    if _has_keys(model) or len(shape) > len(model.dims):
        return None
    places = list(range(len(shape))) if len(shape) == len(model.dims) else _left(shape, model.shape)
    if places is None:
        return None
    dims = []
    for n, place in zip(shape, places, strict=True):
        old = model.dims[place]
        kept = math.prod(axis.size for axis in old) == n
        dims.append(old if kept else resized(old, n))
    return arranged(dims, model.order)


def _with_channels(shape: tuple[int, ...], fields: list[Field]) -> Layout | None:
    """A dimension behind all of a field's: the classes of `one_hot`."""
    like = next((item.layout for item in fields if item.shape == shape[:-1]), None)
    return None if like is None else arranged((*like.dims, fresh(shape[-1], CHANNEL)), like.order)


def _left(shape: tuple[int, ...], whole: tuple[int, ...]) -> list[int] | None:
    """Where dimensions stand among more of them, the first that fit."""
    found, start = [], 0
    for n in shape:
        place = next((place for place in range(start, len(whole)) if whole[place] == n), None)
        if place is None:
            return None
        found.append(place)
        start = place + 1
    return found


def _has_keys(layout: Layout) -> bool:
    return any(axis.role == KEY for dim in layout.dims for axis in dim)
