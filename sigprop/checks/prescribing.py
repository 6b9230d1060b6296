"""From findings to fixes that were tried.

For every finding changes of one tensor group are tried first, on a copy of the weights (predicted where there are
none), and all findings are made again: a change is a fix when its finding is gone, or its gauge much nearer to the
limit, and nothing else is found that was not there before. Only then it is printed, and named as the cause. Recipes for
the whole model come after. What was tried in vain is told as ruled out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from sigprop.checks.gauges import GAUGES, Gauge
from sigprop.checks.registry import JUDGED
from sigprop.checks.subject import Subject, repair_plan
from sigprop.checks.suspects import suspects
from sigprop.checks.thresholds import limit
from sigprop.errors import SigpropError
from sigprop.plans import Plan
from sigprop.plans.recipes import plan as plan_recipe
from sigprop.results import Edit, Init, Profile
from sigprop.results.report import Finding, Prescription

Options = dict[str, Any]
RESIDUAL: tuple[tuple[str, Options], ...] = (
    ("unit", {}),
    ("unit", {"k": 0.5}),
    ("depth_scaling", {"skip": "one", "k": 1.0}),
    ("fixup", {}),
)
CHAIN: tuple[tuple[str, Options], ...] = (("kaiming", {}), ("lecun", {}))
NOTHING = (
    "no change and no recipe that was tried removes it; not tried: a norm in front of each layer, skips around them, "
    "and another scale of what multiplies the signal in `forward`"
)
HELPS = ", which helps and leaves it beyond the limit"
SWEEP, KEEP_RATE = "Sweep the learning rate again.", "The learning rate stays."


@dataclass(frozen=True)
class Fix:
    """A plan, the profile under it, and the findings with what was tried filled in."""

    plan: Plan | None
    profile: Profile | None
    findings: list[Finding]


def prescribe(subject: Subject, findings: list[Finding]) -> Fix:
    """Local changes for each finding, else one plan for those that are left."""
    before = _names(findings)
    told: dict[int, Finding] = {}
    taken: dict[str, Init] = {}
    left, accepted = [], []
    for place, finding in enumerate(findings):
        if finding.severity == "note":
            continue
        told[place], change, removed = _local(subject, finding, findings, accepted)
        accepted += [change] if removed and change is not None and change not in accepted else []
        taken |= {} if change is None else change.inits
        left += [place] if finding.name in GAUGES and not removed else []
    plan, profile = _together(subject, taken, before)
    found = _recipe(subject, [findings[place] for place in left], before) if left else None
    if found is not None:
        how, plan, profile = found
        told |= {place: _told(subject, told[place], how, profile) for place in left}
    for place in left:
        if told[place].prescription is None:
            told[place] = replace(told[place], prescription=Prescription(NOTHING))
    return Fix(plan, profile, [told.get(place, item) for place, item in enumerate(findings)])


def _local(
    subject: Subject, finding: Finding, findings: list[Finding], accepted: list[Edit]
) -> tuple[Finding, Edit | None, bool]:
    """The finding with the change that removes it, or brings it nearer to its limit; else with what was ruled out."""
    ruled_out, best, before = [], None, _names(findings)
    tried = [*accepted, *suspects(subject, finding, findings)] if finding.group in JUDGED else finding.edits
    for change in tried[: int(limit("most_trials"))]:
        twin = subject.edited(change.inits, change.attributes)
        if twin is None:
            continue
        after = twin.signals
        if finding.group not in JUDGED:
            if change.inits and not _names(after) - before:
                return _arithmetic(subject, finding, change), change, True
        elif not _names(after) - before:
            if not any(item.name == finding.name and item.severity != "note" for item in after):
                return _fixed(subject, finding, change, twin), change, True
            if best is None and _nearer(subject, twin, finding):
                best = (change, twin)
        ruled_out.append(change.what)
    if best is not None:
        return _fixed(subject, finding, *best), best[0], False
    if ruled_out and finding.group in JUDGED:
        told = "; ".join(ruled_out)
        told = f"Ruled out, since it did not remove this, or brought another finding: {told}."
        return replace(finding, cause=f"{finding.cause} {told}"), None, False
    return finding, None, False


def _names(findings: list[Finding]) -> set[str]:
    return {item.name for item in findings if item.severity != "note"}


def _nearer(subject: Subject, twin: Subject, finding: Finding) -> bool:
    """Whether the gauge's excess over its limit has at least halved, in logarithms."""
    gauge = GAUGES.get(finding.name)
    if gauge is None or subject.profile is None or twin.profile is None:
        return False
    before, after = gauge.read(subject, subject.profile), gauge.read(twin, twin.profile)
    return math.isfinite(after) and _excess(gauge, after) < 0.5 * _excess(gauge, before)


def _fixed(subject: Subject, finding: Finding, change: Edit, twin: Subject) -> Finding:
    quantity, before, after = _numbers(subject, finding, twin)
    rate = SWEEP if any(_factor(subject, name, init) for name, init in change.inits.items()) else KEEP_RATE
    gauge = GAUGES.get(finding.name)
    rest = "" if gauge is None or gauge.healthy(after) else HELPS
    made = Prescription(change.what + rest, quantity, before, after, twin.source, change.code, rate)
    cause = f"{change.because} {finding.cause}" if change.because else finding.cause
    return replace(finding, cause=cause, prescription=made)


def _numbers(subject: Subject, finding: Finding, twin: Subject) -> tuple[str, float, float]:
    gauge = GAUGES.get(finding.name)
    if gauge is not None and subject.profile is not None and twin.profile is not None:
        before, after = gauge.read(subject, subject.profile), gauge.read(twin, twin.profile)
        if math.isfinite(before) and math.isfinite(after):
            return gauge.quantity, before, after
    first = finding.evidence[0]
    return first.what, first.value, math.nan


def _factor(subject: Subject, name: str, init: Init) -> bool:
    """Whether a change moves a matrix's scale by more than two, and with it what one step of a rate does to it."""
    row = subject.draws[name]
    if not row.is_matrix or not row.std or init.kind == "blocks":
        return False
    ratio = init.value if init.kind == "keep" else init.std / row.std
    return not 0.5 <= ratio <= 2.0


def _arithmetic(subject: Subject, finding: Finding, change: Edit) -> Finding:
    """A finding about the weights themselves: what the change does to the first parameter."""
    name, init = next(iter(change.inits.items()))
    before = subject.draws[name].std
    after = before * init.value if init.kind == "keep" else 0.0 if init.kind == "constant" else init.std
    made = Prescription(change.what, f"std of {name}", before, after, "weights", change.code, KEEP_RATE)
    return replace(finding, prescription=made)


def _together(subject: Subject, taken: dict[str, Init], before: set[str]) -> tuple[Plan | None, Profile | None]:
    """All local changes as one plan, where together they add no finding."""
    if not taken:
        return None, None
    twin = subject.edited(taken)
    if twin is not None and _names(twin.signals) - before:
        return None, None
    return repair_plan(subject.draws, taken), None if twin is None else twin.profile


def _recipe(subject: Subject, left: list[Finding], before: set[str]) -> tuple[str, Plan, Profile] | None:
    """The recipe that leaves least of what was found and adds nothing."""
    best: tuple[float, str, Plan, Profile] | None = None
    start = sum(_remaining(subject, subject.profile, item) for item in left)
    for how, make in _recipes(subject):
        try:
            plan = make()
        except SigpropError as error:
            subject.notes.append(f"{how}: {str(error).splitlines()[0]}")
            continue
        twin = subject.under(plan)
        if twin is None or twin.profile is None or _names(twin.signals) - before:
            continue
        rest = sum(_remaining(twin, twin.profile, item) for item in left)
        if rest < 0.5 * start and (best is None or rest < best[0]):
            best = (rest, how, plan, twin.profile)
        if rest == 0:
            break
    return None if best is None else best[1:]


def _recipes(subject: Subject) -> Iterator[tuple[str, Any]]:
    residual = subject.structure is not None and bool(subject.structure.junctions)
    for name, options in RESIDUAL if residual else CHAIN:
        spelt = "".join(f", {key}={value!r}" for key, value in options.items())
        yield (
            f'sp.plan(model, "{name}"{spelt})',
            lambda name=name, options=options: plan_recipe(
                subject.model, name, batch=subject.batch, structure=subject.structure, **options
            ),
        )


def _remaining(subject: Subject, profile: Profile | None, finding: Finding) -> float:
    gauge = GAUGES[finding.name]
    value = math.nan if profile is None else gauge.read(subject, profile)
    return 0.0 if not math.isfinite(value) or gauge.healthy(value) else 1.0 + _excess(gauge, value)


def _excess(gauge: Gauge, value: float) -> float:
    """How far a gauge is beyond its limit, in logarithms."""
    if not math.isfinite(value) or gauge.healthy(value):
        return 0.0
    bound = gauge.high if value > gauge.high else gauge.low
    return abs(math.log(abs(value / bound))) if value and bound > 0 else 1.0


def _told(subject: Subject, finding: Finding, how: str, profile: Profile) -> Finding:
    """What a recipe does to a finding that no local change removes."""
    gauge = GAUGES[finding.name]
    if subject.profile is None:
        return finding
    before, after = gauge.read(subject, subject.profile), gauge.read(subject, profile)
    if not _excess(gauge, after) < _excess(gauge, before) or (finding.prescription and not gauge.healthy(after)):
        return finding
    alone = finding.prescription
    text = f"apply {how}" if gauge.healthy(after) else f"{how} lowers it and leaves it beyond the limit"
    if alone is not None and math.isfinite(alone.after):
        text += f"; alone, to {alone.text.removesuffix(HELPS)} brings it to {alone.after:.3g}"
    made = Prescription(text, gauge.quantity, before, after, subject.source, f"{how}.apply_(model)", SWEEP)
    return replace(finding, prescription=made)
