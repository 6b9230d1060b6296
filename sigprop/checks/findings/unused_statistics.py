"""Batch norms in evaluation mode that have never seen a batch: they normalize nothing."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from sigprop.checks.registry import check, say
from sigprop.checks.subject import Subject
from sigprop.compat import BatchNorm
from sigprop.results.report import Datum, Finding, Prescription


@check("unused_statistics", "signal", "batch norms in evaluation mode whose statistics were never made")
def unused_statistics(subject: Subject) -> Iterator[Finding]:
    """A running mean of 0 and variance of 1, as they are built: whatever passes through keeps its scale."""
    idle = [name for name, module in subject.model.named_modules() if isinstance(module, BatchNorm) and _idle(module)]
    if idle:
        yield say(
            "warning",
            f"{len(idle)} batch norms are in evaluation mode and have seen no batch ({idle[0]} first): they normalize "
            "nothing",
            "Their statistics are those they are built with, a mean of 0 and a variance of 1. What else is said of "
            "signals and gradients here holds for the model without its norms, not for the one that will be trained.",
            "Ioffe & Szegedy 2015",
            sites=tuple(idle),
            evidence=(Datum("batch norms without statistics", len(idle), "weights"),),
            prescription=Prescription("check the model as it trains: model.train()"),
        )


def _idle(module: nn.Module) -> bool:
    mean, variance = module.running_mean, module.running_var
    if module.training or mean is None or variance is None or mean.is_meta:
        return False
    return bool((mean == 0).all()) and bool((variance == 1).all())  # type: ignore[union-attr]
