"""Several processes that train one model: what `torchrun` started, through torch's DDP or FSDP2.

Each rank takes its share of every batch, the losses are averaged, and the first rank writes. One process is the case of
one rank, for which nothing here does anything.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor, nn

from sigprop.errors import InputError, require

KINDS = ("none", "ddp", "fsdp")


@dataclass(frozen=True)
class Ranks:
    """This process among all."""

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """This rank's part of a batch; all parts are of one size."""
        if self.count == 1:
            return batch
        for key, value in batch.items():
            if len(value) % self.count:
                raise InputError(f"{key} has {len(value)} entries: {self.count} ranks need a multiple of {self.count}")
        return {key: value.chunk(self.count)[self.rank] for key, value in batch.items()}

    def mean(self, value: Tensor) -> Tensor:
        """Average over the ranks."""
        if self.count > 1:
            dist.all_reduce(value)
            value = value / self.count
        return value


def join(device: str) -> Ranks:
    """The ranks that torchrun's environment speaks of, joined if they are not yet."""
    if not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return Ranks()
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    return Ranks(dist.get_rank(), dist.get_world_size())


def spread(model: nn.Module, kind: str) -> nn.Module:
    """The module to call: a DDP wrapper, or the model itself with its parameters sharded block by block."""
    require(kind in KINDS, "parallel", kind, ", ".join(KINDS))
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for blocks in [module for module in model.modules() if isinstance(module, nn.ModuleList)]:
            for block in blocks:
                fully_shard(block)
        fully_shard(model)
    return model


def whole(value: Tensor) -> Tensor:
    """All of a tensor that may be sharded; every rank must ask for it."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value  # type: ignore[attr-defined]


def placed_like(value: Tensor, model_tensor: Tensor) -> Tensor:
    """A whole tensor, sharded as another one of its shape is."""
    if not hasattr(model_tensor, "device_mesh") or value.shape != model_tensor.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    on_device = value.to(model_tensor.device)
    return distribute_tensor(on_device, model_tensor.device_mesh, model_tensor.placements)  # type: ignore[attr-defined]
