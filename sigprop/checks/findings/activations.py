"""Activations that are dead or saturated."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.edits import edit, listed
from sigprop.checks.registry import check, say
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results import Edit, Init
from sigprop.results.report import Datum, Finding, Prescription


@check("activations", "signal", "units that are always zero, or bounded ones at their bounds")
def activations(subject: Subject) -> Iterator[Finding]:
    """For a centred pre-activation half of the entries are zero and almost no unit is zero on all positions."""
    dead = {name: found.dead for name, found in subject.activity.items() if found.dead > limit("dead_share")}
    full = {
        name: found.saturated for name, found in subject.activity.items() if found.saturated > limit("saturated_share")
    }
    if dead:
        worst = max(dead, key=dead.__getitem__)
        yield say(
            "problem",
            f"{dead[worst]:.0%} of the units of {worst} are zero on every position",
            "What they read is exactly zero."
            if subject.activity[worst].silent
            else "What they read is negative everywhere: dead units pass no gradient and never come back.",
            "Lu et al. 2019, 'Dying ReLU and initialization'",
            sites=tuple(dead),
            evidence=(Datum(f"share of dead units of {worst}", dead[worst], "measured", expected=0.0),),
        )
    if full:
        worst = max(full, key=full.__getitem__)
        yield say(
            "problem" if full[worst] > 0.9 else "warning",
            f"{full[worst]:.0%} of the entries of {worst} are within 5 % of the activation's bounds",
            "The activation has no slope there: the gradient through it is almost zero.",
            "Glorot and Bengio 2010, section 3",
            sites=tuple(full),
            evidence=(Datum(f"saturated share of {worst}", full[worst], "measured", expected=0.0),),
            prescription=Prescription(
                f"divide what it reads by {subject.activity[worst].reads:.3g}: a smaller std (1 / sqrt(fan_in) keeps "
                "unit input), or a factor that stands before the activation put behind it"
            ),
            edits=tuple(_smaller(subject, list(full))),
        )


def _smaller(subject: Subject, names: list[str]) -> Iterator[Edit]:
    """The last matrices before saturated activations, divided by the scale of what these read."""
    seen = {f"{subject.activity[name].maker}.weight": subject.activity[name].reads for name in names}
    inits = {name: Init("keep", value=1 / reads) for name, reads in seen.items() if name in subject.draws.rows}
    if inits:
        because = (
            f"What the activation in {names[0]} reads has root mean square {subject.activity[names[0]].reads:.3g}."
        )
        what = (
            f"rescale {listed(list(inits))} so that the activation reads unit scale (or a factor before it, put behind)"
        )
        yield edit(what, inits, because)
