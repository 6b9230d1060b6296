"""Parameters that get no gradient."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator

from torch import nn

from sigprop.checks.draws import NUMBER
from sigprop.checks.edits import edit, listed, setting
from sigprop.checks.ends import ALIVE, BROKEN
from sigprop.checks.registry import check, say
from sigprop.checks.subject import Subject, effect, is_norm_gain
from sigprop.checks.suspects import zeros
from sigprop.checks.thresholds import limit
from sigprop.results import Edit, Init, ParameterRow
from sigprop.results.report import Datum, Finding, Prescription


@check("no_gradient", "gradient", "parameters that the loss does not reach")
def no_gradient(subject: Subject) -> Iterator[Finding]:
    """None at all: not used, or detached. Exactly zero: behind zeros, saturated values, or dead units. What a
    second pass with other random numbers reaches was dropped by chance (stochastic depth)."""
    profile = subject.measured
    if profile is None:
        return
    trainable = {name for name, value in subject.model.named_parameters() if value.requires_grad}
    rows = [row for row in profile.parameters if row.name in trainable]
    if not rows or subject.observed.broken:
        return
    if not any(row.grad_second_moment > 0 for row in rows):
        if BROKEN not in subject.gradient_ends[0].values() and math.isfinite(profile.meta.get("loss_value") or 0.0):
            yield _nothing(subject, [row.name for row in rows])
        return
    yield from _unused(subject, rows)
    yield from _zero(subject, rows)
    yield from _noise(subject, rows)
    yield from _steps(subject)


def _steps(subject: Subject) -> Iterator[Finding]:
    """A state that is detached again and again within one pass."""
    found = {name: count for name, count in subject.observed.detached.items() if count >= limit("detached_steps")}
    if found:
        name = max(found, key=found.__getitem__)
        yield say(
            "warning",
            f"{name} detaches a tensor {found[name]} times in one pass",
            "No gradient goes from one step to the step before: what happened earlier cannot be learned.",
            sites=tuple(found),
            evidence=(Datum("calls of detach", found[name], "measured", expected=0),),
            prescription=Prescription("detach the state between batches, not between the steps of one"),
        )


def _noise(subject: Subject, rows: list[ParameterRow]) -> Iterator[Finding]:
    """Matrices whose gradient is rounding, and that change nothing when they are doubled."""
    sizes = {row.name: row.grad_second_moment for row in rows if len(row.shape) > 1 and row.grad_second_moment > 0}
    least = limit("noise_gradient") * statistics.median(sizes.values()) if sizes else 0.0
    tiny = [name for name, size in sizes.items() if size < least]
    if (
        tiny
        and subject.draws[tiny[0]].std
        and effect(subject, {name: Init("keep", value=2.0) for name in tiny}) < 1e-10
    ):
        yield say(
            "problem",
            f"the gradient of {len(tiny)} parameters is rounding noise, {tiny[0]} first",
            f"Doubling {listed(tiny)} leaves the output as it is: their scale is normalized away (one choice divided "
            "by itself, a softmax over one option), so that no gradient is left.",
            parameters=tuple(tiny),
            evidence=(Datum(f"gradient of {tiny[0]}, mean square", sizes[tiny[0]], "measured"),),
            prescription=Prescription("do not normalize what they make, or normalize it over more than one"),
        )


def _why(subject: Subject, names: list[str]) -> tuple[str, tuple[Edit, ...], str]:
    """Where the gradient of the first of them that is known ends; the number that is zero there, at one; what would let
    the gradient through."""
    ends = subject.gradient_ends[1]
    end = next((ends[name] for name in names if name in ends), None)
    if end is None:
        return "", (), ""
    owners = {ends[name].site for name in names if name in ends and ends[name].number}
    modules = dict(subject.model.named_modules())
    owners = {owner.removeprefix("the model") for owner in owners}
    places = {
        f"{owner}.{key}".lstrip("."): 1.0
        for owner in sorted(owners)
        if owner in modules
        for key, value in vars(modules[owner]).items()
        if isinstance(value, float) and value == 0.0
    }
    edits = (setting(f"set {listed(list(places))} to 1", places, f"{listed(list(places))} is 0."),) if places else ()
    return f"{end.why[0].upper()}{end.why[1:]}.", edits, end.fix


def _nothing(subject: Subject, names: list[str]) -> Finding:
    why, edits, fix = _why(subject, names)
    return say(
        "problem",
        f"none of the {len(names)} trained parameters gets a gradient, {names[0]} first: nothing can be learned",
        why or "Every one of them stands behind a factor of zero, or is detached from the loss.",
        parameters=tuple(names),
        evidence=(Datum("trained parameters with a gradient", 0, "measured", expected=len(names)),),
        prescription=Prescription(fix) if fix else None,
        edits=edits,
    )


def _unused(subject: Subject, rows: list[ParameterRow]) -> Iterator[Finding]:
    """A warning where the forward pass uses them and something takes their gradient away, or where a whole table is
    built and never read."""
    unused = [row.name for row in rows if math.isnan(row.grad_second_moment)]
    if not unused:
        return
    states, ends = subject.gradient_ends
    unused = [name for name in unused if states.get(name) not in (ALIVE, BROKEN)]
    roles = {} if subject.structure is None else {item.name: item for item in subject.structure}
    routed = any(item.options in subject.expert_counts for item in subject.observed.routings.values())
    cut = [name for name in unused if name in ends and not (routed and name in roles and roles[name].expert)]
    cut = [] if all(map(_is_bias, cut)) else cut  # what only chooses is moved by other rules (DeepSeek-V3)
    modules = dict(subject.model.named_modules())
    idle = [
        name
        for name in unused
        if name not in cut and name not in ends and isinstance(modules.get(name.rpartition(".")[0]), nn.Embedding)
    ]
    rest = [name for name in unused if name not in (*cut, *idle)]
    alive = Counter(NUMBER.sub("*", row.name) for row in rows if row.name not in unused)
    left = Counter(NUMBER.sub("*", name) for name in rest)
    config = getattr(getattr(subject.model, "config", None), "__dict__", {})
    some = routed or any("layerdrop" in key and value for key, value in config.items())
    odd = [name for name in rest if left[NUMBER.sub("*", name)] < alive[NUMBER.sub("*", name)] and not some]
    for names, severity, title, cause, fix in (
        (
            odd,
            "warning",
            "are never run, while most of their siblings are",
            "The same parameters of other layers get a gradient; these are left out (a range that ends too early, a "
            "slice, a condition).",
            "run every layer of the list, or leave these out",
        ),
        (
            cut,
            "warning",
            "take part in the forward pass and get no gradient",
            _why(subject, cut)[0],
            _why(subject, cut)[2] or "look for a `detach`, `no_grad` or `.data` there",
        ),
        (
            idle,
            "warning",
            "are tables that the loss never reaches",
            "They are built and not used: nothing that they hold is added to the signal, or it never gets to the loss.",
            "add what the table gives to the stream, or leave it out",
        ),
        (
            [name for name in rest if name not in odd],
            "note",
            "get no gradient",
            "They are not used on this batch (a pooler, an unused head, experts that no token chose).",
            "freeze them, or leave them out",
        ),
    ):
        if names:
            yield say(
                severity,
                f"{len(names)} of {len(rows)} parameters {title}, {names[0]} first",
                cause,
                parameters=tuple(names),
                evidence=(Datum("parameters without a gradient", len(names), "measured", expected=0),),
                prescription=Prescription(fix),
            )


def _zero(subject: Subject, rows: list[ParameterRow]) -> Iterator[Finding]:
    """A note where a zero that learns itself was shown to be all that stands between them and the loss, unless that
    zero is the gain of a norm in the way of the signal: no scheme starts one at zero but at the end of a branch."""
    dead = [row for row in rows if row.grad_second_moment == 0 and not _is_bias(row.name)]
    dead = [row for row in dead if subject.gradient_ends[0].get(row.name) != ALIVE]
    if not dead:
        return
    names = [row.name for row in dead]
    waiting, cause = _behind_zeros(subject, names)
    matrices = [name for name in names if len(subject.draws[name].shape) > 1] if names else []
    shown = matrices or names
    learns = bool(waiting) and not set(waiting) <= set(names)
    gains = [name for name in waiting if is_norm_gain(subject.draws[name]) and name not in subject.branch_ends]
    why, edits, fix = _why(subject, shown)
    if gains:
        inits = {name: Init("constant", value=1.0) for name in gains}
        edits = (edit(f"start the gains {listed(gains)} at 1", inits, f"The gain {listed(gains)} is zero."), *edits)
    yield say(
        "problem" if not learns else "warning" if gains else "note",
        f"{len(names)} parameters have a gradient of exactly zero, {shown[0]} first",
        cause if learns else f"What they make never reaches the loss. {why} {cause}".strip(),
        parameters=tuple(names),
        evidence=(Datum("parameters with a gradient of zero", len(names), "measured", expected=0),),
        prescription=None if learns and not gains else Prescription(fix or "find the zero between them and the loss"),
        edits=edits,
    )


def _is_bias(name: str) -> bool:
    return "bias" in name.rpartition(".")[2]


def _behind_zeros(subject: Subject, dead: list[str]) -> tuple[list[str], str]:
    """The zeros that were shown to stand before the dead, by trying them at other values."""
    if subject.evaluation is None:
        return [], ""
    finding = say("note", "", "", parameters=tuple(dead))
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
