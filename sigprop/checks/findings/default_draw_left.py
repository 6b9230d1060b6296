"""Torch's default draw left in place in a model that is otherwise initialized by its author."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from sigprop.checks.draws import Draw
from sigprop.checks.registry import check, say
from sigprop.checks.statistics import is_torch_default
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding, Prescription

DEFAULTS = ("Linear", "Conv1d", "Conv2d", "Conv3d", "NonDynamicallyQuantizableLinear")
ENOUGH = 1024
FEW, FEWEST = 0.34, 4


@check(
    "default_draw_left",
    "draw",
    "a layer still has torch's default uniform initialization while the others have their own",
)
def default_draw_left(subject: Subject) -> Iterator[Finding]:
    """nn.Linear and nn.Conv draw U(-1/sqrt(fan_in), 1/sqrt(fan_in)), of std 1 / sqrt(3 fan_in). A kind of layer that
    its author draws nowhere (the one linear layer of a ResNet) was left on purpose."""
    if subject.trained:
        return
    rows = [row for row in subject.draws.matrices if row.kind in DEFAULTS and row.fan_in and row.total >= ENOUGH]
    drawn = {row.kind for row in rows if not is_torch_default(row)}
    left = [row for row in rows if is_torch_default(row) and row.kind in drawn]
    if (
        len(rows) >= FEWEST
        and all(map(is_torch_default, rows))
        and any(row.kind == "Embedding" for row in subject.draws)
    ):
        yield _nothing_drawn(rows)
    families = {row.family for row in rows}
    odd = {row.family for row in left}
    if not left or len(odd) > max(1, FEW * len(families)) or len(left) > FEW * len(rows) or len(rows) < FEWEST:
        return
    others = [row for row in rows if not is_torch_default(row)]
    if sum(row.law in ("normal", "truncated normal") for row in others) < limit("draw_majority") * len(others):
        return
    first = left[0]
    usual = statistics.median(row.std * row.fan_in**0.5 for row in others)
    near = abs(math.log(first.std * first.fan_in**0.5 / usual)) < math.log(limit("near_default"))
    yield say(
        "note" if near else "warning",
        f"{first.name} still has torch's default initialization, uniform with std 1 / sqrt(3 fan_in)",
        f"{len(others)} of {len(rows)} matrices are normal: the initialization of this model did not reach the rest.",
        parameters=tuple(row.name for row in left),
        evidence=(
            Datum(f"std of {first.name}", first.std, "weights", first.std * first.log_std_error),
            Datum("1 / sqrt(3 fan_in)", 1 / math.sqrt(3 * first.fan_in), "torch"),
            Datum("kurtosis (uniform 1.8, normal 3)", first.kurtosis, "weights"),
        ),
        prescription=Prescription("initialize it with the others, or say in code that torch's default is meant"),
    )


def _nothing_drawn(rows: list[Draw]) -> Finding:
    first = rows[0]
    return say(
        "note",
        f"all {len(rows)} linear and convolutional weights have torch's default initialization, {first.name} first",
        "U(-1/sqrt(fan_in), 1/sqrt(fan_in)): no initialization of the model's own has reached them.",
        parameters=tuple(row.name for row in rows),
        evidence=(Datum("weights at torch's default", len(rows), "weights"),),
        prescription=Prescription("call the model's own initialization, where there is one"),
    )
