"""A phase diagram as inline SVG: blue where ordered, red where chaotic, the paper's colour where critical."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from sigprop.report.svg import PixelScale, short
from sigprop.research.phase.diagram import PhaseDiagram

WIDTH, HEIGHT = 420, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 26, 52
LABELS = {"gain": "weights of blocks, times", "skip": "skip", "sigma_b": "sigma_b"}


def heat_map(title: str, diagram: PhaseDiagram, mark: tuple[float, float] | None = None, limit: float = 2.0) -> str:
    """chi_J in full colour from `1 / limit` to `limit`; `mark` is the point that is looked at."""
    across, up = _edges(diagram.x), _edges(diagram.y)
    x = PixelScale(across[0], across[-1], LEFT, WIDTH - RIGHT)
    y = PixelScale(up[0], up[-1], HEIGHT - BOTTOM, TOP)
    cells = [
        _cell(x(across[j]), y(up[i + 1]), x(across[j + 1]), y(up[i]), diagram.chi[i][j], limit)
        for i in range(len(diagram.y))
        for j in range(len(diagram.x))
    ]
    parts = [f'<text class="title" x="{LEFT}" y="14">{escape(title)}</text>', *cells, *_axes(diagram, x, y)]
    if mark is not None:
        at = (x(min(max(mark[0], across[0]), across[-1])), y(min(max(mark[1], up[0]), up[-1])))
        parts.append(f'<circle class="mark" r="5" cx="{at[0]:.1f}" cy="{at[1]:.1f}"/>')
    parts.append(_key(limit))
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" class="chart heat" '
        'shape-rendering="crispEdges">' + "".join(parts) + "</svg>"
    )


def _edges(values: Sequence[float]) -> list[float]:
    """Borders of cells around evenly spaced values."""
    half = (values[1] - values[0]) / 2
    return [round(values[0] - half, 12), *(round(value + half, 12) for value in values)]


def _cell(left: float, top: float, right: float, bottom: float, chi: float, limit: float) -> str:
    shape = f'x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}"'
    if not math.isfinite(chi):
        return f'<rect class="unknown" {shape}/>'
    strength = min(abs(math.log(max(chi, 1e-300))) / math.log(limit), 1.0)
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


def _key(limit: float) -> str:
    """What the colours say."""
    parts, step, start, line = [], 14, LEFT, HEIGHT - 16
    steps = [limit ** (place / 4) for place in range(-4, 5)]
    for place, chi in enumerate(steps):
        parts.append(_cell(start + 110 + place * step, line, start + 110 + (place + 1) * step, line + 9, chi, limit))
    parts.append(
        f'<text class="tick" x="{start + 104}" y="{line + 8}" text-anchor="end">ordered, chi = {1 / limit:g}</text>'
    )
    parts.append(
        f'<text class="tick" x="{start + 116 + len(steps) * step}" y="{line + 8}">chi = {limit:g}, chaotic</text>'
    )
    return "".join(parts)
