"""A watched run as one HTML file, with the style, the findings and the charts of a report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from sigprop.report.html import ENVIRONMENT
from sigprop.report.svg import Line, chart
from sigprop.results.report import Report

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
