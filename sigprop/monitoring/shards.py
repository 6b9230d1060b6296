"""Tensors that are spread over a mesh of processes: their local part, the whole, and how often a part is held."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor


def spread_type() -> type | tuple[()]:
    """DTensor, once somebody has imported it; before that there can be none."""
    module = sys.modules.get("torch.distributed.tensor")
    return () if module is None else getattr(module, "DTensor", ())


def is_spread(x: Any) -> bool:
    return isinstance(x, spread_type())


def whole(x: Any) -> Tensor:
    """All of the tensor, gathered where it is spread."""
    return x.full_tensor() if is_spread(x) else x


def local(x: Any) -> Tensor:
    """What this process holds."""
    return x.to_local() if is_spread(x) else x


def copies(x: Any, world: int) -> float:
    """How many processes of the world hold the same entries: all, unless the tensor is sharded."""
    if not is_spread(x):
        return float(world)
    shards = 1
    for size, placement in zip(x.device_mesh.shape, x.placements, strict=True):
        shards *= size if placement.is_shard() else 1
    return max(world / shards, 1.0)
