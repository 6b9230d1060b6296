"""The loss starts far above that of a guess."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.gauges import logit_variance
from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding


@check("initial_loss", "output", "initial loss far from that of a guess: the logits are too large")
def initial_loss(subject: Subject) -> Iterator[Finding]:
    """Logits of variance s2 that know nothing of the labels give ln(classes) + s2 / 2 (less when s2 > 2 ln classes)."""
    readout = subject.readout
    if subject.profile is not None and not (readout is not None and readout.tied):
        yield from loss_finding(subject, "initial_loss", "The first steps only undo the size of the logits.")


def loss_finding(subject: Subject, name: str, cause: str) -> Iterator[Finding]:
    """The cross entropy that the model computes; else the variance of its logits. Too large logits are told also where
    the labels of the batch hide them (labels that equal a tied model's inputs)."""
    assert subject.profile is not None
    variance = logit_variance(subject, subject.profile)
    calls = subject.observed.losses
    worst = max(calls, key=lambda item: item.value - item.chance, default=None)
    if worst is not None:
        guess, excess, classes = worst.chance, worst.value - worst.chance, worst.classes
    elif subject.classes is not None:
        classes = subject.classes
        guess, excess = math.log(classes), variance / 2
        if subject.measured_loss is not None and subject.profile.meta.get("loss") == "cross_entropy":
            excess = subject.measured_loss - guess
    else:
        return
    if not math.isfinite(variance) or variance / 2 < limit("initial_loss"):
        return
    seen = worst is not None or subject.measured_loss is not None
    hidden = excess < limit("initial_loss")
    evidence = [Datum("logit variance", variance, subject.source, expected=1.0)]
    if seen:
        evidence.insert(0, Datum("initial loss", guess + excess, "measured", expected=guess))
    yield Finding(
        name,
        "output",
        "problem" if max(excess, variance / 2) > limit("initial_loss_problem") else "warning",
        f"logits have variance {variance:.3g}: the loss starts {variance / 2:.3g} above ln({classes}) = {guess:.2f} on "
        "labels that the input does not hold"
        if hidden else f"the loss starts {excess:.3g} above ln({classes}) = {guess:.2f}"
        + ("" if seen else ", from the variance of the logits"),
        cause,
        "mean of the log-sum-exp of normal logits; dslm, B.7",
        sites=(subject.logits_site,) if subject.logits_site and worst is None else (),
        parameters=(subject.readout.name,) if subject.readout is not None and worst is None else (),
        evidence=tuple(evidence),
    )  # fmt: skip
