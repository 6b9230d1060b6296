"""An expert that gets no gradient while the others do."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sigprop.monitoring.findings.base import RunContext, finding, last, problem, seen
from sigprop.monitoring.history import History, Sample
from sigprop.results.report import Finding

SAMPLES = 4
EXPERT = re.compile(r"^(.*experts?(?:\.\w+)*?)(?:\.(\d+)\.|.*\[(\d+)\]$)", re.IGNORECASE)


def expert_of(parameter: str) -> str | None:
    """`moe.experts.3` of `moe.experts.3.up.weight` and of `moe.experts.up[3]`."""
    match = EXPERT.match(parameter)
    return f"{match.group(1)}.{match.group(2) or match.group(3)}" if match else None


@finding("dead_expert", "gradient")
def dead_expert(history: History, context: RunContext) -> Iterator[Finding]:
    recent = last(history, SAMPLES)
    if not recent:
        return
    dead = set.intersection(*map(_idle, recent))
    if dead:
        names = tuple(sorted(dead))
        yield problem(
            title=f"step {recent[-1].step}: {len(names)} experts get no gradient, first {names[0]}",
            cause="The router sends them no token; what gets no token gets no gradient and stays as it is "
            "(Fedus et al. 2022, section 2.2: a loss that balances the load).",
            sites=names,
            evidence=(seen("samples without a gradient, one after another", float(SAMPLES)),),
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
