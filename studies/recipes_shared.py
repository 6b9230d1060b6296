"""What the recipe experiments share: the variance of the scaled residual stream, measured over draws of a plan."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.batches import run
from sigprop.plans import Plan
from sigprop.plans.recipes import Structure
from studies.stored import read, write

DATA = Path("docs/data")
POINTS = 96


@dataclass
class Stream:
    """Variance of every residual sum, scaled as the plan says, and the gradient variance of the first over the last.

    Means over seeds; of several streams the one whose gradient changes most.
    """

    variance: list[float]
    error: list[float]
    gradient_ratio: float
    gradient_ratio_median: float

    @property
    def worst(self) -> float:
        """Largest deviation of the mean variance from that of the first sum's target, 1."""
        return max(abs(value - 1.0) for value in self.variance)

    @property
    def worst_error(self) -> float:
        """The standard error where the deviation is largest."""
        return max(zip(self.variance, self.error, strict=True), key=lambda pair: abs(pair[0] - 1.0))[1]

    def to_dict(self) -> dict[str, Any]:
        """Summary of all sums, and the profile at up to `POINTS` of them."""
        count = len(self.variance)
        places = sorted({*range(0, count, -(-count // POINTS)), count - 1})
        return {
            "worst_deviation": self.worst,
            "its_standard_error": self.worst_error,
            "last_variance": self.variance[-1],
            "gradient_ratio": self.gradient_ratio,
            "gradient_ratio_median": self.gradient_ratio_median,
            "sum": [place + 1 for place in places],
            "variance": [round(self.variance[place], 4) for place in places],
            "standard_error": [round(self.error[place], 4) for place in places],
        }


def measure_stream(
    model: nn.Module,
    structure: Structure,
    draw: Plan | Callable[[nn.Module, int], Any],
    batch: Any,
    loss_of: Callable[[Any], Tensor],
    seeds: int,
) -> Stream:
    """Draw, run and differentiate the model for every seed; sums are seen at the norms that read them.

    A plan's levels turn the stream of the folded model into the scaled one, relative to `stream_variance`.
    """
    device = next(model.parameters()).device
    rows = draw.junctions if isinstance(draw, Plan) and draw.junctions else None
    levels = [row.level if row.folded else 1.0 for row in rows] if rows else [1.0] * len(structure.junctions)
    start = draw.meta.get("stream_variance", 1.0) if isinstance(draw, Plan) else 1.0
    watched = {junction.readers[0]: place for place, junction in enumerate(structure.junctions) if junction.readers}
    variances: dict[int, list[float]] = {place: [] for place in watched.values()}
    ratios: list[float] = []
    for seed in range(seeds):
        if isinstance(draw, Plan):
            draw.apply_(model, torch.Generator(device).manual_seed(seed))
        else:
            draw(model, seed)
        found: dict[int, Tensor] = {}
        handles = [
            model.get_submodule(name).register_forward_pre_hook(_keep(found, place)) for name, place in watched.items()
        ]
        loss = loss_of(run(model, batch))
        for handle in handles:
            handle.remove()
        for place, value in found.items():
            variances[place].append(float(value.detach().double().var()) * levels[place] ** 2 / start)
        ends = _ends(structure, sorted(found))
        gradients = torch.autograd.grad(loss, [found[place] for pair in ends for place in pair])
        sizes = [float(gradient.double().square().mean()) for gradient in gradients]
        pairs = zip(ends, sizes[::2], sizes[1::2], strict=True)
        growth = [first / levels[a] ** 2 / (last / levels[b] ** 2) for (a, b), first, last in pairs]
        ratios.append(max(growth, key=lambda ratio: abs(math.log(ratio))))
    means = [statistics.fmean(variances[place]) for place in sorted(variances)]
    errors = [_error(variances[place]) for place in sorted(variances)]
    return Stream(means, errors, statistics.fmean(ratios), statistics.median(ratios))


def _ends(structure: Structure, places: list[int]) -> list[tuple[int, int]]:
    """First and last watched sum of every stream."""
    streams: dict[int, list[int]] = {}
    for place in places:
        streams.setdefault(structure.junctions[place].stream, []).append(place)
    return [(found[0], found[-1]) for found in streams.values()]


def _keep(found: dict[int, Tensor], place: int):
    def hook(module: nn.Module, inputs: tuple) -> None:
        found.setdefault(place, inputs[0])

    return hook


def _error(values: list[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def save(path: Path, results: dict[str, Any], command: str, settings: dict[str, Any]) -> None:
    """Add results to a file of earlier ones, under their names, with the command that made them."""
    known = read(path, {"results": {}})
    known["results"] |= {name: {**values, **settings, "command": command} for name, values in results.items()}
    write(path, known)
