"""`CoordinateReport`: fitted width or depth exponents of a coordinate check, with a verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sigprop.errors import UnknownNameError
from sigprop.grid import Grid, clean
from sigprop.results.files import Result

MOST, REPAIRS = 6, 4


@dataclass(frozen=True)
class Exponent:
    """One quantity at one place: its size over widths (or depths) and the fitted exponent.

    `quantity`: activation, change (of the activation), gradient, weight, update (of the weight), its rate (update over
    gradient), or decay (rate times weight decay).
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

    @property
    def key(self) -> tuple[str, str, int, str]:
        return self.name, self.quantity, self.step, self.axis

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


@dataclass(repr=False)
class CoordinateReport(Result):
    """All exponents, the verdict, and the culprits behind a failure (the worst first)."""

    DOCUMENT = ("coordinate check", 1)

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

    def derived(self) -> dict[str, Any]:
        return {"passed": self.passed}

    def table(self, all: bool = False) -> Grid:
        """The worst exponents; `all` shows every one at the first and last step."""
        last = max(item.step for item in self.exponents)
        shown = [item for item in self.exponents if item.step in (0, last)] if all or self.passed else self.failures
        ranked = sorted(shown, key=lambda item: -abs(item.deviation()))
        kept = ranked if all else ranked[:MOST]
        rows = [
            [
                *(item.name, item.quantity, str(item.step), f"{item.exponent:+.2f}"),
                *(f"{item.low:+.2f}..{item.high:+.2f}", _bound(item), "ok" if item.passed else "fail"),
            ]
            for item in kept
        ]
        note = f"{len(kept)} of {len(self.exponents)} exponents, the largest deviations; table(all=True) or --all: more"
        headings = ["site", "quantity", "step", "exponent", "95 %", "wanted", ""]
        return Grid(headings, rows, notes=[] if len(kept) == len(self.exponents) else [note], left=[1, 6])

    def summary(self) -> str:
        """The verdict, and what to repair."""
        widths = f"widths {self.widths[0]} to {self.widths[-1]}" if len(self.widths) > 1 else ""
        depths = f"depths {self.depths[0]} to {self.depths[-1]}" if len(self.depths) > 1 else ""
        over = " and ".join(part for part in (widths, depths) if part)
        if self.passed:
            return f"pass: all {len(self.exponents)} sizes scale with {over} as {self.meta.get('expect', 'asked')} says"
        lines = [f"FAIL: {len(self.failures)} of {len(self.exponents)} sizes do not scale as asked over {over}"]
        return "\n".join([*lines, *(clean(f"repair {culprit}") for culprit in self.culprits[:REPAIRS])])

    def records(self) -> list[dict[str, Any]]:
        return [asdict(item) for item in self.exponents]

    def plot(self, path: str | Path | None = None) -> Any:
        """Sizes over width, or depth, one panel per quantity; what fails is named."""
        from sigprop.results.figures import coordinate_figure

        return coordinate_figure(self, path)


def _bound(item: Exponent) -> str:
    if item.expected is not None:
        return f"{item.expected:+.2f}"
    return f"<= {item.at_most:+.2f}" if item.at_most is not None else ""
