"""What error a predicted number states.

A number that is better than `assumed` comes with a stated error, relative to it: in 99 of 100 cases the average over
initializations is no further away. What measurement says of that: docs/evidence/calibration.md.

| status | stated error |
|---|---|
| `exact` .. `fitted`, by theory | that of the status, `BY_STATUS`, and what depth over width adds |
| `verified` | how far the random initializations are from it, and what their noise leaves open |
| `simulated`, `disputed` | what the noise of the random initializations leaves open (`verification.verdict`) |
| `assumed` | none |
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Protocol

BY_STATUS = {"exact": 0.1, "asymptotic": 0.1, "quadrature": 0.1, "sampled": 0.15, "fitted": 0.15}
COLUMNS = ("variance", "grad_variance", "grad_second_moment")
"""Those whose errors are relative; means and correlations state none."""
UNDERFLOW = 1e-70
"""Mean squares below this are of numbers that single precision holds not at all or with few digits."""
NO_NUMBER = "theory has no number here"
VANISHED = "smaller than single precision holds: a real model shows zeros"


MOST = 1.0
"""A number that may be off by as much as itself is a guess."""


class Known(Protocol):
    """How a number of theory is known: `sigprop.theory.Evidence`."""

    @property
    def status(self) -> Any: ...

    @property
    def reason(self) -> str: ...

    @property
    def doubt(self) -> float: ...


def tell(found: Iterable[tuple[Any, Known, str | None]]) -> None:
    """Let rows say how their numbers are known, and the error that a column of each states, if it has one."""
    for row, known, column in found:
        row.status, row.reason = known.status.name.lower(), known.reason
        base = BY_STATUS.get(row.status)
        if column is not None and base is not None and base + known.doubt < MOST:
            row.stated_errors[column] = base + known.doubt


def stated_by_theory(**known: Known) -> dict[str, float]:
    """For each column what its status states, and what is left open of depth over width; nothing for a guess."""
    found = {column: (BY_STATUS.get(str(item.status)), item.doubt) for column, item in known.items()}
    return {column: base + doubt for column, (base, doubt) in found.items() if base is not None and base + doubt < MOST}


def mark_vanished(rows: Iterable[Any]) -> None:
    """Numbers that a real model cannot show are guesses, and so are rows without any number."""
    for row in rows:
        missing = [column for column in stated_columns(row) if not math.isfinite(getattr(row, column))]
        for column in missing:
            row.stated_errors.pop(column, None)
        if len(missing) == len(stated_columns(row)):
            row.status, row.reason = "assumed", row.reason or NO_NUMBER
        gone = [column for column in stated_columns(row) if 0.0 < getattr(row, column) < UNDERFLOW]
        for column in gone:
            row.stated_errors.pop(column, None)
        if gone:
            row.status, row.reason = "assumed", VANISHED


def stated_columns(row: Any) -> list[str]:
    """Columns of a row that may state an error."""
    return [column for column in type(row).COLUMNS if column in COLUMNS]
