"""`CoordinateReport`: fitted width or depth exponents of a coordinate check, with a verdict."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from sigprop.errors import UnknownNameError


@dataclass(frozen=True)
class Exponent:
    """One quantity at one place: its size over widths (or depths) and the fitted exponent.

    `quantity`: activation, change (of the activation), gradient, weight, update (of the weight) or its
    rate (update over gradient).
    `low`, `high` bound the exponent at 95 percent; `expected` is None where theory only bounds it from above.
    """

    name: str
    quantity: str
    step: int
    axis: str
    sizes: tuple[float, ...]
    exponent: float
    low: float
    high: float
    expected: float | None
    passed: bool
    at_most: float | None = None

    def deviation(self) -> float:
        """How far the exponent lies beyond what is expected; 0 inside a one-sided bound."""
        if self.expected is not None:
            return self.exponent - self.expected
        return max(0.0, self.exponent - self.at_most) if self.at_most is not None else 0.0


@dataclass(frozen=True)
class Culprit:
    """What to repair: a parameter's init or learning rate, or a forward multiplier, and by which exponent."""

    name: str
    cause: str
    exponent: float
    axis: str = "width"

    def __str__(self) -> str:
        return f"{self.name}: {self.cause} is off by {self.axis}^{self.exponent:+.2f}"


@dataclass
class CoordinateReport:
    """All exponents, the verdict, and the culprits behind a failure (the worst first)."""

    exponents: list[Exponent]
    culprits: list[Culprit]
    widths: list[int]
    depths: list[int]
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return all(item.passed for item in self.exponents)

    @property
    def failures(self) -> list[Exponent]:
        return [item for item in self.exponents if not item.passed]

    def find(self, name: str, quantity: str, step: int, axis: str = "width") -> Exponent:
        for item in self.exponents:
            if (item.name, item.quantity, item.step, item.axis) == (name, quantity, step, axis):
                return item
        raise UnknownNameError("site", f"{name} {quantity} {step}", {item.name for item in self.exponents})

    def to_dict(self) -> dict[str, Any]:
        rows = [{key: _finite(value) for key, value in asdict(item).items()} for item in self.exponents]
        return {
            "passed": self.passed,
            "widths": self.widths,
            "depths": self.depths,
            "culprits": [asdict(item) for item in self.culprits],
            "exponents": rows,
            "meta": self.meta,
        }

    def to_json(self, path: str | Path | None = None) -> str:
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        if path is not None:
            Path(path).write_text(text + "\n")
        return text

    def table(self, failures_only: bool = False) -> Table:
        """One line per exponent at the last step, worst deviation first."""
        last = max(item.step for item in self.exponents)
        shown = self.failures if failures_only else [item for item in self.exponents if item.step in (0, last)]
        title = "coordinate check: " + ("pass" if self.passed else f"FAIL ({len(self.failures)} exponents)")
        table = Table(title=title)
        for heading in ("site", "quantity", "step", "along", "exponent", "95 %", "expected", ""):
            table.add_column(heading, overflow="fold")
        for item in sorted(shown, key=lambda item: -abs(item.deviation())):
            bound = f"{item.expected:+.2f}" if item.expected is not None else ""
            bound = bound or (f"<= {item.at_most:+.2f}" if item.at_most is not None else "")
            numbers = f"{item.exponent:+.2f}", f"{item.low:+.2f} .. {item.high:+.2f}", bound
            verdict = "ok" if item.passed else "[red]fail"
            table.add_row(item.name, item.quantity, str(item.step), item.axis, *numbers, verdict)
        return table


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, tuple):
        return [_finite(item) for item in value]
    return value
