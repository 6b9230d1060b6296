"""The gradient grows on its way back to the first block."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.gradients import gradient_finding
from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.results.report import Finding


@check("gradient_explodes", "gradient", "gradients grow towards the first block: law and ratio")
def gradient_explodes(subject: Subject) -> Iterator[Finding]:
    yield from gradient_finding(subject, explodes=True)
