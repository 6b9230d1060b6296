"""The page of the explorer, and the answer to what it asks: charts as SVG, sentences, numbers and Python."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from importlib.resources import files
from typing import Any

from sigprop.errors import InputError
from sigprop.report.html import ENVIRONMENT
from sigprop.report.svg import Line, chart
from sigprop.research.explorer.controls import ARCHITECTURES, Choice, Control, read_settings
from sigprop.research.explorer.heat_map import heat_map
from sigprop.research.explorer.own import NAME
from sigprop.research.explorer.views import View, view

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
