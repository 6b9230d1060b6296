"""The loss starts far above that of a guess."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.gauges import logit_variance
from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding


@check("initial_loss", "output", "initial loss far from ln(classes): the logits are too large")
def initial_loss(subject: Subject) -> Iterator[Finding]:
    """Logits of variance s2 that know nothing of the labels give ln(classes) + s2 / 2 (less when s2 > 2 ln classes)."""
    readout, profile = subject.readout, subject.profile
    if readout is None or profile is None or readout.tied:
        return
    yield from loss_finding(subject, "initial_loss", "The readout is drawn too wide for the signal that it reads.")


def loss_finding(subject: Subject, name: str, cause: str) -> Iterator[Finding]:
    """Shared with the tied readout, which has a cause of its own."""
    readout, profile = subject.readout, subject.profile
    assert readout is not None
    assert profile is not None
    classes = subject.classes
    variance = logit_variance(subject, profile)
    if classes is None or not math.isfinite(variance):
        return
    guess, excess = math.log(classes), variance / 2
    loss = subject.measured_loss
    if loss is not None:
        excess = loss - guess
    if excess < limit("initial_loss") or variance / 2 < limit("initial_loss") / 2:
        return
    evidence = [Datum("logit variance", variance, subject.source, expected=1.0)]
    if loss is not None:
        evidence.insert(0, Datum("initial loss", loss, "measured", expected=guess))
    yield Finding(
        name,
        "output",
        "problem" if excess > limit("initial_loss_problem") else "warning",
        f"the loss starts {excess:.3g} above ln({classes}) = {guess:.2f}"
        + ("" if loss is not None else ", from the variance of the logits"),
        cause,
        "mean of the log-sum-exp of normal logits; dslm, B.7",
        sites=(subject.logits_site,) if subject.logits_site else (),
        parameters=(readout.name,),
        evidence=tuple(evidence),
    )
