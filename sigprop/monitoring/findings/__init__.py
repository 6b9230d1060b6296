"""What is wrong with a run, said once: one file per finding, each a rule over the history.

A rule yields findings; each name is told once. Their words are those of `sigprop check`.
"""

from __future__ import annotations

from sigprop.monitoring.findings import (
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
from sigprop.monitoring.findings.base import Circumstances
from sigprop.monitoring.history import History
from sigprop.results.report import Finding

RULES = (
    rate,
    overflow,
    nonfinite,
    underflow,
    dead_expert,
    frozen,
    epsilon,
    decayed_gain,
    attention_collapse,
    exploding_branch,
    loss_alone,
    jump,
    prediction,
)
FOLLOWING = (attention_collapse, exploding_branch, jump)
"""What a rate that is too high makes happen: not told once the rate is named."""


def findings_of(history: History, circumstances: Circumstances) -> list[Finding]:
    """What the rules say now and have not said before; causes come before what may follow from them."""
    found = []
    for rule in RULES:
        if rule in FOLLOWING and "rate_too_high" in circumstances.told:
            continue
        for finding in rule.find(history, circumstances):
            if finding.name not in circumstances.told:
                circumstances.told.add(finding.name)
                found.append(finding)
    return found


__all__ = ["RULES", "Circumstances", "findings_of"]
