"""Most of a gradient lies where the format in use loses its bits."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.monitoring.findings.base import RunContext, finding, last, seen, warning
from sigprop.monitoring.history import History
from sigprop.results.report import Finding

SHARE = 0.5
SAMPLES = 3


@finding("underflow", "precision")
def underflow(history: History, context: RunContext) -> Iterator[Finding]:
    recent = last(history, SAMPLES)
    for narrow in ("fp16", "bf16"):
        key = f"grad_{narrow}_underflow"
        names = [name for name in (recent[-1].sites if recent else ()) if _low(recent, name, key)]
        if names:
            yield warning(
                title=f"step {recent[-1].step}: most of the gradient at {names[0]} is subnormal in {narrow}",
                cause=f"Entries below {narrow}'s smallest normal number keep few bits or none: scale the loss up.",
                sites=tuple(names),
                evidence=(seen("share of subnormal entries", recent[-1].sites[names[0]][key]),),
            )


def _low(recent: list, name: str, key: str) -> bool:
    return all(sample.sites.get(name, {}).get(key, 0.0) > SHARE for sample in recent)
