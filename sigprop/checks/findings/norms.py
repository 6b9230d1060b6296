"""Norms that do not normalize: by their epsilon, by what they divide by, or by their gains."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import nn

from sigprop.checks.edits import edit, listed, setting
from sigprop.checks.observation import EPSILONS
from sigprop.checks.registry import check, say
from sigprop.checks.subject import Subject, is_norm_gain
from sigprop.checks.thresholds import limit
from sigprop.compat import BatchNorm
from sigprop.results import Init
from sigprop.results.report import Datum, Finding, Prescription


@check("norm_epsilon", "signal", "norms that divide by their epsilon, not by the signal")
def norm_epsilon(subject: Subject) -> Iterator[Finding]:
    """x / sqrt(variance + epsilon) is x / sqrt(epsilon) once epsilon exceeds the variance; zeros are let through."""
    modules = dict(subject.model.named_modules())
    over = {
        name: item.epsilon / max(item.variance, 1e-30)
        for name, item in subject.observed.norms.items()
        if item.variance > 0 or item.vectors or isinstance(modules.get(name), BatchNorm)
    }
    bad = {name: share for name, share in over.items() if share > limit("epsilon")}
    if not bad:
        return
    worst = max(bad, key=bad.__getitem__)
    item = subject.observed.norms[worst]
    places = {
        f"{name}.{key}": 1e-5
        for name in bad
        for key in EPSILONS
        if item.epsilon > 1e-3 and isinstance(getattr(modules.get(name), key, None), float)
    }
    because = f"Norms divide by their epsilon, {item.epsilon:.3g}, and not by what they read."
    left = 1 / (1 + bad[worst])
    running = isinstance(modules.get(worst), BatchNorm) and not modules[worst].training
    yield say(
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


@check("norm_output", "signal", "norms that do not normalize, or whose gains start around zero")
def norm_output(subject: Subject) -> Iterator[Finding]:
    """Behind a norm the mean square is that of its gain, or of one plus the parameter, as some write it."""
    modules = dict(subject.model.named_modules())
    ratios = {}
    for name, (given, made, gain) in subject.observed.normalized.items():
        idle = isinstance(modules[name], BatchNorm) and not modules[name].training
        item = subject.observed.norms.get(name)
        if not idle and min(given, made, gain) > 0 and (item is None or item.epsilon < item.variance):
            ratios[name] = made / gain
    bad = {name: ratio for name, ratio in ratios.items() if abs(math.log(ratio)) > math.log(limit("norm_output"))}
    if bad:
        worst = max(bad, key=lambda name: abs(math.log(bad[name])))
        given = subject.observed.normalized[worst][0]
        squared = abs(math.log(bad[worst] * given)) < math.log(limit("norm_output"))
        yield say(
            "problem",
            f"{worst} does not normalize: its output has {bad[worst]:.3g} times the mean square of its gain",
            "It divides by the mean square of what it reads, not by its root: what is small comes out large."
            if squared
            else "What leaves it keeps a size of what enters: it divides by something else than the root mean square.",
            "Zhang and Sennrich 2019",
            sites=tuple(bad),
            evidence=(Datum(f"mean square of {worst} over that of its gain", bad[worst], "measured", expected=1.0),),
            prescription=Prescription("divide by the square root of the mean square (plus epsilon)"),
        )
    made = {name: subject.observed.normalized[name][1] for name in ratios if name not in bad}
    small = [name for name, size in made.items() if size * limit("norm_output") < 1]
    rows = [subject.draws.rows.get(f"{name}.weight") for name in small]
    around = [row for row in rows if row is not None and row.std > abs(row.mean) and row.total > 1]
    if around:
        names = [row.name for row in around]
        inits = {name: Init("constant", value=1.0) for name in names}
        because = f"The gains {listed(names)} start around 0, with std {around[0].std:.2g}, not around 1."
        yield say(
            "problem",
            f"the gains of {len(names)} norms start around zero, {names[0]} first: what they make has std "
            f"{around[0].std:.2g}",
            f"{because} Signs are random and the signal is that much smaller behind every norm.",
            parameters=tuple(names),
            evidence=(Datum(f"mean of {names[0]}", around[0].mean, "weights", expected=1.0),),
            prescription=Prescription("start the gains at 1 (or initialize them around 1)"),
            edits=(edit(f"start the gains {listed(names)} at 1", inits, because),),
        )


@check("small_gains", "draw", "gains of norms that start far below one")
def small_gains(subject: Subject) -> Iterator[Finding]:
    """Gains at the ends of branches may start small; a gain of zero is told by its gradients."""
    if subject.trained:
        return
    gains = [row for row in subject.draws if is_norm_gain(row) and row.std == 0 and row.name not in subject.branch_ends]
    small = [row for row in gains if 0 < abs(row.mean) < limit("small_gains")]
    if 2 * len(small) <= len(gains) or not small:
        return
    inits = {row.name: Init("constant", value=1.0) for row in small}
    yield say(
        "warning",
        f"{len(small)} of {len(gains)} gains of norms start at {small[0].mean:.3g}, {small[0].name} first",
        "What reads these norms, or the stream itself, is as much smaller than in any published model, and learns as "
        "much more slowly.",
        parameters=tuple(inits),
        evidence=(Datum(f"mean of {small[0].name}", small[0].mean, "weights", expected=1.0),),
        prescription=Prescription("start them at 1"),
        edits=(edit(f"start {listed(list(inits))} at 1", inits),),
    )


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
