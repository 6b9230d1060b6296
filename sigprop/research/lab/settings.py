"""What a training run is told, as plain data."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from sigprop.errors import require, require_names
from sigprop.research.lab.steps import MODES, PRECISIONS

DECAYS = ("cosine", "linear", "constant")


@dataclass(frozen=True)
class Schedule:
    """`schedule(step)` multiplies every group's own rate."""

    steps: int
    warmup: float | int = 0.1
    decay: str = "cosine"
    final: float = 0.1

    def __post_init__(self) -> None:
        require(self.steps > 0, "steps", self.steps, "at least 1")
        below = self.steps if isinstance(self.warmup, int) else 1
        told = "a share of the steps, from 0 to below 1, or a whole number of fewer steps than all"
        require(0 <= self.warmup < below, "warmup", self.warmup, told)
        require(self.decay in DECAYS, "decay", self.decay, ", ".join(DECAYS))
        require(0 <= self.final <= 1, "final", self.final, "between 0 and 1")

    def __call__(self, step: int) -> float:
        warm = self.warmup if isinstance(self.warmup, int) else int(self.steps * self.warmup)
        if step < warm:
            return (step + 1) / warm
        done = (step - warm) / max(self.steps - warm, 1)
        if self.decay == "constant":
            return 1.0
        if self.decay == "linear":
            return 1.0 - (1.0 - self.final) * done
        return self.final + (1.0 - self.final) * (1.0 + math.cos(math.pi * done)) / 2.0


@dataclass(frozen=True)
class Settings:
    """What a run is told; 0 in `..._every` means never.

    warmup: a share of the steps, or a whole number of steps.
    final: the last rate over the peak.
    betas: of Adam; None leaves the optimizer's own.
    """

    steps: int = 1000
    lr: float = 1e-3
    optimizer: str = "adamw"
    betas: tuple[float, float] | None = None
    weight_decay: float = 0.1
    warmup: float | int = 0.1
    decay: str = "cosine"
    final: float = 0.1
    clip: float = 1.0
    precision: str = "float32"
    mode: str = "eager"
    device: str = "cpu"
    seed: int = 0
    log_every: int = 10
    evaluate_every: int = 0
    checkpoint_every: int = 0

    def __post_init__(self) -> None:
        number = isinstance(self.lr, (int, float)) and not isinstance(self.lr, bool)
        require(number and 0 < self.lr < float("inf"), "lr", self.lr, "a positive number")
        if self.betas is not None:
            known = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
            require(known, "betas", self.betas, "two numbers from 0 to below 1")
            object.__setattr__(self, "betas", tuple(self.betas))
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "a number that is not negative")
        require(self.clip >= 0, "clip", self.clip, "a number that is not negative; 0 does not clip")
        require(self.mode in MODES, "mode", self.mode, ", ".join(MODES))
        require(self.precision in PRECISIONS, "precision", self.precision, ", ".join(PRECISIONS))
        for name in ("log_every", "evaluate_every", "checkpoint_every"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        _ = self.schedule

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.steps, self.warmup, self.decay, self.final)

    @classmethod
    def of(cls, **given: Any) -> Settings:
        """From names that a user wrote; an unknown one is named."""
        require_names([item.name for item in fields(cls)], given, "setting of a training")
        return cls(**given)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"betas": None if self.betas is None else list(self.betas)}
