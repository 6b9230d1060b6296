"""Running mean and standard error of a tensor over initializations, saved so that a run can resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sigprop.errors import InputError
from sigprop.results.files import write_whole


@dataclass
class Average:
    """Welford's recursion over samples of one shape."""

    count: int
    mean: Tensor
    squares: Tensor

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> Average:
        return cls(0, torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64))

    def add(self, sample: Tensor) -> None:
        sample = sample.detach().to("cpu", torch.float64)
        self.count += 1
        shift = sample - self.mean
        self.mean = self.mean + shift / self.count
        self.squares = self.squares + shift * (sample - self.mean)

    @property
    def standard_error(self) -> Tensor:
        if self.count < 2:
            return torch.full_like(self.mean, torch.nan)
        return torch.sqrt(self.squares / (self.count - 1) / self.count)


def average_over(
    sample: Callable[[int], Tensor],
    count: int,
    shape: tuple[int, ...],
    settings: dict[str, Any],
    resume: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Average:
    """Average `sample(i)` for i < count; sample i depends on i alone, so a resumed run is the same run.

    With `resume`, the state is written to that file as it grows and read back if its settings agree.
    """
    average = _read(Path(resume), settings, shape) if resume is not None else Average.of(shape)
    while average.count < count:
        average.add(sample(average.count))
        done = average.count
        if resume is not None:
            _write(Path(resume), settings, average)
        if progress is not None:
            progress(done, count)
    return average


def _read(path: Path, settings: dict[str, Any], shape: tuple[int, ...]) -> Average:
    if not path.exists():
        return Average.of(shape)
    try:
        state = json.loads(path.read_text())
        known, count = state["settings"], int(state["count"])
        mean, squares = (torch.tensor(state[key], dtype=torch.float64) for key in ("mean", "squares"))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} holds no run that could be continued: give another file, or remove it") from error
    if known != json.loads(json.dumps(settings)):
        raise InputError(f"{path} holds a run with other settings: give another file, or remove it")
    return Average(count, mean, squares)


def _write(path: Path, settings: dict[str, Any], average: Average) -> None:
    state = {
        "settings": settings,
        "count": average.count,
        "mean": average.mean.tolist(),
        "squares": average.squares.tolist(),
    }
    write_whole(path, json.dumps(state))
