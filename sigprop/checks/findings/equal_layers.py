"""Parameters that equal one another bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.draws import Draw
from sigprop.checks.edits import edit, listed
from sigprop.checks.registry import check, say
from sigprop.checks.statistics import drawn_like_siblings
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.distributions.distribution import STRUCTURED
from sigprop.distributions.independence import kind_of
from sigprop.results.report import Datum, Finding, Prescription


@check("equal_layers", "draw", "two random parameters that hold the same numbers")
def equal_layers(subject: Subject) -> Iterator[Finding]:
    """Two draws agree in 64 entries with a chance below 2^-64: copies are the only explanation. Frozen ones are meant:
    targets, references, an old policy."""
    frozen = {name for name, item in subject.model.named_parameters() if not item.requires_grad}
    rows = [row for row in subject.draws.matrices if not row.recorded and row.law != "other" and row.name not in frozen]
    groups: dict[tuple, list[Draw]] = {}
    for row in rows:
        groups.setdefault((row.digest, row.shape), []).append(row)
        for part in row.parts:
            if part.total >= limit("fewest_entries"):
                groups.setdefault((part.digest, part.shape, row.name), []).append(part)
    equal = [found for found in groups.values() if len(found) > 1 and not _by_formula(subject, found[0])]
    layers = [found for found in equal if len({row.family for row in found}) == 1 and not _inside(found)]
    others = [found for found in equal if found not in layers]
    for found, severity, what, why in (
        (
            layers,
            "warning",
            "layers start as copies of one another",
            "Copies are correlated: powers of one matrix grow or shrink where independent ones would not. "
            "`copy.deepcopy` of one layer (as in torch's nn.TransformerEncoder) makes them.",
        ),
        (
            others,
            "problem",
            "parameters that should differ are equal",
            "Experts, heads or projections that start equal get equal gradients and stay equal.",
        ),
    ):
        if found:
            names = [row.name for group in found for row in group]
            copies = [row for group in found for row in group[1:] if row.name in subject.draws.rows]
            inits = {row.name: drawn_like_siblings(row, subject.draws, row.std) for row in copies}
            yield say(
                severity,
                f"{names[0]} and {names[1]} are equal bit for bit"
                + (f" ({len(names)} such parameters)" if len(names) > 2 else "")
                + f": {what}",
                why,
                parameters=tuple(names),
                evidence=(Datum("parameters that equal another", len(names), "weights", expected=0),),
                prescription=Prescription("initialize each again, with random numbers of its own"),
                edits=(edit(f"initialize {listed(list(inits))} again, with random numbers of their own", inits),)
                if inits
                else (),
            )


def _by_formula(subject: Subject, row: Draw) -> bool:
    """Numbers that a formula fills are equal wherever it does, and copies of nothing."""
    parameters = dict(subject.model.named_parameters())
    return row.name in parameters and kind_of(parameters[row.name]) == STRUCTURED


def _inside(found: list[Draw]) -> bool:
    """Copies within one layer: the first number of all names (the layer) is the same, or they are parts."""
    if any("[" in row.name or "expert" in row.name for row in found):
        return True
    return len({row.name for row in found}) == 1
