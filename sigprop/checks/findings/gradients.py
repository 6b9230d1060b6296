"""Gradients along the stream: explosion and vanishing are one test with two names."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.edits import edit, listed
from sigprop.checks.registry import check, say
from sigprop.checks.streams import fitted_law, usable
from sigprop.checks.subject import Subject
from sigprop.checks.suspects import started
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding

FEWEST = 4
"""Layers that show a trend."""


def gradient_finding(subject: Subject, explodes: bool) -> Iterator[Finding]:
    """First block over last beyond the threshold, on one side."""
    for stream in subject.streams:
        rows, source = subject.finite_rows(stream, "grad_variance")
        values = subject.relative_gradients(stream, rows)
        if not usable(values) or not stream.even:
            continue
        law = fitted_law(values[::-1])
        size = law.ratio if explodes else 1 / law.ratio
        if size < limit("gradient_ratio"):
            continue
        evidence = [Datum("gradient variance, first block / last", law.ratio, source)]
        predicted = subject.relative_gradients(stream, stream.rows(subject.predicted))
        if source == "measured" and usable(predicted):
            evidence.append(Datum("the same", predicted[0] / predicted[-1], "predicted"))
        relative = ", beside the stream" if subject.scale_free(stream) else ""
        verb = "grow" if explodes else "shrink"
        yield say(
            "problem" if size > limit("gradient_ratio_problem") else "warning",
            f"gradients {verb} by a factor of {size:.3g} in variance{relative}, over {len(rows)} blocks, "
            f"backwards ({law})",
            _consequence(stream.residual, explodes),
            _paper(subject, stream.residual),
            sites=tuple(row.name for row in rows),
            depths=(rows[0].depth, rows[-1].depth),
            evidence=tuple(evidence),
        )


def family_finding(subject: Subject, explodes: bool) -> Iterator[Finding]:
    """One matrix of many layers where no site shows the stream: layers of torch's own recurrent modules."""
    if subject.profile is None or subject.streams:
        return
    rows = {row.name: row.grad_second_moment for row in subject.profile.parameters}
    for members in subject.draws.families().values():
        members = [row for row in members if row.is_matrix and row.fan_in == 0 and row.name in rows]
        values = [rows[row.name] for row in members]
        if len(members) < FEWEST or not usable(values):
            continue
        law = fitted_law(values[::-1])
        size = law.ratio if explodes else 1 / law.ratio
        if size < limit("gradient_ratio_problem"):
            continue
        inits = {row.name: started(row) for row in members}
        gain = members[0].std * members[0].shape[-1] ** 0.5
        because = f"The std of {listed(list(inits))} is {gain:.3g} / sqrt(fan_in) in each of {len(members)} layers."
        yield say(
            "problem",
            f"gradients of {members[0].family} {'grow' if explodes else 'shrink'} by a factor of {size:.3g} in "
            f"variance, over {len(members)} layers, backwards ({law})",
            _consequence(False, explodes),
            "apjn, section 2",
            parameters=tuple(inits),
            evidence=(Datum("gradient variance, first layer / last", law.ratio, subject.source),),
            edits=(edit(f"initialize {listed(list(inits))} with std 1 / sqrt(fan_in)", inits, because),),
        )
        return


def _consequence(residual: bool, explodes: bool) -> str:
    """What follows from the ratio itself; causes are told once they were tried."""
    if not residual:
        return "Without skips every layer multiplies the squared gradient by its chi_J."
    late = "last" if explodes else "first"
    return f"One learning rate for all blocks is too {'large for the first' if explodes else 'small for the ' + late}."


def _paper(subject: Subject, residual: bool) -> str:
    if not residual:
        return "apjn, section 2"
    placement = subject.structure.placement if subject.structure is not None else "none"
    return "dslm, App. C and F; preln, section 3" if placement == "post" else "dslm, App. C"


@check("gradient_explodes", "gradient", "gradients grow towards the first block, and how fast")
def gradient_explodes(subject: Subject) -> Iterator[Finding]:
    yield from gradient_finding(subject, explodes=True)
    yield from family_finding(subject, explodes=True)


@check("gradient_vanishes", "gradient", "gradients shrink towards the first block, and how fast")
def gradient_vanishes(subject: Subject) -> Iterator[Finding]:
    yield from gradient_finding(subject, explodes=False)
    yield from family_finding(subject, explodes=False)


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
        yield say(
            "warning",
            f"the layers are {verdict}: chi_J = {factor:.3g}, so gradients change by e within {scale:.2g} layers",
            "A chain without skips keeps its gradient only at chi_J = 1.",
            "apjn, section 2; Schoenholz et al. 2017",
            sites=stream.names,
            evidence=(Datum("chi_J of the later half", factor, subject.source, expected=1.0),),
        )
