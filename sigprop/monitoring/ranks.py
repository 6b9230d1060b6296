"""Which processes train together, and how their records come together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import nn

from sigprop.monitoring.shards import is_spread

NOT_DATA = ("tp", "tensor", "cp", "context", "pp", "pipeline", "ep", "expert")


@dataclass
class WatchedRanks:
    """The processes of one run: `group` talks together, and `data` of them (or groups of them) see different data."""

    group: Any = None
    data: int = 1

    @property
    def size(self) -> int:
        return dist.get_world_size(self.group) if self.group is not None else 1

    @property
    def first(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.group is None or dist.get_rank(self.group) == 0

    def joined(self, mine: Any, join: Callable[[list[Any]], Any]) -> Any:
        """Every process gives a record; the first joins them, and all get the result."""
        if self.size == 1:
            return join([mine])
        received: list[Any] | None = [None] * self.size if self.first else None
        root = dist.get_global_rank(self.group, 0)
        dist.gather_object(mine, received, dst=root, group=self.group)
        result = [None if received is None else join(received)]
        dist.broadcast_object_list(result, src=root, group=self.group)
        return result[0]


def ranks_of(model: nn.Module, group: Any = None) -> WatchedRanks:
    """Read from the model itself: DDP knows its processes, sharded parameters know their mesh."""
    if not dist.is_available() or not dist.is_initialized():
        return WatchedRanks()
    if group is not None:
        return WatchedRanks(group, dist.get_world_size(group))
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return WatchedRanks(model.process_group, dist.get_world_size(model.process_group))
    parameters: list[Any] = list(model.parameters())
    meshes = [p.device_mesh for p in parameters if is_spread(p)]
    if not meshes:
        return WatchedRanks()
    mesh = max(meshes, key=lambda item: item.ndim)
    data = 1
    for axis, size in enumerate(mesh.shape):
        name = mesh.mesh_dim_names[axis] if mesh.mesh_dim_names else ""
        sharded_as_data = _fully_sharded(model) if not name else not name.startswith(NOT_DATA)
        data *= size if sharded_as_data else 1
    return WatchedRanks(mesh.get_group() if mesh.ndim == 1 else dist.group.WORLD, data)


def _fully_sharded(model: nn.Module) -> bool:
    """FSDP2 gives every module that it shards a class of this name among its bases."""
    return any(base.__name__ == "FSDPModule" for module in model.modules() for base in type(module).__mro__)
