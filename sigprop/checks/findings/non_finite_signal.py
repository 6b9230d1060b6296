"""The pass itself is not finite."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.ends import BROKEN
from sigprop.checks.registry import check, say
from sigprop.checks.subject import Subject
from sigprop.results.report import Datum, Finding, Prescription

OUTPUT = "the model's output"


@check("non_finite_signal", "signal", "activations, the loss or gradients that are infinite or not a number")
def non_finite_signal(subject: Subject) -> Iterator[Finding]:
    """The first place of the forward pass; where that is finite, the function at which the gradient stops being so."""
    profile = subject.measured
    if profile is None:
        return
    forward = [name or OUTPUT for name in subject.observed.broken]
    loss = profile.meta.get("loss_value")
    doubted = [row.name for row in profile.parameters if not math.isfinite(row.grad_second_moment)]
    bad_loss = isinstance(loss, float) and not math.isfinite(loss)
    states, ends = subject.gradient_ends if doubted and not forward and not bad_loss else ({}, {})
    broken = [name for name in doubted if states.get(name) == BROKEN]
    if not forward and not bad_loss and not broken:
        return
    where = f"at {forward[0]} first" if forward else "in the loss" if bad_loss else f"in the gradient of {broken[0]}"
    cause, fix = _told(subject, forward)
    if broken and broken[0] in ends:
        cause, fix = f"{ends[broken[0]].why}.", "add an epsilon inside it, or keep what it reads away from zero"
    yield say(
        "problem",
        f"numbers are not finite, {where}" + (f"; the loss is {loss:g}" if bad_loss else ""),
        cause,
        sites=tuple(forward),
        parameters=tuple(broken),
        evidence=(Datum("places that are not finite", len(forward) + len(broken) + bad_loss, "measured", expected=0),),
        prescription=Prescription(fix) if fix else None,
    )


def _told(subject: Subject, forward: list[str]) -> tuple[str, str]:
    """Labels that are all ignored, queries that see no key, else what such places have in common."""
    if forward in ([], [OUTPUT]) and any(not item.labelled for item in subject.observed.losses):
        return (
            "Every label is the one that the cross entropy ignores: it averages over nothing, 0 / 0.",
            "give labels that are not `ignore_index` (-100)",
        )
    blind = subject.observed.blind
    inside = [name for name in blind if not forward or forward[0].startswith(name) or name.startswith(forward[0])]
    if inside:
        return (
            f"In {inside[0]} {blind[inside[0]]} queries see no key: every score of theirs is -inf, and the softmax of "
            "that is nan. The mask hides what it should show (inverted), or hides the query itself.",
            "let every query see a key: the diagonal of a causal mask belongs to it, and True means hidden in "
            "`key_padding_mask`",
        )
    return (
        "What is computed there divides by zero, overflows, or takes the softmax of nothing but -inf.",
        "clamp or add an epsilon to what it divides by, and look at the std of what it reads",
    )
