"""From findings to one plan: candidates are made, each predicted, and the one that cures most is taken.

Repairs of single parameters come first, since they leave the rest as its author drew it; then recipes that set the
whole model right. What is told of a plan was predicted under it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from sigprop.checks.gauges import GAUGES, Gauge
from sigprop.checks.subject import Subject
from sigprop.errors import SigpropError
from sigprop.plans.recipes import plan as plan_recipe
from sigprop.results import Init, ParameterPlan, Plan, Profile
from sigprop.results.report import Finding, Prescription

Options = dict[str, Any]
RESIDUAL: tuple[tuple[str, Options], ...] = (
    ("unit", {}),
    ("unit", {"k": 0.5}),
    ("depth_scaling", {"skip": "one", "k": 1.0}),
    ("fixup", {}),
)
CHAIN: tuple[tuple[str, Options], ...] = (("kaiming", {}), ("lecun", {}))


@dataclass(frozen=True)
class Cure:
    """A plan, how one writes it, the profile that it was predicted to give, and the findings with it filled in."""

    plan: Plan
    how: str
    profile: Profile | None
    findings: list[Finding]


def prescribe(subject: Subject, findings: list[Finding]) -> Cure | None:
    """The plan that cures most of what was found; None where nothing that was found can be cured by a plan."""
    ill = [item for item in findings if item.name in GAUGES and item.severity != "note"]
    repairs = {name: init for item in findings for name, init in item.repairs.items() if item.severity != "note"}
    if not ill and not repairs:
        return None
    best: tuple[float, str, Plan, Profile] | None = None
    for how, make in _candidates(subject, repairs, bool(ill)):
        try:
            plan = make()
            assert subject.evaluation is not None
            profile = subject.evaluation.predicted(plan)
        except SigpropError as error:
            subject.notes.append(f"{how}: {str(error).splitlines()[0]}")
            continue
        left = _left(subject, profile, ill)
        if best is None or left < best[0]:
            best = (left, how, plan, profile)
        if left == 0:
            break
    if best is None:
        return _unpredicted(subject, repairs, findings)
    _, how, plan, profile = best
    return Cure(plan, how, profile, [_told(subject, item, how, profile) for item in findings])


def _candidates(subject: Subject, repairs: dict[str, Init], ill: bool) -> Iterator[tuple[str, Callable[[], Plan]]]:
    if repairs:
        yield "repair of single parameters", lambda: repair_plan(subject, repairs)
    if not ill:
        return
    residual = subject.structure is not None and bool(subject.structure.junctions)
    for name, options in RESIDUAL if residual else CHAIN:
        spelt = "".join(f", {key}={value!r}" for key, value in options.items())
        how = f'sp.plan(model, "{name}"{spelt})'
        yield (
            how,
            lambda name=name, options=options: plan_recipe(
                subject.model, name, batch=subject.batch, structure=subject.structure, **options
            ),
        )


def repair_plan(subject: Subject, repairs: dict[str, Init]) -> Plan:
    """Everything kept as it is but the parameters that are repaired."""
    rows = []
    for row in subject.draws:
        init = repairs.get(row.name, Init("keep"))
        rows.append(ParameterPlan(row.name, row.shape, init, why="repair" if row.name in repairs else "as it is"))
    return Plan(rows, meta={"recipe": "repair"})


def _unpredicted(subject: Subject, repairs: dict[str, Init], findings: list[Finding]) -> Cure | None:
    return Cure(repair_plan(subject, repairs), "repair of single parameters", None, findings) if repairs else None


def _left(subject: Subject, profile: Profile, ill: list[Finding]) -> float:
    """How many gauges of what was found, or of anything else, are still out of range; and by how much."""
    named = {item.name for item in ill}
    total = 0.0
    for name, gauge in GAUGES.items():
        value = gauge.read(subject, profile)
        if name in named and not math.isfinite(value):
            total += 0.5
        elif not gauge.healthy(value):
            total += 1.0 + 0.01 * _excess(gauge, value) + (1.0 if name not in named else 0.0)
    return total


def _excess(gauge: Gauge, value: float) -> float:
    bound = gauge.high if value > gauge.high else gauge.low
    return abs(math.log(abs(value / bound))) if value and bound else 1.0


def _told(subject: Subject, finding: Finding, how: str, profile: Profile) -> Finding:
    if finding.repairs and (finding.prescription is None or not finding.prescription.evaluated):
        return _repaired(subject, finding)
    gauge = GAUGES.get(finding.name)
    if gauge is None or finding.severity == "note" or subject.profile is None:
        return finding
    before, after = gauge.read(subject, subject.profile), gauge.read(subject, profile)
    if not math.isfinite(after):
        return finding
    cured = gauge.healthy(after)
    text = f"apply {how}" if cured else f"{how} lowers it but does not cure it"
    if not cured and _excess(gauge, after) >= _excess(gauge, before):
        text = f"no plan that was tried cures it; {how} was nearest"
    return replace(finding, prescription=Prescription(text, gauge.quantity, before, after, "predicted"))


def _repaired(subject: Subject, finding: Finding) -> Finding:
    """What a repair does to the first parameter that it mends."""
    name, init = next(iter(finding.repairs.items()))
    before = subject.draws[name].std
    after = before * init.value if init.kind == "keep" else 0.0 if init.kind == "constant" else init.std
    text = finding.prescription.text if finding.prescription is not None else "draw it again"
    return replace(finding, prescription=Prescription(text, f"std of {name}", before, after, "weights"))
