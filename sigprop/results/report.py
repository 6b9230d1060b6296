"""`Report`: what is wrong with a model's initialization, as plain data, bounded in size.

A report holds its findings (ranked), the margins of all gauges, curves by depth, and folded tables of
modules and parameters: everything that the terminal and the HTML page show, and nothing that grows with the
number of layers beyond a fixed bound. `plan`, the prescription, is saved by itself (`report.plan.to_json`).
"""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sigprop.errors import require
from sigprop.grid import Grid, thinned
from sigprop.results.files import UNSAVED, Result, plain
from sigprop.results.parameters import Init
from sigprop.results.profile import Profile
from sigprop.results.report_text import report_text

SEVERITIES = ("problem", "warning", "note")
NAMES_KEPT = 24
POINTS_KEPT = 200
NAN = math.nan


@dataclass(frozen=True)
class Datum:
    """One number: where it comes from (`predicted`, `measured`, `weights`), its standard error, what was expected."""

    what: str
    value: float
    source: str
    error: float = NAN
    expected: float = NAN

    def __str__(self) -> str:
        spread = f" ± {self.error:.2g}" if math.isfinite(self.error) and self.error > 0 else ""
        wanted = f" (expected {self.expected:.4g})" if math.isfinite(self.expected) else ""
        return f"{self.what}: {self.value:.4g}{spread} {self.source}{wanted}"


@dataclass(frozen=True)
class Edit:
    """A change of one tensor group: in words, as one line of code on `model`, and the entries by parameter.

    `because` says what is the cause of a finding that this change removes. `attributes` are numbers of modules that it
    sets (`layers.3.p`).
    """

    what: str
    code: str
    inits: dict[str, Init]
    because: str = ""
    attributes: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Prescription:
    """What to do, as a line of `code` where it is one, and what was predicted (or measured) to come of it.

    `quantity` before and after; `rate` says which learning rate goes with it.
    """

    text: str
    quantity: str = ""
    before: float = NAN
    after: float = NAN
    source: str = ""
    code: str = ""
    rate: str = ""

    @property
    def evaluated(self) -> bool:
        return bool(self.source)

    def __str__(self) -> str:
        change = (
            f"{self.quantity} {self.before:.3g} -> {self.after:.3g}" if math.isfinite(self.after) else "not found again"
        )
        outcome = f" [{self.source}: {change}]." if self.evaluated else ""
        return self.text + outcome + (f" {self.rate}" if self.rate else "")


@dataclass(frozen=True)
class Finding:
    """One thing found: how bad, what and where, by which numbers, why, and what to do.

    `edits` are changes that may fix it, likeliest first; they are tried, and are not saved here.
    """

    name: str
    group: str
    severity: str
    title: str
    cause: str
    reference: str = ""
    sites: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    depths: tuple[int, int] | None = None
    evidence: tuple[Datum, ...] = ()
    prescription: Prescription | None = None
    more: int = 0
    edits: tuple[Edit, ...] = field(default=(), repr=False, compare=False, metadata=UNSAVED)

    def __post_init__(self) -> None:
        require(self.severity in SEVERITIES, "severity", self.severity, f"one of {', '.join(SEVERITIES)}")

    def __str__(self) -> str:
        """A sentence: how bad, what, and what to do."""
        fix = f" Fix: {self.prescription}" if self.prescription is not None else ""
        return f"{self.severity}: {self.title.rstrip('.')}.{fix}"

    def _repr_html_(self) -> str:
        cells = [(f"<b>{html.escape(self.severity)}: {html.escape(self.title)}</b>"), html.escape(self.cause)]
        cells += [html.escape(str(item)) for item in self.evidence]
        cells += [f"<b>Fix:</b> {html.escape(str(self.prescription))}"] if self.prescription is not None else []
        return f"<div style='margin:0 0 1em 0'>{'<br>'.join(cells)}</div>"

    def bounded(self) -> Finding:
        """At most a fixed number of sites and parameters; `more` counts those left out."""
        left = max(len(self.sites) - NAMES_KEPT, 0) + max(len(self.parameters) - NAMES_KEPT, 0)
        return replace(
            self, sites=self.sites[:NAMES_KEPT], parameters=self.parameters[:NAMES_KEPT], more=self.more + left
        )


@dataclass(frozen=True)
class Curve:
    """One column of the stream by depth; `kind` is predicted, measured or prescribed."""

    column: str
    kind: str
    depth: tuple[int, ...]
    values: tuple[float, ...]
    errors: tuple[float, ...] = ()

    def bounded(self) -> Curve:
        """At most a fixed number of points, evenly spread, both ends kept."""
        columns = (tuple(thinned(items, POINTS_KEPT)) for items in (self.depth, self.values, self.errors))
        return Curve(self.column, self.kind, *columns)


@dataclass(frozen=True)
class ModuleNode:
    """A module of the tree; `times` blocks of the same shape and health are one node."""

    name: str
    kind: str
    health: str
    times: int = 1
    parameters: int = 0
    children: tuple[ModuleNode, ...] = ()


@dataclass(frozen=True)
class ParameterLine:
    """Parameters that differ in their layer alone: how many, and std and gradient of the first and the last."""

    name: str
    shape: tuple[int, ...]
    role: str
    count: int
    std: tuple[float, float]
    gradient: tuple[float, float]
    health: str = "ok"


@dataclass(frozen=True)
class Margin:
    """A quantity and the limit beyond which it is a finding; `beyond` says that it is there."""

    what: str
    value: float
    limit: float
    beyond: bool = False

    @property
    def wanted(self) -> str:
        """The limit with its side: `at most 2`; the value lies on the right side of it unless it is `beyond`."""
        return f"at {'least' if (self.value > self.limit) != self.beyond else 'most'} {self.limit:.3g}"

    def __str__(self) -> str:
        return f"{self.what} {self.value:.3g} ({'beyond its limit: ' if self.beyond else ''}{self.wanted})"


@dataclass(repr=False)
class Report(Result):
    """Findings ranked by severity, with what they rest on; `plan` is the fix that was tried."""

    DOCUMENT = ("report", 1)

    findings: list[Finding]
    margins: list[Margin] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    modules: ModuleNode | None = None
    parameters: list[ParameterLine] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)
    plan: Any = field(default=None, repr=False, metadata=UNSAVED)
    predicted: Profile | None = field(default=None, repr=False, metadata=UNSAVED)
    measured: Profile | None = field(default=None, repr=False, metadata=UNSAVED)
    prescribed: Profile | None = field(default=None, repr=False, metadata=UNSAVED)

    def __post_init__(self) -> None:
        order = {name: place for place, name in enumerate(SEVERITIES)}
        self.findings = sorted((item.bounded() for item in self.findings), key=lambda item: order[item.severity])
        self.curves = [curve.bounded() for curve in self.curves]

    def __getitem__(self, name: str) -> list[Finding]:
        """All findings of one name."""
        return [item for item in self.findings if item.name == name]

    @property
    def problems(self) -> list[Finding]:
        return [item for item in self.findings if item.severity == "problem"]

    @property
    def warnings(self) -> list[Finding]:
        return [item for item in self.findings if item.severity == "warning"]

    @property
    def healthy(self) -> bool:
        """Neither a problem nor a warning."""
        return not (self.problems or self.warnings)

    @property
    def verdict(self) -> str:
        """`no problems found`, or how many problems and warnings there are."""
        if self.healthy:
            return "no problems found"
        counts = (("problem", len(self.problems)), ("warning", len(self.warnings)))
        return ", ".join(f"{n} {name}{'s' * (n > 1)}" for name, n in counts if n)

    def summary(self) -> str:
        return f"{self.meta.get('model', 'model')}: {self.verdict}"

    def text(self, verbose: bool = False, width: int = 80) -> str:
        """One screen of text; everything with `verbose`."""
        return report_text(self, verbose, width)

    def table(self, all: bool = False) -> Grid:
        rows = [[item.severity, item.name, item.title, str(item.prescription or "")] for item in self.findings]
        return Grid(["severity", "name", "what", "fix"], rows, names=(), wrapped=(2, 3), left=(0, 1))

    def records(self) -> list[dict[str, Any]]:
        return [plain(item) for item in self.findings]

    def plot(self, path: str | Path | None = None) -> Any:
        """The stream along the depth: measured, predicted, and under the fix."""
        from sigprop.results.figures import report_figure

        return report_figure(self, path)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        margins = "".join(f"<li>{html.escape(str(item))}</li>" for item in self.margins)
        findings = "".join(item._repr_html_() for item in self.findings if item.severity != "note")
        notes = sum(item.severity == "note" for item in self.findings)
        more = (
            f"<p>{notes} more note{'s' * (notes > 1)}: <code>print(report.text(verbose=True))</code></p>"
            if notes
            else ""
        )
        listed = f"<b>Margins</b><ul>{margins}</ul>" if margins else ""
        return f"<h4>{html.escape(self.summary())}</h4>{findings}{listed}{more}"

    def to_html(self, path: str | Path) -> Path:
        """Write the whole diagnosis as one HTML file: charts inline, no script, no network."""
        from sigprop.report.html import write_html

        return write_html(self, path)

    def fails(self, level: str) -> bool:
        """Whether there is a finding at this severity or a worse one."""
        require(level in SEVERITIES, "level", level, f"one of {', '.join(SEVERITIES)}")
        return any(SEVERITIES.index(item.severity) <= SEVERITIES.index(level) for item in self.findings)

    def derived(self) -> dict[str, Any]:
        return {"kind": "sigprop report", "verdict": self.verdict}
