"""Writes through views: `key[..., :n].copy_(x)` must change `key`.

Traced tensors share no storage, so a view remembers the tensor it was taken from and how. When the view is written
to, the tensor behind it gets a new record, in which the entries that the view covers are replaced.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.attached import attached
from sigprop.capture.capture import Capture
from sigprop.capture.layout import Misaligned
from sigprop.capture.record import Call, Field, Record
from sigprop.capture.registry import by_rule
from sigprop.capture.rules.writes import written
from sigprop.compat import viewed_tensor

VIEWS = frozenset(
    ("getitem", "narrow", "select", "view", "reshape", "transpose", "permute", "unsqueeze", "squeeze", "flatten")
).union(("unflatten", "split", "chunk", "unbind"))
_BEHIND = "_sigprop_behind"
_PARTS = "_sigprop_parts"


def remember(view: Tensor, behind: Tensor, call: Call, output: int | None) -> None:
    """Note that a tensor is a view of another."""
    setattr(view, _BEHIND, (behind, call, output))


def asks_to_write(function: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether a function of `torch.nn.functional` is called with `inplace=True`, by name or by place."""
    place = _place_of_inplace(function)
    return bool(kwargs.get("inplace", place is not None and len(args) > place and args[place]))


@lru_cache(maxsize=1024)
def _place_of_inplace(function: Any) -> int | None:
    code = getattr(function, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    return names.index("inplace") if "inplace" in names else None


def written_through(capture: Capture, view: Tensor, record: Record) -> None:
    """Give the tensor behind a view, if there is one, the record of the write."""
    found = _behind(view)
    if found is None or not isinstance(record, Field):
        return
    behind, index = found
    before = attached(behind)
    parts = _parts(behind, before, index, record)
    made = _joined(capture, behind, parts)
    if made is None:
        target = before if before is not None else behind
        start = next((start for start, part in parts.items() if part is record), None)
        given = (_replace, index) if start is None else (_replace_range, start)  # an index of all entries is large
        call = Call(given[0], "setitem", (target, given[1], record), {}, capture.module)
        made = written(capture, call, before if before is not None else behind, _fields(before, record))
    setattr(behind, _PARTS, (made, parts))
    capture.attach(behind, made)
    written_through(capture, behind, made)


def _parts(behind: Tensor, before: Record | None, index: Tensor, record: Field) -> dict[int, Field]:
    """What was written since the tensor was made, by where it starts in the last dimension; empty where a write covers
    anything but a range of it."""
    start, size = int(index.flatten()[0]) % behind.shape[-1], index.shape[-1]
    places = torch.arange(math.prod(behind.shape)).reshape(behind.shape)
    if record.shape != tuple(index.shape) or not torch.equal(index, places[..., start : start + size]):
        return {}
    made, parts = getattr(behind, _PARTS, (None, {}))
    return {**parts, start: record} if made is before else {start: record} if before is None else {}


def _joined(capture: Capture, behind: Tensor, parts: dict[int, Field]) -> Field | None:
    """The parts side by side, where they make up the whole tensor."""
    ordered = [parts[start] for start in sorted(parts)]
    ends = [start + parts[start].shape[-1] for start in sorted(parts)]
    if len(ordered) < 2 or [0, *ends] != [*sorted(parts), behind.shape[-1]]:
        return None
    call = Call(torch.cat, "cat", (ordered, -1), {}, capture.module)
    try:
        return by_rule(capture, call)
    except Misaligned:
        return None


def _fields(*records: Record | None) -> list[Field]:
    return [item for item in records if isinstance(item, Field)]


def _behind(view: Tensor) -> tuple[Tensor, Tensor] | None:
    """The tensor behind a view and the places of the view's entries in it."""
    if hasattr(view, _BEHIND):
        behind, call, output = getattr(view, _BEHIND)
        places = torch.arange(math.prod(behind.shape)).reshape(behind.shape)
        result = call.on(places, call.args[0])
        return behind, result if output is None else result[output]
    base = viewed_tensor(view)
    if base is None or view.is_meta or not base.is_contiguous():
        return None
    places = torch.arange(base.numel())
    return base, places.as_strided(view.size(), view.stride(), view.storage_offset() - base.storage_offset())


def _replace(input: Tensor, index: Tensor, value: Tensor) -> Tensor:
    flat = input.clone().reshape(-1)
    flat = flat.index_put((index.reshape(-1),), value.expand(index.shape).reshape(-1))
    return flat.reshape(input.shape)


def _replace_range(input: Tensor, start: int, value: Tensor) -> Tensor:
    """Along the last dimension."""
    return torch.cat((input[..., :start], value, input[..., start + value.shape[-1] :]), -1)


def is_view(call: Call, first: Any) -> bool:
    return call.name in VIEWS and isinstance(first, Tensor)
