"""What the forward pass shows: attention without a choice, a branch that drowns its skip, jumps, a start off theory."""

from __future__ import annotations

import math
import statistics

from sigprop.monitoring.findings.base import Findings, RunContext, finding, problem, seen, warning
from sigprop.monitoring.history import History
from sigprop.results.report import Datum

SHARP = 0.05
"""Share of the largest possible entropy, on average over all heads and queries of one attention."""
OPEN = 0.3
SHARPENED = 5.0
SCORE = 30.0


@finding("attention_collapse", "tokens", unless="rate_too_high")
def attention_collapse(history: History, context: RunContext) -> Findings:
    """Attention that had a choice has none left: entropy collapsed while scores grew."""
    if len(history) < 2:
        return
    now, names = history.samples[-1], []
    for name, row in now.sites.items():
        if not name.endswith("scores") or row.get("uniform_entropy", 0.0) <= 0.0:
            continue
        entropies, largest = (history.series("sites", name, key) for key in ("entropy", "uniform_entropy"))
        share = [entropy / uniform for entropy, uniform in zip(entropies, largest, strict=True)]
        scores = history.series("sites", name, "largest_score")
        grown = scores[-1] > SCORE and scores[-1] > SHARPENED * abs(scores[0])
        if share[-1] < SHARP and share[0] > OPEN and grown:
            names.append(name)
    if names:
        row = now.sites[names[0]]
        yield problem(
            title=f"step {now.step}: attention looks at one token only at {len(names)} "
            f"place{'s' * (len(names) > 1)}, first {names[0]}",
            cause="Scores have grown until the softmax is a choice without gradient (Zhai et al. 2023): "
            "normalize queries and keys, or lower their learning rate.",
            sites=tuple(names),
            evidence=(
                seen("entropy in nats", row["entropy"], row["uniform_entropy"]),
                seen("largest score", row["largest_score"]),
            ),
        )


DROWNS = 10.0
OTHERS = 10.0
GROWTH = 4.0


@finding("exploding_branch", "signal", unless="rate_too_high")
def exploding_branch(history: History, context: RunContext) -> Findings:
    """One residual branch drowns its skip, and has come to do so in this run."""
    now = history.samples[-1] if len(history) > 1 else None
    ratios = {name: row["branch_ratio"] for name, row in now.sites.items() if "branch_ratio" in row} if now else {}
    if now is None or len(ratios) < 3:
        return
    worst = max(ratios, key=lambda name: ratios[name])
    others = statistics.median(value for name, value in ratios.items() if name != worst)
    begin = history.series("sites", worst, "branch_ratio")[0]
    if ratios[worst] > max(DROWNS, OTHERS * others, GROWTH * begin):
        yield problem(
            title=f"step {now.step}: the branch at {worst} is {ratios[worst]:.3g} times its skip",
            cause="What was carried to this block is lost in what the block adds; the others add "
            f"{others:.2g} of their skip. It started at {begin:.2g}.",
            sites=(worst,),
            evidence=(seen("branch over skip", ratios[worst], others), seen("at the first sample", begin)),
        )


BEFORE = 5
FACTOR = 30.0
DEVIATIONS = 12.0


@finding("jump", "signal", unless="rate_too_high")
def jump(history: History, context: RunContext) -> Findings:
    """A signal that leaves its own history from one sample to the next."""
    if len(history) <= BEFORE or history.samples[-1].bad is not None:
        return
    now = history.samples[-1]
    for name, row in now.sites.items():
        series = history.series("sites", name, "variance")
        if "variance" in row and _left(series):
            before = statistics.median(series[-1 - BEFORE : -1])
            yield warning(
                title=f"step {now.step}: the variance at {name} jumped from {before:.2g} to {series[-1]:.2g}",
                cause="It is the first place on the forward pass to leave its own history.",
                sites=(name,),
                evidence=(seen("variance", series[-1], before),),
            )
            return


def _left(series: list[float]) -> bool:
    """Far from its last values by a factor, and by many times their own movement."""
    values = [math.log(value) for value in series[-1 - 2 * BEFORE :] if value > 0.0 and math.isfinite(value)]
    if len(values) <= BEFORE:
        return False
    middle = statistics.median(values[:-1])
    spread = statistics.median(abs(value - middle) for value in values[:-1])
    return abs(values[-1] - middle) > max(math.log(FACTOR), DEVIATIONS * spread)


BAND = {"exact": 1.5, "asymptotic": 1.5, "quadrature": 1.5, "sampled": 2.0, "fitted": 2.0, "assumed": 4.0}
"""Factor by which one initialization may differ from its expectation, by the status of the prediction."""


@finding("off_prediction", "signal")
def off_prediction(history: History, context: RunContext) -> Findings:
    """The first sample is not what theory expects of a fresh model."""
    predicted = context.predicted
    if predicted is None or not context.fresh or len(history) != 1:
        return
    sample = history.samples[0]
    for row in predicted:
        measured = sample.sites.get(row.name, {}).get("variance", math.nan)
        if not (row.variance > 0.0 and measured > 0.0):
            continue
        if abs(math.log(measured / row.variance)) > math.log(BAND.get(row.status, 4.0)):
            yield warning(
                title=f"step {sample.step}: variance at {row.name} is {measured / row.variance:.2g} of the predicted",
                cause="It is the first place to leave the predicted band: the weights are not initialized as the "
                "prediction assumes, or they are trained already. `sigprop check` tells which.",
                sites=(row.name,),
                evidence=(Datum("variance", measured, "measured", expected=row.variance),),
            )
            return
