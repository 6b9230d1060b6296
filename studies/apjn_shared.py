"""What the apjn experiments share: axes, storing data beside the figure, a progress line."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sigprop.research.phase.diagram import PhaseDiagram
from sigprop.research.phase.figure import Panel, phase_figure


def axis(low: float, high: float, count: int) -> list[float]:
    """Evenly spaced values, rounded so that files stay small."""
    return [round(low + (high - low) * i / (count - 1), 6) for i in range(count)]


def progress(label: str):
    """A callback that keeps one line on the terminal."""

    def show(done: int, total: int) -> None:
        end = "\n" if done == total else "\r"
        print(f"{label}: {done}/{total} initializations", end=end, file=sys.stderr, flush=True)

    return show


def store(name: str, command: str, out: Path, diagrams: Sequence[PhaseDiagram], **more: Any) -> Path:
    """Write the numbers behind a figure to data/NAME.json."""
    record = {"command": command, **more, "panels": [_rounded(d.to_dict()) for d in diagrams]}
    path = out / "data" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record) + "\n")
    return path


def publish(
    name: str,
    panels: Sequence[Panel],
    out: Path,
    initializations: int,
    points: int,
    columns: int = 2,
    limit: float = 2.0,
) -> None:
    """Store the diagrams with the command that made them, and draw them."""
    command = f"python -m studies.{name} --initializations {initializations} --points {points}"
    store(name, command, out, [panel.diagram for panel in panels])
    phase_figure(panels, out / "figures" / f"{name}.png", columns=columns, limit=limit)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value


def rounded(values: Sequence[float]) -> list[float]:
    """Numbers with five significant digits."""
    return [float(f"{value:.5g}") for value in values]


def spread_of(panel: dict[str, Any], level: int | None = None) -> str:
    """The range of chi_J over a stored diagram, or over one of its rows."""
    values = [value for row in _rows(panel, level) for value in row if value is not None]
    return f"{min(values):.3g} to {max(values):.3g}"


def share_critical(panel: dict[str, Any], level: int | None = None, within: float = 0.06) -> float:
    """The share of points whose chi_J is 1 up to `within`."""
    values = [value for row in _rows(panel, level) for value in row if value is not None]
    return sum(abs(value - 1.0) <= within for value in values) / len(values)


def _rows(panel: dict[str, Any], level: int | None) -> list[list[float]]:
    return panel["chi"] if level is None else [panel["chi"][level]]
