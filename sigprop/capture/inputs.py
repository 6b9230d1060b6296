"""Batches cut to the tokens that are followed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def shortened(batch: Any, tokens: int) -> tuple[Any, tuple[int, int] | None]:
    """The batch with sequences cut to `tokens`, and the lengths before and after if any was cut."""
    lengths: list[int] = []

    def cut(item: Any) -> Any:
        if isinstance(item, Tensor) and item.dim() == 2 and not item.is_floating_point() and item.shape[1] > tokens:
            lengths.append(item.shape[1])
            return item[:, :tokens]
        return item

    if isinstance(batch, Mapping):
        batch = {key: cut(value) for key, value in batch.items()}
    elif isinstance(batch, (tuple, list)):
        batch = tuple(cut(item) for item in batch)
    else:
        batch = cut(batch)
    return batch, (max(lengths), tokens) if lengths else None
