"""Long sequences from short ones: what changes with the number of tokens, continued to the length asked for.

A batch of `T` tokens is predicted with its first `t` and its first `t / 2`. From these two each positive column follows
as a power of the number of tokens, exact for what a mean over tokens does to a gradient (`T^-2`) and close for what
attention over more and more keys does; means and correlations follow as `a + b / T`. Time and memory are those of `t`
tokens. Rows so made are `assumed`, and say from what: see docs/evidence/sizes.md for what this costs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from sigprop.results import ParameterRow, Profile, SiteRow

POWERS = ("variance", "grad_variance", "grad_second_moment")
SETTLING = ("mean", "token_correlation", "grad_token_correlation")
STEEPEST = 6.0


def continued(half: Profile, whole: Profile, tokens: int, length: int) -> Profile:
    """The profile of `tokens` tokens, with that of half as many, continued to `length`."""
    before = {row.name: row for row in half.sites}
    sites = [_row(before.get(row.name), row, tokens, length) for row in whole.sites]
    before = {row.name: row for row in half.parameters}
    parameters = [_row(before.get(row.name), row, tokens, length) for row in whole.parameters]
    note = f"{length} tokens, continued from {tokens // 2} and {tokens}"
    return Profile(sites, parameters, whole.meta | {"tokens": note})


def _row(half: Any, whole: SiteRow | ParameterRow, tokens: int, length: int) -> Any:
    if half is None:
        return whole
    found = {}
    for column in type(whole).COLUMNS:
        rule = _power if column in POWERS else _settled if column in SETTLING else None
        if rule is not None:
            found[column] = rule(getattr(half, column), getattr(whole, column), tokens, length)
    reason = f"continued from {tokens // 2} and {tokens} tokens to {length}"
    return replace(whole, status="assumed", reason=reason, stated_errors={}, **found)


def _power(half: float, whole: float, tokens: int, length: int) -> float:
    """`whole (length / tokens)^p` with the power that leads from half to whole."""
    if not (half > 0 and whole > 0):
        return whole
    power = math.log(whole / half) / math.log(tokens / (tokens // 2))
    return whole * (length / tokens) ** max(-STEEPEST, min(power, STEEPEST))


def _settled(half: float, whole: float, tokens: int, length: int) -> float:
    return whole + (whole - half) * (1.0 - tokens / length)
