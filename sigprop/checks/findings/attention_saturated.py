"""Attention scores too large: the softmax is near one-hot at the start."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.operations import MadeBy
from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results import SiteRow
from sigprop.results.report import Datum, Finding, Prescription


@check("attention_saturated", "tokens", "scores so large that attention is near one-hot")
def attention_saturated(subject: Subject) -> Iterator[Finding]:
    """Scores of variance s2 over n keys have an entropy of about ln(n) - s2 / 2 while s2 is below ln(n)."""
    rows = [row for row in subject.scores if math.isfinite(row.variance)]
    bad = [row for row in rows if row.variance > limit("scores_large") and _is_sharp(subject, row)]
    if bad:
        worst = max(bad, key=lambda row: row.variance)
        site, weight = worst.name.removesuffix(".scores"), worst.extras["largest_weight"]
        yield _finding(
            subject, "attention_saturated", [row.name for row in bad], f"attention scores of {site}", site,
            worst.variance, weight,
        )  # fmt: skip
    known = {row.name.removesuffix(".scores") for row in subject.scores}
    hard = {name: item for name, item in subject.observed.softmaxes.items()
            if name not in known and name != "(model)" and item.variance > limit("scores_large")
            and item.largest > limit("one_hot")}  # fmt: skip
    if hard:
        site = max(hard, key=lambda name: hard[name].variance)
        yield _finding(
            subject, "attention_saturated", list(hard),
            f"the logits of the softmax in {site}{_made_by(hard[site].source, site)}", site,
            hard[site].variance, hard[site].largest,
        )  # fmt: skip


def _made_by(source: MadeBy | None, site: str) -> str:
    return f", which {source.site} makes," if source is not None and source.site != site else ""


def _is_sharp(subject: Subject, row: SiteRow) -> bool:
    """Whether the weights show what the scores let expect: a ramp over positions (ALiBi) has a large variance and
    leaves weight to many keys."""
    by_position = subject.observed.fixed.get(row.name.removesuffix(".scores"), 0.0) > limit("fixed_scores")
    return row.extras["largest_weight"] > limit("attention_saturated" if by_position else "attention_sharp")


def _finding(
    subject: Subject, name: str, sites: list[str], what: str, site: str, variance: float, weight: float
) -> Finding:
    fixed = subject.observed.fixed.get(site, 0.0)
    constant = (
        f"{fixed:.0%} of the variance of these scores is the same for another input: a bias that is added to them "
        "(positions, a mask, ALiBi slopes) sets them, not what is read. " if fixed > limit("fixed_scores") else ""
    )  # fmt: skip
    return Finding(
        name,
        "tokens",
        "problem" if weight > limit("attention_saturated") else "warning",
        f"{what} have variance {variance:.3g}: the largest weight is {weight:.2f} on average",
        f"{constant}A saturated softmax is nearly one-hot: it passes little gradient to what it reads, and a large one "
        "to single tokens, which grows with depth.",
        "Zhai et al. 2023, 'Stabilizing Transformer training'; dslm, B.7",
        sites=tuple(sites),
        depths=subject.depths_of(sites),
        evidence=(
            Datum("score variance", variance, subject.source),
            Datum("largest weight", weight, subject.source),
        ),
        prescription=Prescription("give the bias that is added to the scores a smaller std, or the other sign")
        if constant else None,
    )  # fmt: skip
