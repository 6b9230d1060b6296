"""What is known of a traced tensor, attached to the tensor that stands for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from sigprop.capture.record import Record

_RECORD = "_sigprop_record"


def attach(tensor: Tensor, record: Record) -> None:
    """Make a record what is known of a tensor."""
    setattr(tensor, _RECORD, record)


def attached(tensor: Tensor) -> Record | None:
    """The record of a tensor, if it has one."""
    return getattr(tensor, _RECORD, None)


def record_of(value: Any) -> Record | None:
    """The record of a traced tensor; none for anything else."""
    return attached(value) if isinstance(value, Tensor) else None


def is_traced(values: Iterable[Any]) -> bool:
    """Whether a traced tensor is among the values."""
    for item in values:
        if isinstance(item, Tensor):
            if attached(item) is not None:
                return True
        elif isinstance(item, (tuple, list)):
            if is_traced(item):
                return True
        elif isinstance(item, dict) and is_traced(item.values()):
            return True
    return False
