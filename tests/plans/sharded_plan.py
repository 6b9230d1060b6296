"""Run by two gloo processes: a plan on a model built on meta and sharded, written as whole values by rank 0."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from sigprop.models import build
from sigprop.plans import Plan, writing
from tests import gloo

SETTINGS = {"depth": 2, "width": 32, "heads": 4}


def sharded(kind: str, mesh: DeviceMesh) -> torch.nn.Module:
    with torch.device("meta"):
        model = build("transformer", **SETTINGS)
    for block in model.blocks:
        if kind == "tp":
            parallelize_module(block.mlp, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        else:
            fully_shard(block, mesh=mesh)
    if kind == "fsdp2":
        fully_shard(model, mesh=mesh)
    return model.to_empty(device="cpu")


def main(folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    plan = Plan.from_json(Path(folder) / "plan.json")
    writing.PIECE = 256
    for kind in ("fsdp2", "tp"):
        for seeded in (True, False):
            model = sharded(kind, mesh)
            torch.manual_seed(7 + 100 * dist.get_rank())
            plan.apply_(model, torch.Generator().manual_seed(3) if seeded else None)
            whole = {name: p.full_tensor() if writing.is_sharded(p) else p for name, p in model.named_parameters()}
            if dist.get_rank() == 0:
                torch.save(
                    {name: value.detach() for name, value in whole.items()}, Path(folder) / f"{kind}_{seeded}.pt"
                )


if __name__ == "__main__":
    main(*sys.argv[1:])
    gloo.leave()
