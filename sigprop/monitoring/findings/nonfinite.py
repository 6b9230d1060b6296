"""A value stopped being finite: where, and since which step."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.monitoring.findings.base import RunContext, finding, problem, seen
from sigprop.monitoring.history import History
from sigprop.results.report import Finding

CAUSES = {
    "forward": "Everything before this place on the forward pass was finite, so that it arose here.",
    "backward": "The forward pass was finite; on the way back this was the first gradient that was not.",
    "parameter": "The pass was finite, the parameter is not: an earlier step has broken it.",
    "parameter gradient": "The pass was finite, the gradient that the optimizer gets is not.",
}


@finding("nonfinite", "signal", unless="overflow")
def nonfinite(history: History, context: RunContext) -> Iterator[Finding]:
    sample = history.samples[-1] if history.samples else None
    if sample is None or sample.bad is None:
        if history.first_bad_loss is not None:
            yield _loss(history)
        return
    kind, place = sample.bad
    good = [before.step for before in history if before.bad is None]
    since = f"; the sample of step {good[-1]} was finite everywhere" if good else ""
    cause = CAUSES[kind]
    if place.startswith("(input)"):
        cause = "The batch itself holds values that are not finite: the fault lies with the data, not with the model."
    is_parameter = kind.startswith("parameter")
    yield problem(
        title=f"step {sample.step}: {kind} not finite first at {place}{since}",
        cause=cause,
        sites=() if is_parameter else (place,),
        parameters=(place,) if is_parameter else (),
        evidence=(seen("step", sample.step),),
    )


def _loss(history: History) -> Finding:
    step = history.first_bad_loss
    before = [sample.step for sample in history if sample.bad is None and sample.step < step]  # type: ignore[operator]
    told = f"the sample of step {before[-1]} was finite everywhere" if before else "no sample before it was finite"
    return problem(
        group="loss",
        title=f"step {step}: the loss is not finite",
        cause=f"Between samples only the loss is seen: {told}. The next step is sampled to find the place.",
        evidence=(seen("step", float(step or 0)),),
    )
