"""The page of the explorer, and the answer to what it asks: charts as SVG, sentences, numbers and Python."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from html import escape
from importlib.resources import files
from typing import Any

from sigprop.errors import InputError
from sigprop.report.html import ENVIRONMENT
from sigprop.report.svg import Line, PixelScale, chart, short
from sigprop.research.explorer.controls import ARCHITECTURES, Choice, Control, read_settings
from sigprop.research.explorer.own import NAME
from sigprop.research.explorer.views import View, view
from sigprop.research.phase.diagram import PhaseDiagram

WIDTH, HEIGHT = 420, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 26, 52
LIMIT = 2.0
"""Where a colour is full: chi_J of this, or of one over it."""
LABELS = {"gain": "weights of blocks, times", "skip": "skip", "sigma_b": "sigma_b"}


def heat_map(title: str, diagram: PhaseDiagram, mark: tuple[float, float]) -> str:
    """chi_J in full colour from `1 / LIMIT` to `LIMIT`; `mark` is the point that is looked at."""
    across, up = _edges(diagram.x), _edges(diagram.y)
    x = PixelScale(across[0], across[-1], LEFT, WIDTH - RIGHT)
    y = PixelScale(up[0], up[-1], HEIGHT - BOTTOM, TOP)
    cells = [
        _cell(x(across[j]), y(up[i + 1]), x(across[j + 1]), y(up[i]), diagram.chi[i][j])
        for i in range(len(diagram.y))
        for j in range(len(diagram.x))
    ]
    parts = [f'<text class="title" x="{LEFT}" y="14">{escape(title)}</text>', *cells, *_axes(diagram, x, y)]
    at = (x(min(max(mark[0], across[0]), across[-1])), y(min(max(mark[1], up[0]), up[-1])))
    parts += [f'<circle class="mark" r="5" cx="{at[0]:.1f}" cy="{at[1]:.1f}"/>', _key()]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" class="chart heat" '
        'shape-rendering="crispEdges">' + "".join(parts) + "</svg>"
    )


def _edges(values: Sequence[float]) -> list[float]:
    """Borders of cells around evenly spaced values."""
    half = (values[1] - values[0]) / 2
    return [round(values[0] - half, 12), *(round(value + half, 12) for value in values)]


def _cell(left: float, top: float, right: float, bottom: float, chi: float) -> str:
    shape = f'x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}"'
    if not math.isfinite(chi):
        return f'<rect class="unknown" {shape}/>'
    strength = min(abs(math.log(max(chi, 1e-300))) / math.log(LIMIT), 1.0)
    return f'<rect class="{"chaotic" if chi > 1 else "ordered"}" fill-opacity="{strength:.2f}" {shape}/>'


def _axes(diagram: PhaseDiagram, x: PixelScale, y: PixelScale) -> list[str]:
    parts = []
    for tick in x.ticks():
        parts.append(
            f'<text class="tick" x="{x(tick):.1f}" y="{HEIGHT - BOTTOM + 13}" text-anchor="middle">{short(tick)}</text>'
        )
    for tick in y.ticks():
        parts.append(f'<text class="tick" x="{LEFT - 5}" y="{y(tick) + 3:.1f}" text-anchor="end">{short(tick)}</text>')
    names = [escape(LABELS.get(name, name)) for name in (diagram.x_name, diagram.y_name)]
    middle, height = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{HEIGHT - BOTTOM + 27}" text-anchor="middle">{names[0]}</text>')
    parts.append(
        f'<text class="tick" transform="translate(12 {height}) rotate(-90)" text-anchor="middle">{names[1]}</text>'
    )
    return parts


def _key() -> str:
    """What the colours say."""
    parts, step, start, line = [], 14, LEFT, HEIGHT - 16
    steps = [LIMIT ** (place / 4) for place in range(-4, 5)]
    for place, chi in enumerate(steps):
        parts.append(_cell(start + 110 + place * step, line, start + 110 + (place + 1) * step, line + 9, chi))
    parts.append(
        f'<text class="tick" x="{start + 104}" y="{line + 8}" text-anchor="end">ordered, chi = {1 / LIMIT:g}</text>'
    )
    parts.append(
        f'<text class="tick" x="{start + 116 + len(steps) * step}" y="{line + 8}">chi = {LIMIT:g}, chaotic</text>'
    )
    return "".join(parts)


KINDS = {"a": "predicted", "b": "measured"}
"""Which colour of the report's style each of the two settings has."""
TITLES = {
    "variance": ("variance of the stream", True),
    "grad_variance": ("variance of its gradient", True),
    "token_correlation": ("correlation of {}", False),
    "entropy": ("entropy of attention, nats", False),
}


@lru_cache
def page_text() -> str:
    controls = {
        name: {
            "controls": {key: _control(control) for key, control in item.controls.items()},
            "start": asdict(item.start),
        }
        for name, item in ARCHITECTURES.items()
    }
    return ENVIRONMENT.get_template("explore.html").render(controls=controls)


@lru_cache
def script_text() -> str:
    return files("sigprop.report").joinpath("templates/explore.js").read_text(encoding="utf-8")


def answer(given: Mapping[str, str]) -> dict[str, Any]:
    """What the page shows for `a.depth=24&...&b.depth=48&...`; without any `b.` one setting alone."""
    started = time.perf_counter()
    views = {side: view(read_settings(texts)) for side, texts in _sides(given).items()}
    return {
        "charts": _charts(views),
        "planes": {side: _plane(side, item) for side, item in views.items()},
        "sentences": {side: item.sentences for side, item in views.items()},
        "status": {side: item.status for side, item in views.items()},
        "python": python(views),
        "milliseconds": round(1e3 * (time.perf_counter() - started)),
    }


def _sides(given: Mapping[str, str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {"a": {}}
    for key, value in given.items():
        side, dot, name = key.partition(".")
        if side not in KINDS or not dot:
            raise InputError(f"{key[:40]!r} is not allowed: needs a.NAME or b.NAME")
        found.setdefault(side, {})[name] = value
    return dict(sorted(found.items()))


def _charts(views: Mapping[str, View]) -> list[str]:
    drawn = []
    for column, (title, logarithmic) in TITLES.items():
        found = {side: item.curves[column] for side, item in views.items() if item.curves.get(column)}
        between = dict.fromkeys(ARCHITECTURES[item.settings.architecture].between for item in views.values())
        lines = [
            Line(side.upper(), KINDS[side], tuple(range(1, len(values) + 1)), tuple(values))
            for side, values in found.items()
        ]
        positive = all(value > 0 for line in lines for value in line.y if math.isfinite(value))
        drawn.append(chart(title.format(" and ".join(between)), lines, logarithmic and positive))
    return [item for item in drawn if item]


def _plane(side: str, item: View) -> str:
    if item.plane is None:
        return ""
    block = item.plane.settings["block"]
    return heat_map(f"{side.upper()}: chi_J of block {block}, around the settings", item.plane, item.mark)


def python(views: Mapping[str, View]) -> str:
    """A script that makes what is shown."""
    if any(item.settings.architecture == NAME for item in views.values()):
        return "\n".join(item.code for item in views.values())
    names = dict.fromkeys(item.code.partition("(")[0].rpartition(" ")[2] for item in views.values())
    lines = [
        f"from sigprop.blueprints import {', '.join(sorted(names))}, predict",
        "from sigprop.research.phase.predicted import plane_around",
        "",
    ]
    for side, item in views.items():
        lines.append(item.code.replace("blueprint = ", f"{side} = ", 1))
    for side, item in views.items():
        lines += ["", f"print(predict({side}, scores=True))"]
        if item.plane is not None:
            x, y = (_evenly(axis) for axis in (item.plane.x, item.plane.y))
            lines.append(f"plane_{side} = plane_around({side}, {x}, {y})")
    return "\n".join(lines) + "\n"


def _evenly(values: list[float]) -> str:
    """Python of the middles of evenly spaced cells that begin at zero."""
    return f"[{2 * values[0]!r} * (i + 0.5) for i in range({len(values)})]"


def _control(control: Control) -> dict[str, Any]:
    return {"names": control.names} if isinstance(control, Choice) else asdict(control)


def as_json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode()
