"""Adapters that change the frozen model before they have learned anything."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.edits import edit, listed
from sigprop.checks.observation import unlike
from sigprop.checks.registry import check, say
from sigprop.checks.subject import Subject, effect
from sigprop.checks.thresholds import limit
from sigprop.results import Init
from sigprop.results.report import Datum, Finding, Prescription


@check("adapters", "draw", "low-rank factors beside frozen weights that do not start at zero together")
def adapters(subject: Subject) -> Iterator[Finding]:
    """Two trained matrices of one module beside frozen weights are a product where zeros in either do the same."""
    pairs = _pairs(subject)
    if not pairs:
        return
    first, last = ({pair[place]: Init("constant", value=0.0) for pair in pairs} for place in (0, 1))
    share, twins = effect(subject, last), [subject.edited(inits) for inits in (first, last)]
    if None in twins or not share > limit("small_effect"):
        return
    if unlike(*(twin.observed.output for twin in twins if twin is not None)) > limit("small_effect") * share:
        return
    names = list(last)
    because = f"The product with {listed(names)} is added to frozen weights, and neither factor is zero."
    yield say(
        "warning",
        f"adapters change the output of the frozen model by {share:.2g} of its variance before they have learned",
        f"{because} Training starts from a damaged model, not from the one that was trained.",
        "Hu et al. 2021, LoRA, section 4.1",
        parameters=tuple(names),
        evidence=(Datum("share of the output's variance that the adapters change", share, "measured", expected=0.0),),
        prescription=Prescription(f"initialize {listed(names)} with 0"),
        edits=(edit(f"initialize {listed(names)} with 0", last, because),),
    )


def _pairs(subject: Subject) -> list[tuple[str, str]]:
    """Random matrices that are trained, by two in the smallest module that holds frozen weights as well."""
    trained = {name: item.requires_grad for name, item in subject.model.named_parameters()}
    if subject.measured is None or all(trained.values()):
        return []
    found: dict[str, list[str]] = {}
    for row in subject.draws.matrices:
        if trained.get(row.name):
            owner = row.name.rpartition(".")[0]
            while owner and all(flag for name, flag in trained.items() if name.startswith(f"{owner}.")):
                owner = owner.rpartition(".")[0]
            found.setdefault(owner, []).append(row.name)
    return [(names[0], names[1]) for owner, names in found.items() if owner and len(names) == 2]
