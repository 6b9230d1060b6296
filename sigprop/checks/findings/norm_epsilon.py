"""Norms whose epsilon exceeds what they divide by."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.edits import setting
from sigprop.checks.observation import EPSILONS
from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.compat import BatchNorm
from sigprop.results.report import Datum, Finding, Prescription


@check("norm_epsilon", "signal", "norms that divide by their epsilon, not by the signal")
def norm_epsilon(subject: Subject) -> Iterator[Finding]:
    """x / sqrt(variance + epsilon) is x / sqrt(epsilon) once epsilon exceeds the variance; zeros are let through."""
    modules = dict(subject.model.named_modules())
    over = {name: item.epsilon / max(item.variance, 1e-30) for name, item in subject.observed.norms.items()
            if item.variance > 0 or item.vectors or isinstance(modules.get(name), BatchNorm)}  # fmt: skip
    bad = {name: share for name, share in over.items() if share > limit("epsilon")}
    if not bad:
        return
    worst = max(bad, key=bad.__getitem__)
    item = subject.observed.norms[worst]
    places = {f"{name}.{key}": 1e-5 for name in bad for key in EPSILONS
              if item.epsilon > 1e-3 and isinstance(getattr(modules.get(name), key, None), float)}  # fmt: skip
    because = f"Norms divide by their epsilon, {item.epsilon:.3g}, and not by what they read."
    left = 1 / (1 + bad[worst])
    running = isinstance(modules.get(worst), BatchNorm) and not modules[worst].training
    yield Finding(
        "norm_epsilon",
        "signal",
        "problem" if bad[worst] > 10 * limit("epsilon") else "warning",
        f"{worst.partition('[')[0]} normalizes vectors that are zero"
        if item.vectors
        else f"{worst} divides by its epsilon, {item.epsilon:.3g}: what it reads has variance {item.variance:.3g}",
        "A vector of zeros has no direction: its gradient is multiplied by one over the epsilon, 1e12."
        if item.vectors
        else "Its running variance was never made, or lost: what passes is multiplied by 1 / sqrt(epsilon)."
        if running
        else f"The output has variance {left:.2g} in place of 1, and shrinks with the input: nothing is normalized.",
        sites=tuple(bad),
        depths=subject.depths_of(bad),
        evidence=(Datum(f"epsilon of {worst} over the variance it reads", bad[worst], "measured"),),
        prescription=Prescription(
            "initialize what makes these vectors with random numbers"
            if item.vectors
            else "load the running variance, or set it to 1 (`module.running_var.fill_(1)`)"
            if running
            else "eps=1e-5"
            if item.epsilon > 1e-3
            else "enlarge what the norm reads, or give it a smaller epsilon"
        ),
        edits=(setting("eps = 1e-5", places, because),) if places else (),
    )
