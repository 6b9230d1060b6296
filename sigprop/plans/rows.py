"""The rows of a plan: one per parameter, per residual junction, per module that multiplies its signal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sigprop.errors import require
from sigprop.results.parameters import KEEP, VECTORS, Init, is_finite

PLACES = ("input", "output")
FACTORS = ("lr", "weight_decay", "eps")


@dataclass(frozen=True)
class ParameterPlan:
    """One parameter: its initialization and its optimizer multipliers. `role`: see `results.parameters`."""

    name: str
    shape: tuple[int, ...]
    init: Init = KEEP
    lr: float = 1.0
    weight_decay: float = 1.0
    eps: float = 1.0
    why: str = ""
    role: str = ""

    def __post_init__(self) -> None:
        require(all(size >= 0 for size in self.shape), "shape", self.shape, "sizes that are not negative")
        for name in FACTORS:
            require(is_finite(getattr(self, name)), name, getattr(self, name), "a finite number")
            require(getattr(self, name) >= 0, name, getattr(self, name), "a number that is not negative")

    @property
    def is_vector(self) -> bool:
        """Gains and biases, which do not decay."""
        return self.role in VECTORS or len(self.shape) < 2


@dataclass(frozen=True)
class JunctionPlan:
    """One residual junction, `skip * x + branch * f(x)`, named by the module that computes `f`.

    `folded` says that the parameter rows already carry both scales; nothing is left to apply. Otherwise hooks on
    this module and on `entry`, the module that takes `x` in, apply them, and a `learnable` branch scale of the
    given `shape` becomes a parameter. `weights` are the last parameters of `f`, entering as `shift + w`; folded, they
    carry the factor `branch / level`, `level` being the scale that the stream has gathered there (0: cannot be folded).
    `own` is the factor that the model itself gives the skip, over that of what this module puts out; `dropped` says
    that a dropout follows it, which would take the skip with it in training.
    `place="input"` scales inside a branch instead: the input `f` of this module becomes `skip * v + branch * f`, with
    `v` the output of `entry`.
    """

    name: str
    skip: float = 1.0
    branch: float = 1.0
    folded: bool = True
    entry: str = ""
    weights: tuple[str, ...] = ()
    shift: float = 0.0
    level: float = 1.0
    own: float = 1.0
    dropped: bool = False
    learnable: bool = False
    shape: tuple[int, ...] = ()
    place: str = "output"
    why: str = ""

    def __post_init__(self) -> None:
        require(self.place in PLACES, "junction place", self.place, " or ".join(PLACES))
        for name in ("skip", "branch", "shift", "level", "own"):
            require(is_finite(getattr(self, name)), f"junction {name}", getattr(self, name), "a finite number")


@dataclass(frozen=True)
class ScalePlan:
    """One module that multiplies its signal by `factor`: its `input`, its `output`, or, with
    `place="attribute:NAME"`, one of its own numbers."""

    module: str
    factor: float
    place: str = "input"
    why: str = ""

    def __post_init__(self) -> None:
        known = self.place in PLACES or self.place.startswith("attribute:")
        require(is_finite(self.factor), "scale factor", self.factor, "a finite number")
        require(known, "scale place", self.place, f"one of {', '.join(PLACES)} or attribute:NAME")


@dataclass(frozen=True)
class PlanDifference:
    """One field in which two plans differ; a side is None where that plan has no such row."""

    name: str
    field: str
    left: Any
    right: Any
