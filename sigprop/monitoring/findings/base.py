"""What the rules share: the circumstances of a run, and how a finding is made of numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from sigprop.monitoring.history import History, Sample
from sigprop.results import Profile
from sigprop.results.report import Datum


@dataclass
class Circumstances:
    """What is known of a run beside its history; `told` keeps each finding from being made twice."""

    predicted: Profile | None = None
    norms: frozenset[str] = frozenset()
    fresh: bool = True
    told: set[str] = field(default_factory=set)


def seen(what: str, value: float, expected: float = math.nan) -> Datum:
    return Datum(what, value, "measured", expected=expected)


def last(history: History, count: int) -> list[Sample]:
    """The last samples, or none when there are fewer."""
    return history.samples[-count:] if len(history) >= count else []


def weights(sample: Sample) -> dict[str, dict[str, float]]:
    """Parameters that an optimizer moves at a rate above zero."""
    return {name: row for name, row in sample.parameters.items() if row.get("lr", 0.0) > 0.0}


def smooth(losses: Iterable[float], count: int = 5) -> list[float]:
    """Running medians, so that one odd batch says nothing."""
    values = list(losses)
    return [statistics.median(values[max(0, i - count + 1) : i + 1]) for i in range(len(values))]


def module_of(parameter: str) -> str:
    return parameter.rpartition(".")[0]
