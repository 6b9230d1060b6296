"""Blocks that are ordered or chaotic."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.registry import check
from sigprop.checks.streams import usable
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding


@check("criticality", "criticality", "a chain of layers that is ordered or chaotic, with the critical gain")
def criticality(subject: Subject) -> Iterator[Finding]:
    """chi_J of a layer is the growth of the squared gradient through it; the later half has settled."""
    for stream in subject.streams:
        values = stream.values(subject.profile, "grad_variance")
        if stream.residual or not stream.even or not usable(values):
            continue
        growth = values[0] / values[-1]
        if 1 / limit("criticality_growth") < growth < limit("criticality_growth"):
            continue
        late = values[len(values) // 2 :] if len(values) > 5 else values
        factor = (late[0] / late[-1]) ** (1 / (len(late) - 1))
        verdict = "chaotic" if factor > 1 else "ordered"
        scale = 1 / abs(math.log(factor)) if factor != 1 else math.inf
        yield Finding(
            "criticality",
            "criticality",
            "warning",
            f"the layers are {verdict}: chi_J = {factor:.3g}, so gradients change by e within {scale:.2g} layers",
            "A chain without skips keeps its gradient only at chi_J = 1.",
            "apjn, section 2; Schoenholz et al. 2017",
            sites=stream.names,
            evidence=(Datum("chi_J of the later half", factor, subject.source, expected=1.0),),
        )
