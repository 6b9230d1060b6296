"""A report as one HTML file: data and charts inline, no script, no network, light and dark, printable."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from sigprop.grid import clean, counted, number
from sigprop.report.svg import Line, chart
from sigprop.results.files import write_whole
from sigprop.results.report import Curve, Report
from sigprop.sites import pattern

CHARTS = (
    ("variance", "variance of the stream", True),
    ("grad_variance", "variance of its gradient", True),
    ("token_correlation", "token correlation", False),
    ("score_variance", "variance of the scores", True),
    ("entropy", "entropy of attention, nats", False),
    ("largest_weight", "largest attention weight", False),
)
ENVIRONMENT = Environment(
    loader=PackageLoader("sigprop.report", "templates"),
    autoescape=select_autoescape(default=True, default_for_string=True),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters |= {"clean": clean, "counted": counted, "number": number}


def html_page(report: Report, command: str = "") -> str:
    """The whole page as text."""
    now = {"predicted": "predicted", "measured": "measured"}
    after = {"prescribed": "with the fix", "measured" if report.measured is not None else "predicted": "before"}
    return ENVIRONMENT.get_template("report.html").render(
        report=report,
        meta=report.meta,
        charts=_charts(report.curves, now),
        after=_charts(report.curves, after) if any(curve.kind == "prescribed" for curve in report.curves) else [],
        banded=any(curve.errors and curve.kind == "predicted" for curve in report.curves),
        command=command or "sigprop check MODEL --html report.html",
        plan=_plan_lines(report),
    )


def write_html(report: Report, path: str | Path, command: str = "") -> Path:
    """Write the page; folders that are missing are made."""
    write_whole(Path(path), html_page(report, command))
    return Path(path)


def _charts(curves: Sequence[Curve], kinds: Mapping[str, str]) -> list[Markup]:
    """A chart for every column; `kinds` are those of curves, each with its word in the legend."""
    drawn = []
    for column, title, logarithmic in CHARTS:
        found = [curve for kind in kinds for curve in curves if curve.column == column and curve.kind == kind]
        lines = [Line(kinds[curve.kind], curve.kind, curve.depth, curve.values, curve.errors) for curve in found]
        positive = all(value > 0 for line in lines for value in line.y if math.isfinite(value))
        drawn.append(chart(title, lines, logarithmic and positive))
    return [Markup(item) for item in drawn if item]


def _plan_lines(report: Report) -> list[tuple[str, str]]:
    """Of the plan how it initializes, families of parameters as one line."""
    if report.plan is None:
        return []
    lines: dict[tuple[str, str], int] = {}
    for row in report.plan.parameters:
        key = (pattern(row.name), row.init.kind if row.init.kind != "keep" or row.init.value == 1.0 else "rescale")
        lines[key] = lines.get(key, 0) + 1
    return [(f"{name} ({count})" if count > 1 else name, kind) for (name, kind), count in lines.items()][:200]


# -- a watched run, with the style, the findings and the charts of a report

KINDS = {"first": "predicted", "median": "measured", "worst": "prescribed"}
"""Which colour of the style a line of a family has."""
Series = Mapping[str, Sequence[tuple[float, float]]]
MOST_CHARTS = 60
MOST_ROWS = 400


def run_page(
    report: Report, series: Series, last: Sequence[tuple[str, float, str]], command: str = "watch.report(path)"
) -> str:
    """The page as text; `series` are (step, value) points by key, `COLUMN/FAMILY/first` and so on."""
    return ENVIRONMENT.get_template("run.html").render(
        report=report,
        meta=report.meta,
        overall=_drawn({key: [key] for key in series if key.startswith("run/")}, series),
        families=_drawn(_families(series), series),
        last=last[:MOST_ROWS],
        command=command,
    )


def _families(series: Series) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key in series:
        if not key.startswith("run/"):
            found.setdefault(key.rpartition("/")[0] if key.rpartition("/")[2] in KINDS else key, []).append(key)
    return found


def _drawn(groups: Mapping[str, Sequence[str]], series: Series) -> list[Markup]:
    drawn = []
    for title, keys in list(groups.items())[:MOST_CHARTS]:
        lines = [_line(key, series[key]) for key in keys]
        values = [value for line in lines for value in line.y if math.isfinite(value)]
        wide = bool(values) and min(values) > 0 and max(values) > 10 * min(values)
        drawn.append(chart(title, lines, logarithmic=wide, x_label="step"))
    return [Markup(item) for item in drawn if item]


def _line(key: str, points: Sequence[tuple[float, float]]) -> Line:
    name = key.rpartition("/")[2]
    steps, values = zip(*points, strict=True)
    return Line(name if name in KINDS else "", KINDS.get(name, "measured"), steps, values)
