"""Several networks instead of the average one.

A network with few attention heads has an attention of its own, and all that follows sees that one, not the average:
where the following functions are curved (gated units, the next softmax), the average over networks is not what the
average network does. Each network is followed by itself, with as many heads as it has, and the rows are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sigprop.results import ParameterRow, Profile, SiteRow

SITE = ("mean", "variance", "token_correlation", "grad_variance", "grad_token_correlation")
PARAMETER = ("grad_second_moment",)


def averaged(count: int, one: Callable[[int], Profile]) -> Profile:
    """The average over `count` networks; `one` predicts the network of a given number."""
    found = average([one(number) for number in range(count)])
    return Profile(found.sites, found.parameters, found.meta | {"networks": count})


def average(profiles: Sequence[Profile]) -> Profile:
    """Rows of one model, averaged by name."""
    sites: list[SiteRow] = _rows([item.sites for item in profiles], SITE)
    parameters: list[ParameterRow] = _rows([item.parameters for item in profiles], PARAMETER)
    return Profile(sites, parameters, profiles[0].meta)


def _rows(found: Sequence[Sequence[Any]], columns: Sequence[str]) -> list[Any]:
    """Rows of the first profile, each with the averages of the rows of its name."""
    named: dict[str, list[Any]] = {}
    for rows in found:
        for row in rows:
            named.setdefault(row.name, []).append(row)
    return [replace(row, **{name: _average(named[row.name], name) for name in columns}) for row in found[0]]


def _average(rows: Sequence[Any], column: str) -> float:
    values = [getattr(row, column) for row in rows if not math.isnan(getattr(row, column))]
    return sum(values) / len(values) if values else math.nan
