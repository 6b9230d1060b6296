"""How far the numbers of a given module could be off because its laws were read off one draw of its weights.

Initializations are compared with twins that have the same random numbers and distributions perturbed within what the
weights tell (`distributions/redraw.py`). The largest difference of a row is its error, beside the standard error of the
draws. Where it is more than a fifth the row is `assumed`. A function that builds the model has no such error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sigprop.results import ParameterRow, Profile, SiteRow
from sigprop.results.stated_errors import COLUMNS
from sigprop.verification.simulation import Simulation
from sigprop.verification.spread import mark_scattered

TWINS = 6
TOO_MUCH = 0.2
NEGLIGIBLE = 1e-3
STATED = 2.6
"""Standard errors that a stated error is."""
WHY = "one initialization tells it to {:.0%}: pass the function that builds the model"
Row = SiteRow | ParameterRow


def with_law_errors(profile: Profile, simulation: Simulation) -> Profile:
    """The profile with the errors of its laws; what they and the draws leave open too widely is `assumed`."""
    twins = simulation.perturbed(TWINS)
    if twins:
        _widen_by(twins, profile, simulation)
    mark_scattered((*profile.sites, *profile.parameters))
    return profile


def _widen_by(twins: Sequence[Profile], profile: Profile, simulation: Simulation) -> None:
    drawn = [simulation.profiles[number if simulation.random else 0] for number in range(1, len(twins) + 1)]
    _widen(profile.sites, [item.sites for item in drawn], [item.sites for item in twins])
    _widen(profile.parameters, [item.parameters for item in drawn], [item.parameters for item in twins])


def _widen(rows: Sequence[Row], drawn: Sequence[Sequence[Row]], twins: Sequence[Sequence[Row]]) -> None:
    pairs: dict[str, list[tuple[Row, Row]]] = {}
    for before, after in zip(drawn, twins, strict=True):
        named = {row.name: row for row in after}
        for row in before:
            if row.name in named:
                pairs.setdefault(row.name, []).append((row, named[row.name]))
    for row in rows:
        found = pairs.get(row.name, [])
        doubts = {column: _difference(found, column) for column in COLUMNS if hasattr(row, column)}
        for column, doubt in doubts.items():
            if doubt > NEGLIGIBLE:
                row.errors[column] = math.hypot(row.errors.get(column, 0.0), doubt * abs(getattr(row, column)))
            if column in row.stated_errors:
                row.stated_errors[column] += STATED * doubt
        worst = max(doubts.values(), default=0.0)
        if worst > TOO_MUCH:
            row.status, row.reason = "assumed", "; ".join(filter(None, (row.reason, WHY.format(worst))))
            row.stated_errors.clear()


def _difference(pairs: Sequence[tuple[Row, Row]], column: str) -> float:
    """The largest relative difference of a column; of numbers that are zero on both sides, none."""
    found = 0.0
    for before, after in pairs:
        one, other = getattr(before, column), getattr(after, column)
        if math.isfinite(one) and math.isfinite(other) and max(one, other) > 0.0:
            found = max(found, abs(other - one) / max(min(one, other), 1e-3 * max(one, other)))
    return found
