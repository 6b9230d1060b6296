"""A predicted profile judged row by row by the real model at fresh initializations.

Rows that agree are `verified`, with the standard error of the draws that say so. Where a number differs the row is
`disputed` and shows the simulated number with its standard error; what theory said stays beside it in `verification`.
Where too few draws leave a doubt the row is `simulated`: it shows that number, too. So is all that the draws cannot
decide in a model of which theory was wrong somewhere; elsewhere it keeps its status.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sigprop.results import ParameterRow, Profile, SiteRow
from sigprop.results.stated_errors import stated_columns
from sigprop.verification.law_errors import with_law_errors
from sigprop.verification.simulation import Simulation
from sigprop.verification.verdict import Judgement, Verdict, judged

FIRST, LEAST = 6, 3
STRETCH = 3.0
"""Times the operations allowed that the least number of initializations may cost."""
NEGLIGIBLE = 1e-10
"""Of the largest number in a column: rounding noise, where theory says as good as zero."""
FEWEST = 256
"""Entries whose sample deviation is that of their law, about."""
Row = SiteRow | ParameterRow
CORRELATIONS = ("token_correlation", "grad_token_correlation")


def verified(predicted: Profile, simulation: Simulation, most: int, operations: float = math.inf) -> Profile:
    """The profile with its rows judged by at most `most` initializations and, beyond the first, `operations`."""
    simulation.extend(1)
    affordable = 1.0 + operations / max(simulation.operations, 1)
    if affordable < LEAST and LEAST * simulation.operations <= STRETCH * operations:
        affordable = LEAST
    most = int(min(most, affordable)) if simulation.random else 1
    if most < LEAST and simulation.random:
        note = f"one pass takes {simulation.operations:.1e} operations: not verified"
        return Profile(predicted.sites, predicted.parameters, predicted.meta | {"verification": note})
    count = min(FIRST, most)
    while True:
        simulation.extend(count)
        judge = _Judge(predicted, simulation)
        if count >= most or not judge.unclear:
            return with_law_errors(judge.profile(), simulation)
        count = min(2 * count, most)


class _Judge:
    """All verdicts on one profile with the draws there are."""

    def __init__(self, predicted: Profile, simulation: Simulation):
        self._predicted, self._simulation = predicted, simulation
        drawn = simulation.profiles
        self._summary = simulation.summary()
        self._sites = self._verdicts(predicted.sites, [profile.sites for profile in drawn])
        self._parameters = self._verdicts(predicted.parameters, [profile.parameters for profile in drawn])
        found = [verdict for row in (*self._sites.values(), *self._parameters.values()) for verdict in row.values()]
        self.count = {kind.value: sum(item.judgement is kind for item in found) for kind in Judgement}
        self.unclear = self.count["unclear"] > 0

    def _verdicts(self, rows: Sequence[Row], tables: Sequence[Sequence[Row]]) -> dict[str, dict[str, Verdict]]:
        named: dict[str, list[Row]] = {}
        for table in tables:
            for row in table:
                named.setdefault(row.name, []).append(row)
        floors = _floors(tables)
        return {
            row.name: {
                column: verdict
                for column in type(row).COLUMNS
                if (verdict := _verdict(row, named.get(row.name, ()), column, len(tables), floors)) is not None
            }
            for row in rows
        }

    def profile(self) -> Profile:
        trusted = self.count["differs"] == 0
        sites = _merged(self._predicted.sites, self._summary.sites, self._sites, trusted)
        parameters = _merged(self._predicted.parameters, self._summary.parameters, self._parameters, trusted)
        note = {"draws": len(self._simulation.profiles), "way": self._simulation.way, **self.count}
        return Profile(sites, parameters, self._predicted.meta | {"verification": note})


def _floors(tables: Sequence[Sequence[Row]]) -> dict[str, float]:
    """What may be rounding noise beside the largest number of a column: a mask of the smallest number there is, or a
    gradient that no layer scale has made small, makes it large."""
    found: dict[str, float] = {}
    for column in ("variance", "grad_variance", "grad_second_moment"):
        values = [getattr(row, column, math.nan) for table in tables for row in table]
        finite = [value for value in values if math.isfinite(value)]
        found[column] = NEGLIGIBLE * max(finite, default=0.0)
    return found


def _verdict(row: Row, drawn: Sequence[Row], column: str, count: int, floors: dict[str, float]) -> Verdict | None:
    value = getattr(row, column)
    draws = [getattr(item, column) for item in drawn]
    draws = [number for number in draws if math.isfinite(number)]
    if math.isnan(value) or not drawn or (column == "init_std" and _entries(row) < FEWEST):
        return None
    if len(draws) < max(1, count // 2):
        gone = column in ("grad_variance", "grad_second_moment") and not draws and value != 0.0
        return Verdict(Judgement.DIFFERS, value, math.nan, 0.0, math.inf, 0.0) if gone else None
    scale = 0.5 if column in CORRELATIONS else None
    if column == "mean":
        level = [item.variance + item.mean**2 for item in drawn if isinstance(item, SiteRow)]
        scale = math.sqrt(max(sum(level) / max(len(level), 1), 0.0))
    return judged(value, draws, scale, floors.get(column, 0.0))


def _entries(row: Row) -> int:
    return math.prod(row.shape) if isinstance(row, ParameterRow) else 0


def _merged(
    predicted: Sequence[Any], simulated: Sequence[Any], verdicts: dict[str, dict[str, Verdict]], trusted: bool
) -> list[Any]:
    """Rows in the order of the run; those that only theory has follow the row before them."""
    theory = {row.name: row for row in predicted}
    drawn = {row.name: row for row in simulated}
    order = [row.name for row in simulated]
    place = -1
    for row in predicted:
        if row.name in drawn:
            place = order.index(row.name)
        else:
            place += 1
            order.insert(place, row.name)
    made = []
    for name in order:
        if name not in theory:
            drawn[name].reason = "not followed by theory: simulated"
            made.append(drawn[name])
        else:
            made.append(_judged_row(theory[name], drawn.get(name), verdicts[name], trusted))
    return made


def _judged_row(row: Row, drawn: Row | None, verdicts: dict[str, Verdict], trusted: bool) -> Row:
    for column, verdict in verdicts.items():
        row.verification[column] = {
            "predicted": verdict.predicted,
            "simulated": verdict.simulated,
            "standard_error": verdict.standard_error,
            "z": verdict.z,
        }
    if drawn is None:
        return row
    _fill_gaps(row, drawn)
    wrong = [column for column, verdict in verdicts.items() if verdict.judgement is Judgement.DIFFERS]
    unclear = [column for column, verdict in verdicts.items() if verdict.judgement is Judgement.UNCLEAR]
    doubted = [column for column in unclear if verdicts[column].is_doubtful or not trusted]
    for column, verdict in verdicts.items():  # theory's number, too, is known no better than the draws tell
        row.errors[column] = max(drawn.errors.get(column, 0.0), verdict.standard_error)
    for column in (*wrong, *doubted):
        setattr(row, column, verdicts[column].simulated)
    _state(row, drawn, verdicts, wrong, doubted)
    if wrong or doubted:
        row.status, row.source = "disputed" if wrong else "simulated", "simulated"
        row.reason = "; ".join(_dispute(column, verdicts[column]) for column in (*wrong, *doubted))
    elif _has_numbers(row) and verdicts and all(item.judgement is Judgement.AGREES for item in verdicts.values()):
        row.source = "confirmed"
        row.status, row.reason = "verified", row.reason and f"by simulation; theory: {row.status}, {row.reason}"
    return row


def _state(row: Row, drawn: Row, verdicts: dict[str, Verdict], wrong: Sequence[str], doubted: Sequence[str]) -> None:
    """What the draws leave open, of their numbers and of those that agree with them.

    Of many numbers that theory has right some are doubted because the draws are off: what is shown instead reaches to
    theory's number, unless that was a guess.
    """
    for column in stated_columns(row):
        verdict = verdicts.get(column)
        if verdict is None and column in drawn.stated_errors:
            row.stated_errors.setdefault(column, drawn.stated_errors[column])
        elif verdict is not None and column in wrong:
            row.stated_errors[column] = verdict.left_open
        elif verdict is not None and column in doubted:
            reach = abs(verdict.difference) if column in row.stated_errors else 0.0
            row.stated_errors[column] = max(verdict.left_open, reach)
        elif verdict is not None and verdict.judgement is Judgement.AGREES:
            stated = min(verdict.stated_error, row.stated_errors.get(column, math.inf))
            if math.isfinite(stated):
                row.stated_errors[column] = stated


def _has_numbers(row: Row) -> bool:
    return any(math.isfinite(getattr(row, column)) for column in stated_columns(row))


def _fill_gaps(row: Row, drawn: Row) -> None:
    for column in type(row).COLUMNS:
        if math.isnan(getattr(row, column)) and math.isfinite(getattr(drawn, column)):
            setattr(row, column, getattr(drawn, column))
            row.errors[column] = drawn.errors.get(column, 0.0)


def _dispute(column: str, verdict: Verdict) -> str:
    if math.isnan(verdict.simulated):
        return f"{column}: theory {verdict.predicted:.4g}, none in the real model"
    return f"{column}: theory {verdict.predicted:.4g}, simulated {verdict.simulated:.4g} ± {verdict.standard_error:.2g}"
