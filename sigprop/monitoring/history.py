"""What was seen so far: samples of a run, bounded in number, and the losses between them.

A `Sample` is what one sampled step has shown, as plain numbers. Rows are keyed by the name of the site or parameter and
hold what could be had there:

| sites | |
|---|---|
| `mean`, `variance`, `token_correlation`, `grad_variance`, `grad_token_correlation` | as in a `Profile` |
| `branch_ratio` | root mean square of the branch over that of the skip, at residual junctions `NAME.add` |
| `entropy`, `uniform_entropy`, `largest_weight`, `largest_score` | attention, at `NAME.scores` |
| `fp16_underflow`, `fp16_overflow`, `fp16_headroom` (`bf16_`, `grad_`) | what the format in use loses |

| parameters | |
|---|---|
| `second_moment`, `grad_second_moment` | per entry, before the step; the gradient as the optimizer gets it |
| `update_ratio` | root mean square of the step over that of the parameter |
| `unmoved` | share of entries that the step left as they were |
| `against` | cosine between the step and the negative of the parameter: 1 when it only shrinks |
| `lr`, `weight_decay`, `eps`, `denominator` | of its group; the root mean square of Adam's denominator |

`history.jsonl` has one line per event, written through at once, so that it can be read after a kill. The first line of
a run is `{"event": "run", "start": 0, ...}`, then `sample`, `loss` and `finding` lines. A run that resumes at a step
writes another `run` line; samples after that step are then those of the run that was left.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sigprop.results.files import append, json_lines

Rows = dict[str, dict[str, float]]
DIGITS = 7


@dataclass
class Sample:
    """One sampled step; `bad` names the first place that was not finite: (`forward` | `backward` | ..., name)."""

    step: int
    loss: float = math.nan
    sites: Rows = field(default_factory=dict)
    parameters: Rows = field(default_factory=dict)
    groups: Rows = field(default_factory=dict)
    run: dict[str, float] = field(default_factory=dict)
    bad: tuple[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Strict JSON data: rounded numbers; what is missing is left out, infinities are words."""
        return {key: _plain(value) for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Sample:
        known = {key: _number(value) for key, value in data.items() if key in cls.__dataclass_fields__}
        known["bad"] = tuple(known["bad"]) if known.get("bad") else None
        return cls(**known)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    return value


def _number(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _number(item) for key, item in value.items()}
    return float(value) if value in ("nan", "inf", "-inf") else value


class LossReader:
    """Takes a loss per step and gives back those that are known by now."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Tensor, Any]] = deque()

    def take(self, step: int, loss: Any) -> None:
        if not isinstance(loss, Tensor):
            self._waiting.append((step, torch.tensor(float(loss)), None))
            return
        loss = loss.detach()
        if loss.device.type != "cuda":
            self._waiting.append((step, loss.clone(), None))
            return
        copied = loss.to("cpu", non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(loss.device))
        self._waiting.append((step, copied, event))

    def known(self, wait: bool = False) -> list[tuple[int, float]]:
        """In order; with `wait` all that were given."""
        found = []
        while self._waiting:
            step, value, event = self._waiting[0]
            if event is not None:
                if wait:
                    event.synchronize()
                elif not event.query():
                    break
            self._waiting.popleft()
            found.append((step, float(value.float().mean())))
        return found


MOST_SAMPLES = 512
MOST_LOSSES = 4096
RECENT = 8
BEFORE = 16
"""Losses that a jump is judged against: it is `SPREADS` of their median deviations and `RISE` of their size above."""
SPREADS = 6.0
RISE = 0.3


class History:
    """Samples in order; when they are too many, every other one of the older half is dropped."""

    def __init__(self, samples: list[Sample] | None = None) -> None:
        self.samples: list[Sample] = list(samples or ())
        self.losses: deque[tuple[int, float]] = deque(maxlen=MOST_LOSSES)
        self.first_loss = math.nan
        self.first_bad_loss: int | None = None
        for sample in self.samples:
            if math.isfinite(sample.loss):
                self.add_loss(sample.step, sample.loss)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    def __len__(self) -> int:
        return len(self.samples)

    def add(self, sample: Sample) -> None:
        self.samples.append(sample)
        if len(self.samples) > MOST_SAMPLES:
            half = MOST_SAMPLES // 2
            self.samples = self.samples[:half:2] + self.samples[half:]

    def add_loss(self, step: int, loss: float) -> None:
        if math.isnan(self.first_loss):
            self.first_loss = loss
        if not math.isfinite(loss) and self.first_bad_loss is None:
            self.first_bad_loss = step
        self.losses.append((step, loss))

    @property
    def loss_jumped(self) -> bool:
        """Whether the last loss lies above those before it, far beyond what they differ by."""
        losses = [loss for _, loss in self.losses][-BEFORE - 1 :]
        if len(losses) <= BEFORE or not all(map(math.isfinite, losses)):
            return False
        *before, last = losses
        middle = statistics.median(before)
        spread = statistics.median(abs(loss - middle) for loss in before)
        return last - middle > SPREADS * spread + RISE * abs(middle)

    @property
    def recent(self) -> list[Sample]:
        """The last samples, which are written when a run breaks."""
        return self.samples[-RECENT:]

    @property
    def noise_scale(self) -> float:
        """Critical batch size `tr(covariance) / |gradient|^2` of McCandlish et al. (2018), over the last samples.

        Numerator and denominator are averaged apart, since each is an unbiased estimate and their ratio is not.
        """
        rows = [s.run for s in self.samples[-32:] if math.isfinite(s.run.get("gradient_noise", math.nan))]
        noise, signal = (sum(row[key] for row in rows) for key in ("gradient_noise", "gradient_signal"))
        return noise / signal if signal > 0 else math.nan

    def series(self, table: str, name: str, column: str) -> list[float]:
        """One column of one row over the samples that have it."""
        rows = (getattr(sample, table).get(name, {}) for sample in self.samples)
        return [row[column] for row in rows if column in row]


FILE = "history.jsonl"


class JsonLines:
    """Appends to a file in a folder, which is made."""

    name = "jsonl"

    def __init__(self, folder: str | Path):
        self.path = Path(folder) / FILE
        if self.path.exists() and not self.path.read_bytes().endswith(b"\n"):
            append(self.path, "\n")  # a line cut off by a kill gets its end, so that the next one stands alone

    def event(self, kind: str, **values: Any) -> None:
        append(self.path, json.dumps({"event": kind, **values}, allow_nan=False) + "\n")


def read_events(folder: str | Path) -> list[dict[str, Any]]:
    """The events of the last run in a folder, with those before the step at which it resumed; broken lines left out."""
    path = Path(folder) if str(folder).endswith(".jsonl") else Path(folder) / FILE
    if not path.exists():
        return []
    events: list[dict[str, Any]] = []
    for event in json_lines(path):
        if event.get("event") == "run":
            start = event.get("start", 0)
            events = [before for before in events if before.get("step", start) < start] if start else []
        events.append(event)
    return events


def read_samples(folder: str | Path) -> list[Sample]:
    """The samples of the last run."""
    return [Sample.from_dict(event) for event in read_events(folder) if event["event"] == "sample"]
