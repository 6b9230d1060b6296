"""Sums with a norm behind them leave too little of the stream: the output answers to every change of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.branches import normed_streams, sensitivity_of
from sigprop.checks.registry import check, say
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding, Prescription


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


@check("branch_factor", "gradient", "numbers that multiply the branch, or shrink the skip, of a residual sum")
def branch_factor(subject: Subject) -> Iterator[Finding]:
    """Every published scheme multiplies the skip (DeepNorm), divides the branch (muP, Granite), or both alike."""
    junctions = [] if subject.structure is None else subject.structure.junctions
    bad = [item for item in junctions if 0 < abs(item.skip_scale) < limit("skip_factor") * abs(item.branch_scale)]
    if not bad or 2 * len(bad) < len(junctions) or all(item.projected for item in bad):
        return
    skip, branch = bad[0].skip_scale, bad[0].branch_scale
    yield say(
        "warning",
        f"the skip of {len(bad)} residual sums is multiplied by {skip:.3g}, and the branch by {branch:.3g}",
        "The factor stands at the wrong operand, or is the inverse of what is meant: each block overwrites the stream "
        "that it reads, and the gradient along the skips shrinks with depth. DeepNorm multiplies the skip; other "
        "schemes make the branch smaller.",
        "Wang et al. 2022, DeepNorm",
        sites=tuple(item.exit or item.name for item in bad),
        evidence=(Datum("factor of the skip over that of the branch", skip / branch, "the model", expected=1.0),),
        prescription=Prescription(
            f"multiply the skip by {branch:.3g} and leave the branch as it is"
            if branch > 1
            else "leave the skip as it is (a factor of 1), or make the branch smaller instead"
        ),
    )
