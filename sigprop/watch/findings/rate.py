"""The learning rate is too high: the loss has left where it started, or weights are replaced rather than moved."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from sigprop.results.report import Finding
from sigprop.watch.findings.base import Circumstances, seen, smooth, weights
from sigprop.watch.history import History
from sigprop.watch.sample import Sample

WORSE = 1.3
MOVING = 0.01
REPLACED = 0.2
SAMPLES = 3
LOSSES = 8


def find(history: History, circumstances: Circumstances) -> Iterator[Finding]:
    if not history.samples:
        return
    worst, ratio = _largest(history.samples[-1])
    if worst and ratio > MOVING and _diverged(history):
        yield _finding(history, worst, ratio, "the loss is above where it started")
    elif len(history) > SAMPLES and all(_typical(sample) > REPLACED for sample in history.samples[-SAMPLES:]):
        yield _finding(history, worst, ratio, "each step replaces a large part of the weights")


def _largest(sample: Sample) -> tuple[str, float]:
    """The parameter that moves most for its size; those that began at zero, such as biases, say nothing."""
    ratios = {
        name: row["update_ratio"]
        for name, row in weights(sample).items()
        if "update_ratio" in row and name.endswith("weight") and math.isfinite(row["update_ratio"])
    }
    return max(ratios.items(), key=lambda item: item[1]) if ratios else ("", 0.0)


def _typical(sample: Sample) -> float:
    ratios = [
        row["update_ratio"] for row in weights(sample).values() if math.isfinite(row.get("update_ratio", math.nan))
    ]
    return statistics.median(ratios) if ratios else 0.0


def _diverged(history: History) -> bool:
    """Worse than at the start, and not for one batch; a loss that comes back is none of this."""
    losses = [loss for _, loss in history.losses if math.isfinite(loss)]
    if len(losses) < LOSSES:
        return False
    start = history.first_loss
    return all(loss > WORSE * abs(start) for loss in losses[-LOSSES // 2 :]) and min(smooth(losses)) > 0.5 * abs(start)


def _finding(history: History, worst: str, ratio: float, told: str) -> Finding:
    sample = history.samples[-1]
    losses = smooth(loss for _, loss in history.losses)
    return Finding(
        name="rate_too_high",
        group="optimizer",
        severity="problem",
        title=f"step {sample.step}: the learning rate is too high: {told}",
        cause=f"{worst} changes by {ratio:.2g} of its size in one step. Lower the rate or warm it up.",
        parameters=(worst,),
        evidence=(
            seen("update over parameter", ratio),
            seen("learning rate", sample.parameters[worst]["lr"]),
            seen("loss", losses[-1] if losses else math.nan, history.first_loss),
        ),
    )
