"""Run by two gloo processes: a plan on a model built on meta and sharded, written as whole values by rank 0."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from sigprop.models import build
from sigprop.results import Plan, shards

SETTINGS = {"depth": 2, "width": 32, "heads": 4}


def sharded(kind: str) -> torch.nn.Module:
    with torch.device("meta"):
        model = build("transformer", **SETTINGS)
    if kind == "tp":
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        for block in model.blocks:
            parallelize_module(block.mlp, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    else:
        for block in model.blocks:
            fully_shard(block, mesh=init_device_mesh("cpu", (2,)))
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    return model.to_empty(device="cpu")


def main(folder: str) -> None:
    dist.init_process_group("gloo")
    plan = Plan.from_json(Path(folder) / "plan.json")
    shards.PIECE = 256
    for kind in ("fsdp2", "tp"):
        for seeded in (True, False):
            model = sharded(kind)
            torch.manual_seed(7 + 100 * dist.get_rank())
            plan.apply_(model, torch.Generator().manual_seed(3) if seeded else None)
            whole = {name: p.full_tensor() if shards.is_sharded(p) else p for name, p in model.named_parameters()}
            if dist.get_rank() == 0:
                torch.save(
                    {name: value.detach() for name, value in whole.items()}, Path(folder) / f"{kind}_{seeded}.pt"
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
