"""The pass itself is not finite."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.results.report import Datum, Finding


@check("non_finite_signal", "signal", "activations, the loss or gradients that are infinite or not a number")
def non_finite_signal(subject: Subject) -> Iterator[Finding]:
    """The first place of the forward pass; where that is finite, the last one of the backward pass."""
    profile = subject.measured
    if profile is None:
        return
    forward = subject.observed.broken
    loss = profile.meta.get("loss_value")
    # a gradient is missing (nan) where none arrives; it is broken where parameters are
    broken = [row.name for row in profile.parameters if math.isinf(row.grad_second_moment)]
    bad_loss = isinstance(loss, float) and not math.isfinite(loss)
    if not forward and not bad_loss and not broken:
        return
    where = f"at {forward[0]} first" if forward else "in the loss" if bad_loss else f"in the gradient of {broken[0]}"
    hidden = _hidden_scores(subject, forward)
    yield Finding(
        "non_finite_signal",
        "signal",
        "problem",
        f"numbers are not finite, {where}" + (f"; the loss is {loss:g}" if bad_loss else ""),
        hidden or "What is computed there divides by zero, overflows, or takes the softmax of nothing but -inf.",
        sites=tuple(forward),
        parameters=tuple(broken),
        depths=subject.depths_of(forward or broken),
        evidence=(Datum("places that are not finite", len(forward) + len(broken) + bad_loss, "measured", expected=0),),
    )


def _hidden_scores(subject: Subject, forward: list[str]) -> str:
    """Whether the first place that is not finite is an attention in which a query sees no key."""
    blind = subject.observed.blind
    inside = [name for name in blind if not forward or forward[0].startswith(name) or name.startswith(forward[0])]
    if not inside:
        return ""
    return (
        f"In {inside[0]} {blind[inside[0]]} queries see no key: every score of theirs is -inf, and the "
        "softmax of that is nan. The mask hides what it should show (inverted), or hides the query itself."
    )
