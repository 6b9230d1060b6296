"""Adam's epsilon is larger than the gradients it is to protect from."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.monitoring.findings.base import RunContext, finding, last, problem, seen, smooth, weights
from sigprop.monitoring.history import History
from sigprop.results.report import Finding

SAMPLES = 2
SHARE = 0.5
LEARNED = 0.01
"""Once the loss is this share of the first one, gradients vanish because the task is learned."""


@finding("epsilon_too_large", "optimizer")
def epsilon_too_large(history: History, context: RunContext) -> Iterator[Finding]:
    recent = last(history, SAMPLES)
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
