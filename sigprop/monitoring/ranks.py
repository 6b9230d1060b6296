"""Which processes train together, and how their records become one sample, as of one process with the whole batch.

Sites are averages over the entries that each process held. The loss of every process is an average over its part of the
batch, and gradients are averaged over processes, so a gradient taken at a site of one of W processes counts as 1/W.
Parameters come as sums in which an entry that several processes hold counts once. What all examples share, such as the
positions, has a gradient that is summed over them; its square does not follow from those of the processes, and is left
out; so is the token correlation of a site whose channels are split over the processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from sigprop.monitoring.history import Rows, Sample
from sigprop.monitoring.recording import ORDER, is_spread
from sigprop.monitoring.updates import parameter_row
from sigprop.sites import ROOT

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


AVERAGED_LATER = ("mean", "variance", "token_correlation", "grad_variance", "entries", "sequences", "centre", "shared")
LARGEST = ("largest_score", "fp16_headroom", "bf16_headroom", "grad_fp16_headroom", "grad_bf16_headroom")


@dataclass
class StepRecord:
    """What one process has recorded in one step."""

    step: int
    loss: float = math.nan
    sites: Rows = field(default_factory=dict)
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)
    shifts: dict[str, tuple[torch.Tensor, float, int]] = field(default_factory=dict)
    loss_scale: float = 1.0
    first_bad_loss: int | None = None
    bad: tuple[str, str] | None = None
    eager: bool = False


def join(records: Sequence[StepRecord], data_ranks: int) -> Sample:
    """One sample of the records of all processes, of which `data_ranks` groups saw different data."""
    scale = 1.0 / (data_ranks * records[0].loss_scale)
    sample = Sample(records[0].step, fmean(r.loss for r in records))
    for name in _union([r.sites for r in records]):
        rows = [r.sites[name] for r in records if name in r.sites]
        sample.sites[name] = _site(rows, scale, data_ranks)
    names = _union([r.parameters for r in records])
    sums = {name: _sums([r.parameters[name] for r in records if name in r.parameters]) for name in names}
    sample.parameters = {name: parameter_row(row) for name, row in sums.items()}
    for name, row in sums.items():
        sample.parameters |= {f"{name}[{i}]": {"grad_second_moment": 0.0} for i in row.get("idle", ())}
    sample.groups = _groups(sums)
    sample.run = _run(sample, sums, records, scale, len(records) / data_ranks)
    sample.bad = _first_bad(records, list(sample.sites), sample.parameters)
    return sample


def _union(tables: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for table in tables for name in table))


def _site(rows: list[dict[str, float]], scale: float, data_ranks: int) -> dict[str, float]:
    weights = [row.get("entries", 1.0) for row in rows]
    total = sum(weights) or 1.0

    def average(key: str) -> float:
        return sum(w * row.get(key, math.nan) for w, row in zip(weights, rows, strict=True)) / total

    found: dict[str, float] = {}
    if "variance" in rows[0]:
        mean = found["mean"] = average("mean")
        inner = average("variance")
        between = sum(w * (row["mean"] - mean) ** 2 for w, row in zip(weights, rows, strict=True)) / total
        found["variance"] = inner + between
        found["token_correlation"] = _correlation(rows, mean)
    if "grad_variance" in rows[0]:
        found["grad_variance"] = average("grad_variance") * scale**2
    if rows[0].get("skip"):
        found["branch_ratio"] = math.sqrt(average("branch") / average("skip"))
    for key in rows[0]:
        if key in LARGEST:
            found[key] = max(row.get(key, -math.inf) for row in rows)
        elif key not in AVERAGED_LATER and key not in ("skip", "branch") and not key.startswith("about_"):
            found[key] = average(key)
    if data_ranks > 1 and rows[0].get("shared"):
        found = {key: value for key, value in found.items() if not key.startswith("grad_")}
    if data_ranks == 1 and len({row.get("mean", 0.0) for row in rows}) > 1:
        found = {key: value for key, value in found.items() if not key.endswith("token_correlation")}
    return {key: value for key, value in found.items() if not _missing(key, value)}


def _missing(key: str, value: float) -> bool:
    """A correlation of tensors without pairs of tokens; any other value that is not a number is bad, and kept."""
    return math.isnan(value) and key in ("token_correlation", "grad_token_correlation")


def _correlation(rows: list[dict[str, float]], mean: float) -> float:
    if len(rows) == 1 or "about_0" not in rows[0]:
        return rows[0].get("token_correlation", math.nan)
    total = 0.0
    for row in rows:
        shift = mean - row["centre"]
        total += sum(row[f"about_{power}"] * shift**power for power in range(ORDER + 1))
    sequences = sum(row["sequences"] for row in rows)
    return total / sequences if sequences else math.nan


def _sums(rows: list[dict[str, Any]]) -> dict[str, Any]:
    found = dict(rows[0])
    for row in rows[1:]:
        for key, value in row.items():
            if key in ("group", "lr", "weight_decay", "eps"):
                continue
            found[key] = set(found.get(key, ())) & set(value) if key == "idle" else found.get(key, 0.0) + value
    return found


def _groups(sums: dict[str, dict[str, Any]]) -> Rows:
    tables: dict[str, list[dict[str, Any]]] = {}
    for row in sums.values():
        if "update_square" in row:
            tables.setdefault(row["group"], []).append(row)
    found: Rows = {}
    for group, rows in tables.items():
        square = sum(row["square"] for row in rows)
        update = sum(row["update_square"] for row in rows)
        found[group] = {"update_ratio": math.sqrt(update / square) if square > 0 else math.inf}
        found[group] |= {key: rows[0][key] for key in ("lr", "weight_decay") if key in rows[0]}
    return found


def _run(
    sample: Sample, sums: dict[str, dict[str, Any]], records: Sequence[StepRecord], scale: float, replicas: float
) -> dict[str, float]:
    """Numbers of the whole run: norms, the scale of the output, the noise of the gradient."""
    found = {"gradient_norm": math.sqrt(sum(row.get("grad_square", 0.0) for row in sums.values()))}
    found["parameter_norm"] = math.sqrt(sum(row["square"] for row in sums.values()))
    output = sample.sites.get(ROOT, {})
    if "variance" in output:
        found["logit_scale"] = math.sqrt(output["variance"] + output["mean"] ** 2)
    noise = signal = 0.0
    for name in _union([record.shifts for record in records]):
        parts = [record.shifts[name] for record in records if name in record.shifts]
        examples = sum(part[2] for part in parts) / replicas
        if examples < 2:
            continue
        square = sum(part[1] for part in parts) * scale**2 / replicas
        length = float(torch.stack([part[0] for part in parts]).sum(0).square().sum()) * (scale / replicas) ** 2
        noise += (examples * square - length) * examples / (examples - 1)
        signal += examples * (length - square) / (examples - 1)
    if noise:
        found |= {"gradient_noise": noise, "gradient_signal": signal}
    broken = [record.first_bad_loss for record in records if record.first_bad_loss is not None]
    if broken:
        found["first_bad_loss"] = float(min(broken))
    if records[0].loss_scale != 1.0:
        found["loss_scale"] = records[0].loss_scale
    return found


def _first_bad(records: Sequence[StepRecord], order: list[str], parameters: Rows) -> tuple[str, str] | None:
    """The earliest on the forward pass of any process; else backward; else a parameter."""
    found = [record.bad for record in records if record.bad is not None]
    forward = [bad for bad in found if bad[0] == "forward"]
    if forward:
        return min(forward, key=lambda bad: order.index(bad[1]))
    if found:
        return found[0]
    for name, row in parameters.items():
        for key, kind in (("second_moment", "parameter"), ("grad_second_moment", "parameter gradient")):
            if not math.isfinite(row.get(key, 0.0)):
                return kind, name
    return None
