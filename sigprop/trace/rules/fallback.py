"""What has no rule: replay it, and sample its state when someone asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from sigprop.errors import UnsupportedError
from sigprop.trace.broadcast import common_layout
from sigprop.trace.layout import KEY, Layout, Misaligned
from sigprop.trace.record import Call, Field, Loss, Weight, leaves, united
from sigprop.trace.rules.views import on_meta

if TYPE_CHECKING:
    from sigprop.trace.capture import Capture


def sample(trace: Capture, call: Call, reason: str = "") -> Any:
    """Records for the results of a call, each with the layout of the operand it looks like."""
    records = call.records()
    fields = [item for item in records if isinstance(item, Field)]
    if any(isinstance(item, Loss) for item in records):
        return next(item for item in records if isinstance(item, Loss))
    if not fields:
        from sigprop.trace.rules.weights import of_weights

        return of_weights(trace, call)
    result = on_meta(call)
    reason = reason or f"{call.name} sampled on the predicted state"
    if isinstance(result, Tensor):
        return _like(trace, call, result, fields, None, reason)
    if isinstance(result, (tuple, list)):
        made = [
            _like(trace, call, item, fields, number, reason) if isinstance(item, Tensor) else item
            for number, item in enumerate(result)
        ]
        return tuple(made)
    return result


def kept(trace: Capture, call: Call) -> Field:
    """The record of a call that gives no floating-point numbers, to be replayed only."""
    fields = [item for item in call.records() if isinstance(item, Field)]
    layout = _layout(call, tuple(on_meta(call).shape), fields)
    return _field(trace, call, layout, fields, None, f"{call.name} sampled on the predicted state")


def _like(trace: Capture, call: Call, result: Tensor, fields: list[Field], output: int | None, reason: str) -> Any:
    if not (result.is_floating_point() or result.is_complex()):
        values = trace.concrete(_field(trace, call, _layout(call, tuple(result.shape), fields), fields, output, reason))
        return values.detach()
    made = _field(trace, call, _layout(call, tuple(result.shape), fields), fields, output, reason)
    made.dtype = result.dtype if result.is_complex() else made.dtype
    return made


def _field(trace: Capture, call: Call, layout: Layout, fields: list[Field], output: int | None, reason: str) -> Field:
    return Field(
        layout,
        lambda made: trace.sampled(made, reason),
        sources=united(fields),
        call=call,
        output=output,
        inputs=tuple(item for item in leaves((call.args, call.kwargs)) if isinstance(item, (Field, Weight))),
    )


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
    found = _extended(shape, fields)
    if found is None:
        raise UnsupportedError(f"the result {shape} has no axis in common with {[item.shape for item in fields]}")
    return found


def _extended(shape: tuple[int, ...], fields: list[Field]) -> Layout | None:
    """Broadcast against real tensors: dimensions that no field has take the role of their place."""
    from sigprop.trace.rules.elementwise import _broadcast_layout

    model = max((item.layout for item in fields), key=lambda layout: layout.positions)
    rank = len(shape)
    padded = Layout(((),) * (rank - len(model.dims)) + model.dims, model.order)
    if len(padded.dims) != rank or any(d and _size(d) != n for d, n in zip(padded.dims, shape, strict=True)):
        return None
    return _broadcast_layout(padded, shape)


def _size(dim: tuple) -> int:
    total = 1
    for axis in dim:
        total *= axis.size
    return total


def _has_keys(layout: Layout) -> bool:
    return any(axis.role == KEY for dim in layout.dims for axis in dim)
