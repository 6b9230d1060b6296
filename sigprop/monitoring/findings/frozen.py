"""A parameter that should be trained and does not move."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.monitoring.findings.base import RunContext, finding, last, module_of, problem, seen, weights
from sigprop.monitoring.findings.dead_expert import expert_of
from sigprop.monitoring.history import History, Sample
from sigprop.results.report import Finding

SAMPLES = 3


@finding("frozen", "gradient")
def frozen(history: History, context: RunContext) -> Iterator[Finding]:
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
    row = sample.parameters.get(name, {})
    if row.get("lr", 1.0) == 0.0 or not _ran(sample, name):
        return False
    return row.get("unmoved", 1.0) == 1.0


def _ran(sample: Sample, name: str) -> bool:
    module = module_of(name)
    return module in sample.sites or any(site.startswith(f"{module}.") for site in sample.sites)


def _cause(row: dict[str, float]) -> str:
    if row.get("grad_second_moment", 0.0) == 0.0:
        return "No gradient reaches it, though its module is run: the signal is detached, or multiplied by zero."
    if "lr" not in row:
        return "It has a gradient, but no optimizer holds it."
    return "The step is smaller than the rounding of the parameter's format, so that nothing of it is kept."
