"""The blocks of a profile: the rows that stand along a stream, so that like is compared with like."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sigprop.results.profile import SiteRow


def streams(rows: Iterable[SiteRow]) -> dict[str, list[SiteRow]]:
    """Rows whose name ends in the only number in it (`blocks.3`), by the list they stand in; no lists of one."""
    found: dict[str, list[SiteRow]] = {}
    for row in rows:
        *parents, last = row.name.split(".")
        if last.isdigit() and not any(part.isdigit() for part in parents):
            found.setdefault(".".join(parents), []).append(row)
    return {name: items for name, items in found.items() if len(items) > 1}


def growth(rows: list[SiteRow]) -> float:
    """Variance at the last row over that at the first."""
    return _ratio(rows[-1].variance, rows[0].variance)


def gradient_growth(rows: list[SiteRow]) -> float:
    """Gradient variance at the first row over that at the last."""
    return _ratio(rows[0].grad_variance, rows[-1].grad_variance)


def _ratio(value: float, reference: float) -> float:
    return value / reference if reference and math.isfinite(reference) else math.nan
