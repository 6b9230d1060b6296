"""Run by torchrun in two processes: trains under DDP, FSDP2 and tensor parallelism, and writes what the watch has seen.

python -m torch.distributed.run --standalone --nproc-per-node 2 -m tests.monitoring.two_processes FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from sigprop.monitoring import Watch
from tests import gloo
from tests.monitoring.shared import batches, language_loss, small_model

STEPS = 4


def wrapped(kind: str) -> torch.nn.Module:
    model = small_model().double()
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "tp":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
        for block in model.blocks:
            parallelize_module(block.mlp, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        return model
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(kind: str, folder: Path) -> None:
    model, rank = wrapped(kind), dist.get_rank()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    with Watch(model, optimizer, every=2, folder=folder) as watch:
        for tokens in batches(STEPS):
            mine = tokens if kind == "tp" else tokens.chunk(dist.get_world_size())[rank]
            loss = language_loss(model(mine), mine)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.step(loss)


def main(folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for kind in ("ddp", "fsdp2", "tp"):
        train(kind, Path(folder) / kind)


if __name__ == "__main__":
    main(*sys.argv[1:])
    gloo.leave()
