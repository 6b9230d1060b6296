"""Parameters that get no gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.edits import listed
from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.checks.suspects import zeros
from sigprop.results import ParameterRow
from sigprop.results.report import Datum, Finding, Prescription


@check("no_gradient", "gradient", "parameters that the loss does not reach")
def no_gradient(subject: Subject) -> Iterator[Finding]:
    """None at all: not used, or detached. Exactly zero: behind zeros, saturated values, or dead units."""
    profile = subject.measured
    if profile is None:
        return
    trainable = {name for name, value in subject.model.named_parameters() if value.requires_grad}
    rows = [row for row in profile.parameters if row.name in trainable]
    if rows and not any(row.grad_second_moment > 0 for row in rows):
        if not any(math.isinf(row.grad_second_moment) for row in rows) and not subject.observed.broken:
            yield _nothing(rows)
        return
    yield from _unused(subject, rows)
    yield from _zero(subject, rows)


def _nothing(rows: list[ParameterRow]) -> Finding:
    return Finding(
        "no_gradient",
        "gradient",
        "problem",
        f"none of the {len(rows)} trained parameters gets a gradient, {rows[0].name} first: nothing can be learned",
        "Every one of them stands behind a factor of zero, or is detached from the loss.",
        parameters=tuple(row.name for row in rows),
        evidence=(Datum("trained parameters with a gradient", 0, "measured", expected=len(rows)),),
    )


def _unused(subject: Subject, rows: list[ParameterRow]) -> Iterator[Finding]:
    unused = [row.name for row in rows if math.isnan(row.grad_second_moment)]
    roles = {} if subject.structure is None else {item.name: item for item in subject.structure}
    cut = [name for name in unused if name in roles and roles[name].role != "unused" and not roles[name].expert]
    if not unused:
        return
    routed = any(item.options in subject.expert_counts for item in subject.observed.routings.values())
    severe = bool(cut) and any(roles[name].junction is not None for name in cut) and not routed
    yield Finding(
        "no_gradient",
        "gradient",
        "warning" if severe else "note",
        f"{len(unused)} of {len(rows)} parameters get no gradient, {(cut if severe else unused)[0]} first",
        "They take part in the forward pass and get no gradient: something detaches what they make." if severe else
        "They are not used on this batch (a pooler, an unused head, experts that no token chose).",
        parameters=tuple(unused),
        evidence=(Datum("parameters without a gradient", len(unused), "measured", expected=0),),
        prescription=Prescription("look for a `detach`, `no_grad` or `.data` behind them" if severe else
                                  "freeze them, or leave them out"),
    )  # fmt: skip


def _zero(subject: Subject, rows: list[ParameterRow]) -> Iterator[Finding]:
    """A note where a zero that learns itself was shown to be all that stands between them and the loss."""
    dead = [row for row in rows if row.grad_second_moment == 0 and not _is_bias(row.name)]
    if not dead:
        return
    names = [row.name for row in dead]
    waiting, cause = _behind_zeros(subject, names)
    matrices = [name for name in names if len(subject.draws[name].shape) > 1] if names else []
    shown = matrices or names
    learns = waiting and not set(waiting) <= set(names)
    yield Finding(
        "no_gradient",
        "gradient",
        "note" if learns else "problem",
        f"{len(names)} parameters have a gradient of exactly zero, {shown[0]} first",
        cause if learns else f"What they make never reaches the loss. {cause}".strip(),
        parameters=tuple(names),
        evidence=(Datum("parameters with a gradient of zero", len(names), "measured", expected=0),),
        prescription=None if learns else Prescription("find the zero between them and the loss"),
    )


def _is_bias(name: str) -> bool:
    return "bias" in name.rpartition(".")[2]


def _behind_zeros(subject: Subject, dead: list[str]) -> tuple[list[str], str]:
    """The zeros that were shown to stand before the dead, by trying them at other values."""
    if subject.evaluation is None:
        return [], ""
    finding = Finding("no_gradient", "gradient", "note", "", "", parameters=tuple(dead))
    found, rest = [], set(dead)
    for change in zeros(subject, finding):
        twin = subject.edited(change.inits)
        if twin is None or twin.measured is None:
            continue
        alive = {row.name for row in twin.measured.parameters if row.grad_second_moment > 0}
        if rest & alive - set(change.inits):
            found += list(change.inits)
            rest -= alive
    if rest - set(found) or not found:
        return [], ""
    return found, (
        f"{listed(found)} {'is' if len(found) == 1 else 'are'} zero, which was shown to be the reason: at other values "
        "they get a gradient. They start to learn once it has moved."
    )
