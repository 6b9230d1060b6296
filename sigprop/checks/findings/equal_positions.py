"""Outputs that are equal at all positions."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding


@check("equal_positions", "tokens", "outputs that are equal at all positions")
def equal_positions(subject: Subject) -> Iterator[Finding]:
    """Variance of the output between positions over its mean square."""
    share = subject.observed.position_share
    if not math.isfinite(share) or share > limit("same_output") or not _tokens_differ(subject):
        return
    rows = [] if subject.profile is None else subject.profile.sites
    merged = [row for row in rows if row.token_correlation > 1.0 - limit("same_output") ** 0.5]
    yield Finding(
        "equal_positions",
        "tokens",
        "problem",
        "the outputs of all positions are equal"
        + (f": from {merged[0].name} on tokens have correlation 1" if merged else ""),
        "What tells positions apart is averaged away before the output. Attention without a skip around it does this "
        "within a few blocks (Dong et al. 2021); the loss can learn the frequencies of tokens and nothing else.",
        "Dong et al. 2021, 'Attention is not all you need'",
        sites=tuple(row.name for row in merged),
        depths=subject.depths_of([row.name for row in merged]),
        evidence=(Datum("variance of the output between positions, over its mean square", share, "measured"),),
    )


def _tokens_differ(subject: Subject) -> bool:
    """Whether the first tensor with positions told its tokens apart."""
    rows = [] if subject.profile is None else subject.profile.sites
    found = [row.token_correlation for row in rows if math.isfinite(row.token_correlation)]
    return bool(found) and min(found) < 1.0 - limit("same_output") ** 0.5
