"""Rows of the blocks that `repeated_blocks` did not follow, between those of the followed ones.

Positive columns follow a power of the block's number, counted from one, between its two neighbours; means and
correlations a straight line in its logarithm. How far that is right the followed blocks tell: each is foretold by its
own neighbours, which are twice as far apart.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any, TypeVar

from sigprop.capture.repeated_blocks import RunOfBlocks
from sigprop.results import ParameterRow, Profile, SiteRow
from sigprop.results.stated_errors import COLUMNS as POSITIVE
from sigprop.results.stated_errors import stated_by_theory
from sigprop.sites import depths
from sigprop.theory import Evidence, Status

Row = TypeVar("Row", SiteRow, ParameterRow)
ENDS = (".", "@", "[")


def with_skipped_rows(profile: Profile, run: RunOfBlocks) -> Profile:
    """The profile with the rows of a run's skipped blocks, and a word on how far they are right."""
    sites, parameters = _Blocks(profile.sites, run), _Blocks(profile.parameters, run)
    filled: list[SiteRow] = []
    for row in profile.sites:
        number = sites.starting(row)
        if number is not None:
            filled += [made for skipped in run.skipped_before(number) for made in sites.between(skipped)]
        filled.append(row)
    made = {row.name: row for number in run.skipped for row in parameters.between(number)}
    known = {row.name: row for row in profile.parameters}
    made = {name: replace(row, init_std=known[name].init_std) for name, row in made.items()}
    rows = [made.get(row.name, row) for row in profile.parameters]
    return Profile(filled, rows, profile.meta | {"blocks": _told(run, sites.surprises() + parameters.surprises())})


def _told(run: RunOfBlocks, surprises: list[float]) -> str:
    name = run.alike.name or "the model"
    few = f"{len(run.numbers)} of the {len(run.alike.blocks)} repeated blocks of {name} followed"
    if len(surprises) < 2:
        return few
    median, most = statistics.median(surprises), statistics.quantiles(surprises, n=10)[-1]
    return f"{few}; their neighbours foretell them within {median:.1%} (median) and {most:.1%} (nine of ten)"


class _Blocks:
    """Rows of the followed blocks of a run, by number and name inside the block."""

    def __init__(self, rows: list[Any], run: RunOfBlocks):
        self._run = run
        self._rows: dict[int, dict[str, Any]] = {number: {} for number in run.numbers}
        self._places: dict[str, tuple[int, str]] = {}
        names = {run.alike.block_name(number): number for number in run.numbers}
        for row in rows:
            for end in (row.name.find(mark, len(run.alike.name) + 1) for mark in ENDS):
                number = names.get(row.name[:end] if end > 0 else row.name)
                if number is not None:
                    inside = row.name[len(run.alike.block_name(number)) :]
                    self._rows[number][inside] = row
                    self._places[row.name] = (number, inside)
                    break

    def starting(self, row: Any) -> int | None:
        """The number of the followed block whose first row this is."""
        number, inside = self._places.get(row.name, (None, ""))
        return number if number is not None and next(iter(self._rows[number])) == inside else None

    def between(self, number: int) -> list[Any]:
        """Rows of a block that was not followed."""
        below, above = self._run.neighbours(number)
        return [
            _between(
                row, self._rows[above][inside], f"{self._run.alike.block_name(number)}{inside}", below, number, above
            )
            for inside, row in self._rows[below].items()
            if inside in self._rows[above]
        ]

    def surprises(self) -> list[float]:
        """Of followed blocks with skipped ones beside them: relative errors of what their neighbours foretell."""
        found, numbers = [], self._run.numbers
        for below, number, above in zip(numbers, numbers[1:], numbers[2:], strict=False):
            if above - below == 2:
                continue
            for inside, row in self._rows[number].items():
                ends = [self._rows[at].get(inside) for at in (below, above)]
                if None in ends:
                    continue
                told = _between(*ends, row.name, below, number, above)  # type: ignore[arg-type]
                pairs = [(getattr(told, c), getattr(row, c)) for c in POSITIVE if c in type(row).COLUMNS]
                found += [abs(math.log(one / two)) for one, two in pairs if one > 0.0 and two > 0.0]
        return found


def _between(one: Row, other: Row, name: str, below: int, number: int, above: int) -> Row:
    part = math.log((number + 1) / (below + 1)) / math.log((above + 1) / (below + 1))
    columns = {
        column: _mean(getattr(one, column), getattr(other, column), part, column in POSITIVE)
        for column in type(one).COLUMNS
        if isinstance(getattr(one, column), float)
    }
    evidence = Evidence(Status.FITTED, f"between blocks {below} and {above}, which were followed")
    for row in (one, other):
        evidence = evidence.join(Evidence(Status[row.status.upper()], row.reason))
    status = str(evidence.status)
    made = replace(one, name=name, **columns, status=status, reason=evidence.reason)
    stated = stated_by_theory(**dict.fromkeys(one.stated_errors, evidence))
    made.stated_errors = {key: max(value, one.stated_errors[key]) for key, value in stated.items()}
    if isinstance(made, SiteRow) and isinstance(other, SiteRow):
        (made.depth,) = depths([name])
        made.extras = {key: _mean(value, other.extras[key], part, False) for key, value in made.extras.items()}
    return made


def _mean(one: float, other: float, part: float, positive: bool) -> float:
    if positive and one > 0.0 and other > 0.0:
        return one ** (1.0 - part) * other**part
    return (1.0 - part) * one + part * other
