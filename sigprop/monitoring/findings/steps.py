"""What steps do to parameters: experts and weights that nothing moves, gains that decay, an epsilon above gradients."""

from __future__ import annotations

import math
import re

from sigprop.monitoring.findings.base import (
    Findings,
    RunContext,
    finding,
    last,
    module_of,
    problem,
    seen,
    smooth,
    weights,
)
from sigprop.monitoring.history import History, Sample

EXPERT = re.compile(r"^(.*experts?(?:\.\w+)*?)(?:\.(\d+)\.|.*\[(\d+)\]$)", re.IGNORECASE)
EXPERT_SAMPLES = 4
SAMPLES = 3


def expert_of(parameter: str) -> str | None:
    """`moe.experts.3` of `moe.experts.3.up.weight` and of `moe.experts.up[3]`."""
    match = EXPERT.match(parameter)
    return f"{match.group(1)}.{match.group(2) or match.group(3)}" if match else None


@finding("dead_expert", "gradient")
def dead_expert(history: History, context: RunContext) -> Findings:
    """An expert that gets no gradient while the others do."""
    recent = last(history, EXPERT_SAMPLES)
    dead = set.intersection(*map(_idle, recent)) if recent else set()
    if dead:
        names = tuple(sorted(dead))
        yield problem(
            title=f"step {recent[-1].step}: {len(names)} experts get no gradient, first {names[0]}",
            cause="The router sends them no token; what gets no token gets no gradient and stays as it is "
            "(Fedus et al. 2022, section 2.2: a loss that balances the load).",
            sites=names,
            evidence=(seen("samples without a gradient, one after another", float(EXPERT_SAMPLES)),),
        )


def _idle(sample: Sample) -> set[str]:
    """Experts none of whose parameters has a gradient, in a layer where another has."""
    known: dict[str, bool] = {}
    for name, row in sample.parameters.items():
        expert = expert_of(name)
        if expert is not None:
            known[expert] = known.get(expert, False) or row.get("grad_second_moment", 0.0) > 0.0
    slices = {expert_of(name) for name in sample.parameters if name.endswith("]")}
    alive = {expert.rpartition(".")[0] for expert, living in known.items() if living}
    return {e for e, living in known.items() if not living and (e in slices or e.rpartition(".")[0] in alive)}


@finding("frozen", "gradient")
def frozen(history: History, context: RunContext) -> Findings:
    """A parameter that should be trained and does not move."""
    recent = last(history, SAMPLES)
    if not recent or not all(map(weights, recent)):
        return
    still = [
        name
        for name in recent[-1].parameters
        if not name.endswith("]") and expert_of(name) is None and all(_still(sample, name) for sample in recent)
    ]
    if still:
        row = recent[-1].parameters[still[0]]
        yield problem(
            title=f"step {recent[-1].step}: {len(still)} trained parameters do not move, first {still[0]}",
            cause=_cause(row),
            parameters=tuple(still),
            evidence=(seen("share of entries that the step left as they were", row.get("unmoved", 1.0)),),
        )


def _still(sample: Sample, name: str) -> bool:
    """Its module ran, and nothing moved; a module that is never run is unused, not frozen."""
    row, module = sample.parameters.get(name, {}), module_of(name)
    ran = module in sample.sites or any(site.startswith(f"{module}.") for site in sample.sites)
    return ran and row.get("lr", 1.0) != 0.0 and row.get("unmoved", 1.0) == 1.0


def _cause(row: dict[str, float]) -> str:
    if row.get("grad_second_moment", 0.0) == 0.0:
        return "No gradient reaches it, though its module is run: the signal is detached, or multiplied by zero."
    if "lr" not in row:
        return "It has a gradient, but no optimizer holds it."
    return "The step is smaller than the rounding of the parameter's format, so that nothing of it is kept."


HALF = 0.5
INWARD = 0.5
"""Cosine between the step and the negative of the gain, above which the step mostly shrinks it."""


@finding("decayed_gain", "optimizer")
def decayed_gain(history: History, context: RunContext) -> Findings:
    """Weight decay shrinks the gain of a norm."""
    recent = last(history, SAMPLES)
    names = []
    for name in recent[-1].parameters if recent else ():
        rows = [sample.parameters.get(name, {}) for sample in recent]
        if name in context.norms and all(map(_shrinks, rows)) and _kept(history, name) < HALF:
            names.append(name)
    if names:
        row = recent[-1].parameters[names[0]]
        yield problem(
            title=f"step {recent[-1].step}: weight decay has taken gains of {len(names)} norms to "
            f"{_kept(history, names[0]):.2f} of their size or less, first {names[0]}",
            cause="The step of a gain points at zero: decay moves it, not the gradient. A gain sets the scale of "
            "a branch; leave gains and biases out of weight decay.",
            parameters=tuple(names),
            evidence=(
                seen("weight decay", row["weight_decay"]),
                seen("cosine of the step with shrinking", row["against"]),
            ),
        )


def _shrinks(row: dict[str, float]) -> bool:
    return row.get("weight_decay", 0.0) > 0.0 and row.get("against", 0.0) > INWARD


def _kept(history: History, name: str) -> float:
    moments = history.series("parameters", name, "second_moment")
    return math.sqrt(moments[-1] / moments[0]) if moments and moments[0] > 0 else 1.0


DROWNED_SAMPLES = 2
SHARE = 0.5
LEARNED = 0.01
"""Once the loss is this share of the first one, gradients vanish because the task is learned."""


@finding("epsilon_too_large", "optimizer")
def epsilon_too_large(history: History, context: RunContext) -> Findings:
    """Adam's epsilon is larger than the gradients it is to protect from."""
    recent = last(history, DROWNED_SAMPLES)
    losses = smooth(loss for _, loss in history.losses)
    if not recent or (losses and losses[-1] < LEARNED * losses[0]):
        return
    drowned = [_drowned(weights(sample)) for sample in recent]
    names = [name for name in drowned[-1] if all(name in others for others in drowned)]
    held = [name for name, row in weights(recent[-1]).items() if "denominator" in row]
    if names and len(names) >= SHARE * len(held):
        row = recent[-1].parameters[names[0]]
        yield problem(
            title=f"step {recent[-1].step}: epsilon {row['eps']:.1g} exceeds the gradients of {len(names)} parameters",
            cause="Adam divides by sqrt(v) + eps. Where eps is the larger part the step shrinks with the gradient, "
            "and these parameters learn at a fraction of their rate (Everett et al. 2024, section 4).",
            parameters=tuple(names),
            evidence=(seen(f"root mean square of sqrt(v) at {names[0]}", row["denominator"], row["eps"]),),
        )


def _drowned(rows: dict[str, dict[str, float]]) -> list[str]:
    return [
        name
        for name, row in rows.items()
        if row.get("grad_second_moment", 0.0) > 0.0
        and row.get("denominator", row.get("eps", 0.0)) < row.get("eps", 0.0)
    ]
