"""`InitDiff`: whether two models start the same, which parameters differ, and what that does; plain data."""

from __future__ import annotations

import html
import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sigprop.grid import Grid, clean, filled, number
from sigprop.results.files import Result

NAN = math.nan
SHOWN = 12


@dataclass(frozen=True)
class ParameterDiff:
    """One parameter of A beside its partner in B. `test` is the decisive one and `chance` its p-value; the two are
    `equal` where that is no smaller than what so many tests bring by themselves. `resolution` is the relative
    difference of std that would have been seen."""

    name: str
    partner: str
    shape: tuple[int, ...]
    partner_shape: tuple[int, ...]
    a: str
    b: str
    equal: bool
    test: str = ""
    chance: float = 1.0
    resolution: float = NAN
    why: str = ""


@dataclass(frozen=True)
class Swap:
    """What becomes of A when one group of its parameters is initialized as in B: the `explained` share of the
    difference in signals, gradients and loss, and the loss."""

    group: str
    parameters: tuple[str, ...]
    a: str
    b: str
    explained: float = NAN
    loss: float = NAN


@dataclass(frozen=True)
class SiteDiff:
    """One site: variance and gradient variance, measured and predicted, of A and of B."""

    name: str
    variance_a: float
    variance_b: float
    grad_variance_a: float = NAN
    grad_variance_b: float = NAN
    predicted_a: float = NAN
    predicted_b: float = NAN

    @property
    def size(self) -> float:
        """The larger of the two ratios, as a logarithm."""
        pairs = ((self.variance_a, self.variance_b), (self.grad_variance_a, self.grad_variance_b))
        return max((abs(math.log(a / b)) for a, b in pairs if a > 0 and b > 0), default=0.0)


@dataclass(repr=False)
class InitDiff(Result):
    """Parameters joined, the groups that differ with what each explains, sites, and structure that differs."""

    DOCUMENT = ("diff", 1)

    parameters: list[ParameterDiff]
    swaps: list[Swap] = field(default_factory=list)
    sites: list[SiteDiff] = field(default_factory=list)
    structure: list[str] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def differing(self) -> list[ParameterDiff]:
        return [row for row in self.parameters if not row.equal]

    @property
    def equal(self) -> bool:
        """Nothing differs beyond what sampling does."""
        return not (self.differing or self.structure)

    @property
    def culprit(self) -> str:
        """The group of parameters that explains most; empty where none differs."""
        return self.swaps[0].group if self.swaps else ""

    @property
    def verdict(self) -> str:
        """One sentence."""
        a, b = self.meta.get("a", "A"), self.meta.get("b", "B")
        if self.equal:
            seen = [row.resolution for row in self.parameters if row.resolution == row.resolution]
            rest = f"; a difference in std of {min(seen):.2g} to {max(seen):.2g} would have been seen" if seen else ""
            return f"EQUAL: {len(self.parameters)} parameters of {a} and {b} have the same initialization{rest}"
        if not self.swaps:
            return f"DIFFERENT: {self.structure[0]}"
        first, others = self.swaps[0], len(self.swaps) - 1
        more = f", and {others} more group{'s' * (others > 1)}" if others else ""
        explained = ""
        if first.explained == first.explained:
            explained = f"; it explains {min(max(first.explained, 0.0), 1.0):.0%} of what differs in the signals"
        losses = [self.meta.get(key) for key in ("loss_a", "loss_b")]
        if all(isinstance(loss, float) and math.isfinite(loss) for loss in losses):
            explained += f" (initial loss {losses[0]:.4g} against {losses[1]:.4g})"
        return f"DIFFERENT: {first.group} has {first.a} in A and {first.b} in B{explained}{more}"

    def summary(self) -> str:
        lines = [self.verdict]
        lines += [f"structure: {line}" for line in self.structure]
        if self.meta.get("not_run"):
            lines.append(f"signals were not compared: {self.meta['not_run']}")
        if self.meta.get("not_run_b"):
            lines.append(f"that both compute the same was not looked at: {self.meta['not_run_b']}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return super().__str__() if self.swaps else filled(self.summary())

    def _repr_html_(self) -> str:
        if self.swaps:
            return super()._repr_html_()
        return "".join(f"<p>{html.escape(clean(line))}</p>" for line in self.summary().splitlines())

    def table(self, all: bool = False) -> Grid:
        """Groups that differ, A and B side by side; every parameter with `all`."""
        if all:
            rows = [
                [row.name, row.partner, row.a, row.b, "equal" if row.equal else row.test] for row in self.parameters
            ]
            return Grid(["A", "B", "in A", "in B", "verdict"], rows, names=(0, 1), wrapped=(2, 3), left=(4,))
        rows = [
            [
                item.group,
                item.a,
                item.b,
                "-" if item.explained != item.explained else f"{item.explained:.0%}",
                number(item.loss),
            ]
            for item in self.swaps[:SHOWN]
        ]
        left = len(self.swaps) - len(rows)
        notes = [f"and {left} more; table(all=True), or --all, shows them"] if left > 0 else []
        title = "A with one group initialized as in B" if rows else "no group of parameters differs"
        headings = ["group", "in A", "in B", "explains", "loss"]
        return Grid(headings, rows, title=title, notes=notes, wrapped=(1, 2))

    def site_table(self) -> Grid:
        """The sites that differ most."""
        rows = sorted(self.sites, key=lambda row: -row.size)[:SHOWN]
        cells = [[row.name, *(number(getattr(row, item.name)) for item in fields(row)[1:])] for row in rows]
        headings = ["site", "variance A", "B", "gradient A", "B", "predicted A", "B"]
        notes = ["gradient: mean square of the gradient of the loss. predicted: the variance by theory."]
        return Grid(headings, cells, title="sites that differ most", notes=notes)

    def records(self) -> list[dict[str, Any]]:
        return [asdict(row) for row in self.parameters]

    def derived(self) -> dict[str, Any]:
        return {"kind": "sigprop diff", "verdict": self.verdict, "equal": self.equal}
