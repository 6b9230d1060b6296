"""Routers that send all tokens to the same few experts."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.registry import check, say
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding


@check("router_collapse", "tokens", "routers that send all tokens to the same few experts")
def router_collapse(subject: Subject) -> Iterator[Finding]:
    """Of `options`, as many as take nine tenths of all choices; choices among what is no expert are left out."""
    experts = subject.expert_counts
    found = {
        name: item
        for name, item in subject.observed.routings.items()
        if item.options in experts and item.busy <= max(item.chosen, limit("busy_options") * item.options)
    }
    if not found:
        return
    worst = min(found, key=lambda name: found[name].busy / found[name].options)
    item = found[worst]
    yield say(
        "problem" if item.busy <= item.chosen else "warning",
        f"{item.busy} of {item.options} experts take nine tenths of all tokens in {worst}",
        "The others get no gradient, and balance has to come from an auxiliary loss alone.",
        "Fedus et al. 2022, section 2.2",
        sites=tuple(found),
        evidence=(Datum(f"experts that take nine tenths in {worst}", item.busy, "measured"),),
    )
