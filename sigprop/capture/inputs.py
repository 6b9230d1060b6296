"""Batches cut to the tokens that are followed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sigprop.batches import mapped


def shortened(batch: Any, tokens: int) -> tuple[Any, tuple[int, int] | None]:
    """The batch with sequences cut to `tokens`, and the lengths before and after if any was cut."""
    lengths: list[int] = []

    def cut(item: Any) -> Any:
        if isinstance(item, Tensor) and item.dim() == 2 and not item.is_floating_point() and item.shape[1] > tokens:
            lengths.append(item.shape[1])
            return item[:, :tokens]
        return item

    batch = mapped(batch, cut)
    return batch, (max(lengths), tokens) if lengths else None
