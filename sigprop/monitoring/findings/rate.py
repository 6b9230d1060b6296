"""The learning rate is too high: the loss has left where it started, or weights are replaced rather than moved; and
losses that jump again and again while signals, gradients and updates do not: look at the data."""

from __future__ import annotations

import math
import statistics

from sigprop.monitoring.findings.base import Findings, RunContext, finding, problem, seen, smooth, warning, weights
from sigprop.monitoring.history import History, Sample
from sigprop.results.report import Finding

WORSE = 1.3
"""A loss above its start by this factor for half of `LOSSES` steps; by `FAR` once is enough when the run breaks."""
FAR = 3.0
LOSSES = 8
RAISED = 3.0
"""A rate above all earlier ones by this factor between two samples is a change of the schedule; warm-ups that long
known rise by less between samples, and lower the loss."""
MOVING = 0.01
REPLACED = 0.2
AT_ONCE = 0.5
SAMPLES = 3
"""The middle matrix changes by `REPLACED` of its size at several samples, or by `AT_ONCE` at one."""


@finding("rate_too_high", "optimizer")
def rate_too_high(history: History, context: RunContext) -> Findings:
    good = [sample for sample in history if sample.bad is None]
    if not good:
        return
    worst, ratio = _largest(good[-1])
    change = _raised(good)
    if worst and change is not None and _worse_since(history, change[0].step):
        yield _changed(history, *change, worst, ratio)
    elif worst and ratio > MOVING and _diverged(history):
        yield _finding(history, good[-1], worst, ratio, "the loss is above where it started")
    elif _replaced(history):
        yield _finding(history, good[-1], worst, ratio, "each step replaces a large part of the weights")


def _raised(good: list[Sample]) -> tuple[Sample, Sample] | None:
    """The last two samples between which a group's rate rose far above what it had ever been."""
    if len(good) < 2:
        return None
    before, after = good[-2:]
    for name, row in after.groups.items():
        highest = max((sample.groups.get(name, {}).get("lr", 0.0) for sample in good[:-1]), default=0.0)
        if 0 < highest * RAISED < row.get("lr", 0.0):
            return before, after
    return None


def _worse_since(history: History, step: int) -> bool:
    """Whether the losses after a step are above all those of the same number before it, in the median."""
    later = [loss for at, loss in history.losses if at > step and math.isfinite(loss)]
    earlier = [loss for at, loss in history.losses if at <= step and math.isfinite(loss)][-max(len(later), LOSSES) :]
    broken = history.first_bad_loss is not None
    return broken or (bool(later and earlier) and max(later) > WORSE * statistics.median(earlier))


def _changed(history: History, before: Sample, after: Sample, worst: str, ratio: float) -> Finding:
    group = max(after.groups, key=lambda name: after.groups[name].get("lr", 0.0))
    old, new = (sample.groups.get(group, {}).get("lr", math.nan) for sample in (before, after))
    return problem(
        title=f"step {after.step}: the learning rate went from {old:.3g} to {new:.3g} after step {before.step}, and "
        "the loss has risen since",
        cause=f"{worst} changes by {ratio:.2g} of its size in one step. Go back to the rate before, or raise it "
        "slowly; look at the schedule.",
        parameters=(worst,),
        evidence=(
            seen("learning rate", new, old),
            seen("update over parameter", ratio),
            seen("loss", history.losses[-1][1], before.loss),
        ),
    )


def _largest(sample: Sample) -> tuple[str, float]:
    """The parameter that moves most for its size; those that began at zero, such as biases, say nothing."""
    ratios = _ratios(sample)
    return max(ratios.items(), key=lambda item: item[1]) if ratios else ("", 0.0)


def _replaced(history: History) -> bool:
    typical = [_typical(sample) for sample in history.samples[-SAMPLES:]]
    return typical[-1] > AT_ONCE or (len(typical) == SAMPLES and min(typical) > REPLACED)


def _typical(sample: Sample) -> float:
    ratios = list(_ratios(sample).values())
    return statistics.median(ratios) if ratios else 0.0


def _ratios(sample: Sample) -> dict[str, float]:
    found = {name: row.get("update_ratio", math.nan) for name, row in weights(sample).items() if "weight" in name}
    return {name: ratio for name, ratio in found.items() if math.isfinite(ratio)}


def _diverged(history: History) -> bool:
    """Worse than at the start, and not for one batch; a loss that was low before has another cause."""
    losses = [loss for _, loss in history.losses if math.isfinite(loss)]
    start = abs(history.first_loss)
    if len(losses) < 2 or min(smooth(losses)) < 0.5 * start:
        return False
    broken = history.first_bad_loss is not None or history.samples[-1].bad is not None
    return (broken and losses[-1] > FAR * start) or (
        len(losses) >= LOSSES and all(loss > WORSE * start for loss in losses[-LOSSES // 2 :])
    )


def _finding(history: History, sample: Sample, worst: str, ratio: float, told: str) -> Finding:
    losses = smooth(loss for _, loss in history.losses)
    return problem(
        title=f"step {sample.step}: the learning rate is too high: {told}",
        cause=f"{worst} changes by {ratio:.2g} of its size in one step. Lower the rate or warm it up.",
        parameters=(worst,),
        evidence=(
            seen("update over parameter", ratio),
            seen("learning rate", sample.parameters[worst]["lr"]),
            seen("loss", losses[-1] if losses else math.nan, history.first_loss),
        ),
    )


BEFORE = 8
JUMP = 3.0
LASTING = 3
SHARE = 0.25
TIMES = 2
"""The loss rises to `JUMP` times its last values and to `SHARE` of where it began, not for one batch but for `LASTING`,
and does so `TIMES` times."""


@finding("loss_alone", "loss")
def loss_alone(history: History, context: RunContext) -> Findings:
    losses = [(step, loss) for step, loss in history.losses if math.isfinite(loss)]
    jumps = _jumps(losses)
    if len(jumps) < TIMES or any(sample.bad for sample in history) or not _calm(history):
        return
    steps = [losses[place][0] for place in jumps]
    yield warning(
        title=f"the loss jumps and comes back ({len(steps)} times, first at step {steps[0]}), the signals do not",
        cause="No site or update has left its history. Batches that differ so much point at the order or the "
        "mixture of the data (not shuffled, sorted by class or source), not at initialization or optimizer.",
        evidence=(seen("loss at the first jump", losses[jumps[0]][1], losses[jumps[0] - 1][1]),),
    )


def _jumps(losses: list[tuple[int, float]]) -> list[int]:
    """Places where the loss leaves what it was by a factor and more, and comes back to it later."""
    found: list[int] = []
    values = [loss for _, loss in losses]
    for place in range(BEFORE, len(values)):
        before = statistics.median(values[place - BEFORE : place])
        spread = statistics.median(abs(value - before) for value in values[place - BEFORE : place])
        high = values[place] > max(JUMP * abs(before) + 8.0 * spread, SHARE * abs(values[0]))
        high = high and min(values[place : place + LASTING]) > 0.5 * JUMP * abs(before)
        returned = any(value < 0.5 * (values[place] + before) for value in values[place + 1 :])
        if high and returned and (not found or place - found[-1] > BEFORE // 2):
            found.append(place)
    return found


def _calm(history: History) -> bool:
    """Typical variances within a factor of the run's own middle at every sample."""
    typical = []
    for sample in history:
        values = [row["variance"] for row in sample.sites.values() if row.get("variance", 0.0) > 0.0]
        if values:
            typical.append(statistics.median(map(math.log, values)))
    middle = statistics.median(typical) if typical else 0.0
    return all(abs(value - middle) < math.log(10.0) for value in typical)
