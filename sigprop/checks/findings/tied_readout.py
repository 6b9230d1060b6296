"""A readout that is tied to an embedding and initialized as one."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.findings.initial_loss import loss_finding
from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.results.report import Finding


@check("tied_readout", "output", "a tied readout initialized as an embedding: logits of variance width * std^2")
def tied_readout(subject: Subject) -> Iterator[Finding]:
    if subject.readout is not None and subject.readout.tied and subject.profile is not None:
        yield from loss_finding(
            subject,
            "tied_readout",
            f"The embedding, {subject.readout.name}, is also the readout: behind a norm its logits have variance "
            "width * std^2.",
        )
