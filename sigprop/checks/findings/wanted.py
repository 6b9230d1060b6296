"""Weights that are not what the model's class, or a given plan, initializes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.draws import Draw
from sigprop.checks.edits import edit, listed
from sigprop.checks.registry import check, say
from sigprop.checks.statistics import known_factor, sigmas, spelt
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results import Init
from sigprop.results.report import Datum, Finding, Prescription


@check("not_its_law", "draw", "a parameter is not initialized as its model class does it")
def not_its_law(subject: Subject) -> Iterator[Finding]:
    """The class is built again without weights and the law of every parameter recorded; a sample must fit it."""
    laws = subject.class_laws
    if laws is None or subject.trained or subject.draws.recorded:
        return
    pairs = [(row, laws[row.name]) for row in subject.draws if row.name in laws and row.shape == laws[row.name].shape]
    bad = [(row, law) for row, law in pairs if _differs(row, law, len(pairs))]
    if not bad:
        return
    inits = {item.name: _redrawn(law) for item, law in bad}
    better = _better_than_class(subject, inits)
    row, law = max(bad, key=lambda item: _distance(*item))
    ratio = row.std / law.std if law.std and row.std else math.nan
    named = known_factor(ratio, subject.layers, row.fan_in, row.fan_out) if math.isfinite(ratio) else ""
    told = f"std {row.std:.3g}, mean {row.mean:.3g}"
    told += f" ({spelt(ratio, named)} the class's)" if math.isfinite(ratio) else ""
    yield say(
        "note" if better else "problem" if _distance(row, law) > math.log(2.0) else "warning",
        f"{row.name} has {told}; {subject.model_name} initializes it with std {law.std:.3g}, mean {law.mean:.3g}",
        f"With the values of the class there would be {better}: what stands here is better."
        if better
        else "The weights are not what this class initializes: a wrapper initialized them again, a load left them out, "
        "or the initialization did not run.",
        parameters=tuple(item.name for item, _ in bad),
        evidence=(
            Datum(f"std of {row.name}", row.std, "weights", row.std * row.log_std_error, law.std),
            Datum(f"mean of {row.name}", row.mean, "weights", expected=law.mean),
        ),
        prescription=None
        if better
        else Prescription("run the class's own initialization (`model.init_weights()`), or apply a plan"),
        edits=() if better else (edit(f"initialize {listed(list(inits))} as the class does", inits),),
    )


def _differs(row: Draw, law: Draw, tests: int) -> bool:
    if row.non_finite or not math.isfinite(law.std) or not law.independent:
        return False
    if law.std == 0 or row.std == 0:
        same = abs(row.mean - law.mean) <= 1e-6 * max(abs(law.mean), 1.0) + 0.01 * max(row.std, law.std)
        return law.total > 1 and ((law.std == 0) != (row.std == 0) or not same)
    if row.total < limit("fewest_entries"):
        return False
    wide = _distance(row, law)
    return wide > math.log(limit("draw_factor")) and wide > 2.0 * sigmas(tests) * row.log_std_error


def _distance(row: Draw, law: Draw) -> float:
    return abs(math.log(row.std / law.std)) if row.std and law.std else math.inf


def _better_than_class(subject: Subject, inits: dict[str, Init]) -> str:
    """What the values of the class would be found guilty of and these are not; empty where they are no better."""
    twin = subject.edited(inits) if subject.evaluation is not None and subject.profile is not None else None
    if twin is None:
        return ""
    own, theirs = ({item.name for item in each.signals if item.severity != "note"} for each in (subject, twin))
    return ", ".join(sorted(theirs - own)) if own < theirs else ""


def _redrawn(law: Draw) -> Init:
    if not law.std:
        return Init("constant", value=law.mean)
    return Init("uniform" if law.law == "uniform" else "normal", std=law.std)


@check("plan_not_applied", "draw", "the weights are not initialized as the given plan says")
def plan_not_applied(subject: Subject) -> Iterator[Finding]:
    """Each drawn row of the plan against the sample: std within its standard error, constants exactly."""
    if subject.plan is None:
        return
    rows = {row.name: row.init for row in subject.plan.parameters}
    pairs = [(row, rows[row.name]) for row in subject.draws if row.name in rows]
    bad = [(row, init) for row, init in pairs if _off_plan(row, init, len(pairs))]
    if bad:
        worst, init = max(bad, key=lambda item: abs(math.log((item[0].std or 1e-9) / (item[1].std or 1e-9))))
        yield say(
            "problem",
            f"{worst.name} does not carry the plan: std {worst.std:.3g} where it says {init}",
            "The plan was not applied to this model, or something initialized the weights again after it.",
            parameters=tuple(row.name for row, _ in bad),
            evidence=(
                Datum(f"std of {worst.name}", worst.std, "weights", worst.std * worst.log_std_error, init.std),
                Datum("parameters that do not fit", len(bad), "weights", expected=0),
            ),
            prescription=Prescription("plan.apply_(model)"),
        )


def _off_plan(row: Draw, init: Init, tests: int) -> bool:
    if init.kind in ("keep", "blocks"):
        return False
    if init.kind == "constant" or init.std == 0:
        value = init.value if init.kind == "constant" else 0.0
        return row.std != 0 or abs(row.mean - value) > 1e-6 * max(abs(value), 1.0)
    if not row.std:
        return True
    distance = abs(math.log(row.std / init.std))
    return distance > 0.05 and distance > sigmas(tests) * row.log_std_error * math.sqrt(2.0)
