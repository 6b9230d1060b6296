r"""The learning rate over a run, as a factor of its peak.

warm-up over the first `warmup` of the steps, linear from 1/w to 1; then down to `final`:
cosine    final + (1 - final) (1 + cos(pi t)) / 2
linear    1 - (1 - final) t
constant  1
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sigprop.errors import require

DECAYS = ("cosine", "linear", "constant")


@dataclass(frozen=True)
class Schedule:
    """`schedule(step)` multiplies every group's own rate."""

    steps: int
    warmup: float = 0.1
    decay: str = "cosine"
    final: float = 0.1

    def __post_init__(self) -> None:
        require(self.steps > 0, "steps", self.steps, "at least 1")
        require(0 <= self.warmup < 1, "warmup", self.warmup, "a share of the steps, from 0 to below 1")
        require(self.decay in DECAYS, "decay", self.decay, ", ".join(DECAYS))
        require(0 <= self.final <= 1, "final", self.final, "between 0 and 1")

    def __call__(self, step: int) -> float:
        warm = int(self.steps * self.warmup)
        if step < warm:
            return (step + 1) / warm
        done = (step - warm) / max(self.steps - warm, 1)
        if self.decay == "constant":
            return 1.0
        if self.decay == "linear":
            return 1.0 - (1.0 - self.final) * done
        return self.final + (1.0 - self.final) * (1.0 + math.cos(math.pi * done)) / 2.0
