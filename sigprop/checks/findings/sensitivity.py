"""Sums with a norm behind them leave too little of the stream: the output answers to every change of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.branches import normed_streams, sensitivity_of
from sigprop.checks.registry import check, say
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding


@check("sensitivity", "gradient", "what branches add to normalized sums, over the depth: why deep Post-LN diverges")
def sensitivity(subject: Subject) -> Iterator[Finding]:
    r"""Of a sum that a norm reads, the skip keeps `1 / (1 + share)` of the variance. Over the depth that leaves
    `exp(-S)` with the sensitivity `S`, the sum of all shares, and the output moves by `S` times what all weights move.
    """
    for branches in normed_streams(subject.branches):
        total = sensitivity_of(branches)
        if total < limit("sensitivity"):
            continue
        kept = math.exp(-sum(math.log1p(branch.share) for branch in branches))
        layers = branches[-1].depth - branches[0].depth + 1
        yield say(
            "problem" if total > limit("sensitivity_problem") else "warning",
            f"{layers} Post-LN blocks overwrite their stream: branches add {total:.3g} times their skips in all, and "
            f"{kept:.2g} of the variance still comes along the skips",
            "The norm behind a sum takes from the skip what the branch adds, so that a small change of all weights "
            "moves the output in proportion to the number of layers (with the norm inside the branch: to its "
            "logarithm); such a model needs a long warm-up and small learning rates, or diverges. The share of the "
            "skips falls exponentially with depth, and with it what the last layers see of the input.",
            "Liu et al. 2020, Theorem 2; dslm, section 5.6 and App. L; preln, section 3",
            sites=tuple(branch.site for branch in branches),
            depths=(branches[0].depth, branches[-1].depth),
            evidence=(
                Datum("branch over skip, summed", total, subject.source),
                Datum("variance that comes along the skips", kept, subject.source),
            ),
        )
