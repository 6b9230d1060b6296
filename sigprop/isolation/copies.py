"""A batch that a model may write into, while the user's stays as it was."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor


def copied(batch: Any) -> Any:
    """The batch with copies of its tensors, and of objects that hold some, such as a cache."""
    if isinstance(batch, Tensor):
        made = batch.detach().clone()
        return made.requires_grad_() if batch.requires_grad else made
    if isinstance(batch, Mapping):
        return {key: copied(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(copied(item) for item in batch))
    if isinstance(batch, (tuple, list)):
        return tuple(copied(item) for item in batch)
    return copy.deepcopy(batch)
