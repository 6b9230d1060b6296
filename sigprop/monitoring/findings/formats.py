"""What is not finite, and what a narrow format loses at both ends of its range."""

from __future__ import annotations

import math

from sigprop.monitoring.findings.base import Findings, RunContext, finding, last, module_of, problem, seen, warning
from sigprop.monitoring.history import History, Sample
from sigprop.results.report import Finding

NARROW = ("fp16", "bf16")
GRADIENT_SAMPLES = 3
"""A loss scaler tries larger scales until gradients overflow; only a row of such samples is no trial."""


@finding("overflow", "precision")
def overflow(history: History, context: RunContext) -> Findings:
    """A tensor left the range of the format it is held in."""
    for sample in last(history, 1):
        for name, row in sample.sites.items():
            for narrow in NARROW:
                if row.get(f"{narrow}_overflow", 0.0) > 0.0 or _arose(sample, name, f"{narrow}_overflow" in row):
                    yield _overflowed(history, sample.step, name, narrow, "")
                    return
    for narrow in NARROW:
        recent = last(history, GRADIENT_SAMPLES)
        key = f"grad_{narrow}_overflow"
        if recent and all(any(row.get(key, 0.0) > 0.0 for row in s.sites.values()) for s in recent):
            name = [name for name, row in recent[-1].sites.items() if row.get(key, 0.0) > 0.0][-1]
            yield _overflowed(history, recent[-1].step, name, narrow, "grad_")


def _arose(sample: Sample, name: str, narrow: bool) -> bool:
    """The first bad place of the forward pass is held in a narrow format, and no parameter of it was bad before.

    An infinity inside a product leaves a nan: the weight, rounded to the format, was infinite already.
    """
    if not narrow or sample.bad != ("forward", name):
        return False
    own = [row for key, row in sample.parameters.items() if module_of(key) == name]
    return all(math.isfinite(row.get("second_moment", 0.0)) for row in own)


def _overflowed(history: History, step: int, name: str, narrow: str, prefix: str) -> Finding:
    share = history.samples[-1].sites[name][f"{prefix}{narrow}_overflow"]
    before = history.series("sites", name, f"{prefix}{narrow}_headroom")[:-1]
    evidence = [seen(f"share of infinite entries ({narrow})", share, 0.0)]
    if before:
        evidence.append(seen("largest entry at the sample before, as a share of the largest number", before[-1]))
    return problem(
        title=f"step {step}: the {'gradient' if prefix else 'signal'} overflows {narrow} first at {name}",
        cause=f"Entries exceed the largest number of {narrow}. "
        + ("The loss scale is too large for this place." if prefix else "bf16 has the range of float32."),
        sites=(name,),
        evidence=tuple(evidence),
    )


LOST = 0.5
LOST_SAMPLES = 3


@finding("underflow", "precision")
def underflow(history: History, context: RunContext) -> Findings:
    """Most of a gradient lies where the format in use loses its bits."""
    recent = last(history, LOST_SAMPLES)
    for narrow in NARROW:
        key = f"grad_{narrow}_underflow"
        names = [
            name
            for name in (recent[-1].sites if recent else ())
            if all(sample.sites.get(name, {}).get(key, 0.0) > LOST for sample in recent)
        ]
        if names:
            yield warning(
                title=f"step {recent[-1].step}: most of the gradient at {names[0]} is subnormal in {narrow}",
                cause=f"Entries below {narrow}'s smallest normal number keep few bits or none: scale the loss up.",
                sites=tuple(names),
                evidence=(seen("share of subnormal entries", recent[-1].sites[names[0]][key]),),
            )


CAUSES = {
    "forward": "Everything before this place on the forward pass was finite, so that it arose here.",
    "backward": "The forward pass was finite; on the way back this was the first gradient that was not.",
    "parameter": "The pass was finite, the parameter is not: an earlier step has broken it.",
    "parameter gradient": "The pass was finite, the gradient that the optimizer gets is not.",
}
BAD_BATCH = "The batch itself holds values that are not finite: the fault lies with the data, not with the model."


@finding("nonfinite", "signal", unless="overflow")
def nonfinite(history: History, context: RunContext) -> Findings:
    """A value stopped being finite: where, and since which step."""
    sample = history.samples[-1] if history.samples else None
    if sample is None or sample.bad is None:
        if history.first_bad_loss is not None:
            yield _loss(history, history.first_bad_loss)
        return
    kind, place = sample.bad
    good = [before.step for before in history if before.bad is None]
    since = f"; the sample of step {good[-1]} was finite everywhere" if good else ""
    is_parameter = kind.startswith("parameter")
    yield problem(
        title=f"step {sample.step}: {kind} not finite first at {place}{since}",
        cause=BAD_BATCH if place.startswith("(input)") else CAUSES[kind],
        sites=() if is_parameter else (place,),
        parameters=(place,) if is_parameter else (),
        evidence=(seen("step", sample.step),),
    )


def _loss(history: History, step: int) -> Finding:
    before = [sample.step for sample in history if sample.bad is None and sample.step < step]
    told = f"the sample of step {before[-1]} was finite everywhere" if before else "no sample before it was finite"
    return problem(
        group="loss",
        title=f"step {step}: the loss is not finite",
        cause=f"Between samples only the loss is seen: {told}. The next step is sampled to find the place.",
        evidence=(seen("step", float(step)),),
    )
