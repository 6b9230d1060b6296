"""Findings register here: one function each, from a history to what it finds; and what these functions share."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from sigprop.monitoring.history import History, Sample
from sigprop.registry import Registry
from sigprop.results import Profile
from sigprop.results.report import Datum, Finding


@dataclass
class RunContext:
    """What is known of a run beside its history; `told` keeps each finding from being made twice."""

    predicted: Profile | None = None
    norms: frozenset[str] = frozenset()
    fresh: bool = True
    told: set[str] = field(default_factory=set)


Findings = Iterator[Finding]
Rule = Callable[[History, RunContext], Iterable[Finding]]
RULES: Registry[Rule] = Registry("finding of a run", __package__ or "")


def finding(name: str, group: str, unless: str = "") -> Callable[[Rule], Rule]:
    """Decorator: what this rule yields, without a name, is the finding of that name; a group it gives itself stays.

    Nothing is said once the finding `unless` was told, which explains it; those are looked at first.
    """

    def add(rule: Rule) -> Rule:
        def named(history: History, context: RunContext) -> Iterator[Finding]:
            if unless not in context.told:
                yield from (replace(item, name=name, group=item.group or group) for item in rule(history, context))

        named.explained = bool(unless)  # type: ignore[attr-defined]
        RULES.add(name, named)
        return rule

    return add


def findings_of(history: History, context: RunContext) -> list[Finding]:
    """What the rules say now and have not said before; causes come before what may follow from them."""
    found = []
    for rule in sorted(RULES.values(), key=lambda rule: rule.explained):  # type: ignore[attr-defined]
        for item in rule(history, context):
            if item.name not in context.told:
                context.told.add(item.name)
                found.append(item)
    return found


problem = partial(Finding, name="", group="", severity="problem")
warning = partial(Finding, name="", group="", severity="warning")


def seen(what: str, value: float, expected: float = math.nan) -> Datum:
    return Datum(what, value, "measured", expected=expected)


def last(history: History, count: int) -> list[Sample]:
    """The last samples, or none when there are fewer."""
    return history.samples[-count:] if len(history) >= count else []


def weights(sample: Sample) -> dict[str, dict[str, float]]:
    """Parameters that an optimizer moves at a rate above zero."""
    return {name: row for name, row in sample.parameters.items() if row.get("lr", 0.0) > 0.0}


def smooth(losses: Iterable[float]) -> list[float]:
    """Running medians of five, so that one odd batch says nothing."""
    values = list(losses)
    return [statistics.median(values[max(0, i - 4) : i + 1]) for i in range(len(values))]


def module_of(parameter: str) -> str:
    return parameter.rpartition(".")[0]
