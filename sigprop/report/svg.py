"""Line charts as inline SVG: no script, colours from the page's style, names escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 420, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 26, 30
TICKS = 5


@dataclass(frozen=True)
class Line:
    """One curve: `kind` is its class in the style, `errors` make a band of two of them to either side."""

    label: str
    kind: str
    x: Sequence[float]
    y: Sequence[float]
    errors: Sequence[float] = ()


@dataclass(frozen=True)
class PixelScale:
    """From numbers to pixels, straight or in logarithms; `level` where all numbers are one."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False
    level: float | None = None

    def __call__(self, value: float) -> float:
        place = math.log(value) if self.logarithmic else value
        return self.start + (place - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.level is not None:
            return [self.level]
        if not self.logarithmic:
            step = _round_step((self.high - self.low) / (TICKS - 1))
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            return [step * place for place in range(first, last + 1)]
        first, last = math.ceil(self.low / math.log(10)), math.floor(self.high / math.log(10))
        step = max(1, math.ceil((last - first + 1) / TICKS))
        found = [10.0**power for power in range(first, last + 1, step)]
        return found if len(found) > 1 else [math.exp(self.low), math.exp(self.high)]


def chart(title: str, lines: Sequence[Line], logarithmic: bool = False, x_label: str = "block") -> str:
    """One chart; empty when nothing can be drawn."""
    points = [
        [
            (x, y, e)
            for x, y, e in zip(line.x, line.y, line.errors or [math.nan] * len(line.x), strict=True)
            if math.isfinite(y) and (y > 0 or not logarithmic)
        ]
        for line in lines
    ]
    flat = [point for found in points for point in found]
    if len(flat) < 2:
        return ""
    x = _scale([p[0] for p in flat], LEFT, WIDTH - RIGHT, False)
    ends = [end for _, value, error in flat if math.isfinite(error) for end in _ends(value, error, logarithmic)]
    y = _scale([*(p[1] for p in flat), *ends], HEIGHT - BOTTOM, TOP, logarithmic)
    drawn = [_axes(title, x, y, x_label)]
    for line, found in zip(lines, points, strict=True):
        if found:
            drawn += [_band(found, x, y, line.kind), _path(found, x, y, line)]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" class="chart">'
        + "".join(drawn)
        + _legend(lines)
        + "</svg>"
    )


def _scale(values: Sequence[float], start: float, end: float, logarithmic: bool) -> PixelScale:
    """What is constant but for a percent is shown as constant; an axis covers a factor of 1.5 or a fifth."""
    places = [math.log(value) for value in values] if logarithmic else list(values)
    low, high = min(places), max(places)
    least = 0.01 if logarithmic else 0.01 * max(abs(low), abs(high))
    if start < end and high > low:
        return PixelScale(low, high, start, end, logarithmic)
    if high - low > least:
        span = math.log(1.5) if logarithmic else 0.2 * max(abs(low), abs(high))
        margin = max((high - low) * 0.05, (span - (high - low)) / 2)
        return PixelScale(low - margin, high + margin, start, end, logarithmic)
    margin = 0.5 if logarithmic else max(abs(high), 1.0) * 0.1
    return PixelScale(low - margin, high + margin, start, end, logarithmic, values[0])


def _round_step(least: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    unit = 10.0 ** math.floor(math.log10(least))
    return next(unit * part for part in (1, 2, 5, 10) if unit * part >= least * 0.999)


def _axes(title: str, x: PixelScale, y: PixelScale, x_label: str) -> str:
    parts = [f'<text class="title" x="{LEFT}" y="14">{escape(title)}</text>']
    for tick in y.ticks():
        place = y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{place:.1f}" y2="{place:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 5}" y="{place + 3:.1f}" text-anchor="end">{short(tick)}</text>')
    for tick in sorted({round(value) for value in x.ticks() if x.low <= round(value) <= x.high}):
        parts.append(
            f'<text class="tick" x="{x(tick):.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{tick}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{HEIGHT - 3}" text-anchor="middle">{escape(x_label)}</text>')
    return "".join(parts)


def _band(points: Sequence[tuple[float, float, float]], x: PixelScale, y: PixelScale, kind: str) -> str:
    known = [point for point in points if math.isfinite(point[2])]
    if len(known) < 2:
        return ""
    ends = [_ends(point[1], point[2], y.logarithmic) for point in known]
    upper = [f"{x(p[0]):.1f},{y(end[1]):.1f}" for p, end in zip(known, ends, strict=True)]
    lower = [f"{x(p[0]):.1f},{y(end[0]):.1f}" for p, end in zip(reversed(known), reversed(ends), strict=True)]
    return f'<polygon class="band {kind}" points="{" ".join(upper + lower)}"/>'


def _ends(value: float, error: float, logarithmic: bool) -> tuple[float, float]:
    """Two standard deviations to either side; in logarithms those of the lognormal that has this mean and error."""
    if not logarithmic:
        return value - 2 * error, value + 2 * error
    spread = math.log1p((error / value) ** 2)
    return tuple(value * math.exp(-spread / 2 + side * 2 * spread**0.5) for side in (-1, 1))  # type: ignore[return-value]


def _path(points: Sequence[tuple[float, float, float]], x: PixelScale, y: PixelScale, line: Line) -> str:
    places = [f"{x(p[0]):.1f},{y(p[1]):.1f}" for p in points]
    drawn = f'<polyline class="line {line.kind}" points="{" ".join(places)}"/>'
    if line.kind == "measured" and len(places) <= 64:
        drawn += "".join(
            f'<circle class="dot measured" r="2" cx="{place.partition(",")[0]}" cy="{place.partition(",")[2]}"/>'
            for place in places
        )
    return drawn


def _legend(lines: Sequence[Line]) -> str:
    parts, right = [], WIDTH - RIGHT
    for line in reversed(lines):
        right -= 6 * len(line.label) + 22
        parts.append(f'<line class="line {line.kind}" x1="{right}" x2="{right + 14}" y1="10" y2="10"/>')
        parts.append(f'<text class="tick" x="{right + 18}" y="13">{escape(line.label)}</text>')
    return "".join(parts)


def short(value: float) -> str:
    return f"{value:.3g}"
