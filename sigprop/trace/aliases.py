"""Writes through views: `key[..., :n].copy_(x)` must change `key`.

Traced tensors share no storage, so a view remembers the tensor it was taken from and how. When the view is written
to, the tensor behind it gets a new record, in which the entries that the view covers are replaced.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sigprop.trace.record import Call, Field, Record, mapped
from sigprop.trace.rules.writes import written

if TYPE_CHECKING:
    from sigprop.trace.capture import Capture

VIEWS = frozenset(
    ("getitem", "narrow", "select", "view", "reshape", "transpose", "permute", "unsqueeze", "squeeze", "flatten")
).union(("unflatten", "split", "chunk", "unbind"))
_BEHIND = "_sigprop_behind"


def remember(view: Tensor, behind: Tensor, call: Call, output: int | None) -> None:
    """Note that a tensor is a view of another."""
    setattr(view, _BEHIND, (behind, call, output))


def written_through(capture: Capture, view: Tensor, record: Record) -> None:
    """Give the tensor behind a view, if there is one, the record of the write."""
    found = _behind(view)
    if found is None or not isinstance(record, Field):
        return
    behind, index = found
    before = capture.record_of(behind)
    call = Call(_replace, "setitem", (before if before is not None else behind, index, record), {}, capture.module)
    made = written(capture, call, before if before is not None else behind, _fields(before, record))
    capture.attach(behind, made)
    written_through(capture, behind, made)


def _fields(*records: Record | None) -> list[Field]:
    return [item for item in records if isinstance(item, Field)]


def _behind(view: Tensor) -> tuple[Tensor, Tensor] | None:
    """The tensor behind a view and the places of the view's entries in it."""
    if hasattr(view, _BEHIND):
        behind, call, output = getattr(view, _BEHIND)
        places = torch.arange(math.prod(behind.shape)).reshape(behind.shape)
        seen = call.args[0]
        args, kwargs = mapped((call.args, call.kwargs), lambda item: places if item is seen else item)
        result = call.function(*args, **kwargs)
        return behind, result if output is None else result[output]
    base = view._base
    if base is None or view.is_meta or not base.is_contiguous():
        return None
    places = torch.arange(base.numel())
    return base, places.as_strided(view.size(), view.stride(), view.storage_offset() - base.storage_offset())


def _replace(input: Tensor, index: Tensor, value: Tensor) -> Tensor:
    flat = input.clone().reshape(-1)
    flat = flat.index_put((index.reshape(-1),), value.expand(index.shape).reshape(-1))
    return flat.reshape(input.shape)


def is_view(call: Call, first: Any) -> bool:
    return call.name in VIEWS and isinstance(first, Tensor)
