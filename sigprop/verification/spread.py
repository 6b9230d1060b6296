"""Standard errors of means over few draws that do not promise too much.

Six draws may lie close together by chance, and the draws of a deep network are skewed: a mean of few has then a tail
that they do not show. So an error is at least what the logarithms of the draws say of a lognormal mean, it is moderated
by the errors of the other rows of its column, and it is widened as Student's t is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from scipy.special import stdtrit

from sigprop.measurement.measurement import deviation
from sigprop.results import ParameterRow, SiteRow
from sigprop.results.stated_errors import COLUMNS

PRIOR = 4.0
"""Degrees of freedom that the other rows of a column count for."""
TOO_MUCH = 1.0 / 3.0
SCATTERED = "initializations scatter too much to tell {}: ± {:.0%}"
Row = SiteRow | ParameterRow


def standard_error(draws: Sequence[float]) -> float:
    """Of the mean; for positive draws at least that of a lognormal mean with the spread of their logarithms."""
    count = len(draws)
    if count < 2:
        return 0.0
    plain = deviation(draws) / math.sqrt(count)
    if min(draws) <= 0.0:
        return plain
    return max(plain, statistics.fmean(draws) * error_of_logarithm(draws))


def error_of_logarithm(draws: Sequence[float]) -> float:
    """Standard error of the logarithm of a lognormal's mean."""
    spread, count = deviation(list(map(math.log, draws))) ** 2, len(draws)
    return math.sqrt(spread / count + spread**2 / (2.0 * (count - 1)))


def widen(rows: Sequence[Row], tables: Sequence[Sequence[Row]]) -> None:
    """Write honest errors into rows that hold the means of the same rows of `tables`, one for each draw."""
    count = len(tables)
    if count < 2:
        return
    named: dict[str, list[Any]] = {}
    for table in tables:
        for row in table:
            named.setdefault(row.name, []).append(row)
    widening = float(stdtrit(count - 1 + PRIOR, 0.975)) / 1.96
    for column in COLUMNS:
        found = [row for row in rows if row.errors.get(column) and getattr(row, column, 0.0) > 0.0]
        own = {row.name: _relative(row, column, named[row.name]) for row in found}
        usual = statistics.median(own.values()) if own else 0.0
        for row in found:
            moderated = math.sqrt(((count - 1) * own[row.name] ** 2 + PRIOR * usual**2) / (count - 1 + PRIOR))
            row.errors[column] = max(own[row.name], moderated) * widening * getattr(row, column)


def mark_scattered(rows: Sequence[Row]) -> None:
    """Rows that draws alone tell, and tell to no better than a third, are `assumed`: a BatchNorm over four numbers has
    gradients of which a few draws hold the mean."""
    for row in rows:
        if row.status not in ("simulated", "disputed"):
            continue
        known = {column: abs(getattr(row, column, 0.0)) for column in COLUMNS if row.errors.get(column)}
        doubts = {column: row.errors[column] / value for column, value in known.items() if value > 0.0}
        worst = max(doubts, key=lambda column: doubts[column], default=None)
        if worst is not None and doubts[worst] > TOO_MUCH:
            said = SCATTERED.format(worst, doubts[worst])
            row.status, row.reason = "assumed", "; ".join(filter(None, (row.reason, said)))
            row.stated_errors.clear()


def _relative(row: Row, column: str, drawn: Sequence[Any]) -> float:
    draws = [getattr(item, column) for item in drawn]
    draws = [value for value in draws if math.isfinite(value)]
    return max(standard_error(draws), row.errors[column]) / getattr(row, column)
