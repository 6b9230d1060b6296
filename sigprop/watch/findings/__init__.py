"""What is wrong with a run, said once: one file per finding, each a rule over the history.

A rule yields findings; the same name at the same place is told once. Their words are those of `sigprop check`.
"""

from __future__ import annotations

from sigprop.results.report import Finding
from sigprop.watch.findings import (
    attention_collapse,
    dead_expert,
    decayed_gain,
    epsilon,
    exploding_branch,
    frozen,
    jump,
    loss_alone,
    nonfinite,
    overflow,
    prediction,
    rate,
    underflow,
)
from sigprop.watch.findings.base import Circumstances
from sigprop.watch.history import History

RULES = (
    overflow,
    nonfinite,
    underflow,
    dead_expert,
    frozen,
    epsilon,
    decayed_gain,
    attention_collapse,
    exploding_branch,
    rate,
    loss_alone,
    jump,
    prediction,
)


def findings_of(history: History, circumstances: Circumstances) -> list[Finding]:
    """What the rules say now and have not said before."""
    found = []
    for rule in RULES:
        for finding in rule.find(history, circumstances):
            place = (finding.name, (finding.sites or finding.parameters or ("",))[0])
            if place not in circumstances.told:
                circumstances.told.add(place)
                found.append(finding)
    return found


__all__ = ["RULES", "Circumstances", "findings_of"]
