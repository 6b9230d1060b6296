"""What error a predicted number states.

A number that is better than `assumed` comes with a stated error, relative to it: in 99 of 100 cases the average over
initializations is no further away. What measurement says of that: docs/evidence/calibration.md.

| status | stated error |
|---|---|
| `exact`, `asymptotic`, `quadrature`, `sampled`, `fitted`, by theory | that of the status: `BY_STATUS` |
| `verified` | how far the drawn initializations are from it, and what their noise leaves open |
| `sampled`, `disputed`, drawn | what the noise of the drawn initializations leaves open (`simulate.verdict`) |
| `assumed` | none |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

BY_STATUS = {"exact": 0.1, "asymptotic": 0.1, "quadrature": 0.1, "sampled": 0.15, "fitted": 0.15}
COLUMNS = ("variance", "grad_variance", "grad_second_moment")
"""Those whose errors are relative; means and correlations state none."""
UNDERFLOW = 1e-70
"""Mean squares below this are of numbers that single precision holds not at all or with few digits."""
VANISHED = "smaller than single precision holds: a real model shows zeros"


def stated_by_theory(**statuses: str) -> dict[str, float]:
    """For each column what its status states; nothing for a guess."""
    return {column: BY_STATUS[status] for column, status in statuses.items() if status in BY_STATUS}


def mark_vanished(rows: Iterable[Any]) -> None:
    """Numbers that a real model cannot show are guesses."""
    for row in rows:
        gone = [column for column in stated_columns(row) if 0.0 < getattr(row, column) < UNDERFLOW]
        for column in gone:
            row.stated_errors.pop(column, None)
        if gone:
            row.status, row.reason = "assumed", VANISHED


def stated_columns(row: Any) -> list[str]:
    """Columns of a row that may state an error."""
    return [column for column in type(row).COLUMNS if column in COLUMNS]
