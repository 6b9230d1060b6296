"""From settings to what the page shows of them: curves by depth, the plane around them, a verdict, and their Python."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from typing import Any

from sigprop.blueprints import Blueprint, Transformer, predict
from sigprop.checks.thresholds import limit
from sigprop.errors import SigpropError
from sigprop.grid import factor, number
from sigprop.research.explorer import own
from sigprop.research.explorer.controls import ARCHITECTURES, ExplorerSettings
from sigprop.research.phase.diagram import PhaseDiagram
from sigprop.research.phase.predicted import plane_around
from sigprop.research.stack_laws import added_shares, block_rows
from sigprop.results import Profile

COLUMNS = ("variance", "grad_variance", "token_correlation", "entropy")
POINTS = 16
GAINS = [0.2 * (place + 0.5) for place in range(POINTS)]
REMEMBERED = 64


@dataclass(frozen=True)
class View:
    """What one choice of settings predicts: `mark` is where it stands in the plane, `sentences` (severity, what)."""

    settings: ExplorerSettings
    curves: dict[str, list[float]]
    plane: PhaseDiagram | None
    mark: tuple[float, float]
    sentences: list[tuple[str, str]]
    status: str
    code: str


@lru_cache(maxsize=REMEMBERED)
def view(settings: ExplorerSettings) -> View:
    """Predicted, in about a tenth of a second where tokens are exchangeable; remembered."""
    if settings.architecture == own.NAME:
        return _own(settings)
    blueprint = ARCHITECTURES[settings.architecture].blueprint(settings)
    code = python_of(blueprint)
    try:
        profile = predict(blueprint, scores=True)
    except SigpropError as error:
        return View(settings, {}, None, (1.0, 0.0), [("problem", str(error))], "", code)
    curves = curves_of(profile)
    plane, mark = _plane(blueprint)
    status = f"{block_rows(profile.sites)[-1].status}: {block_rows(profile.sites)[-1].reason}"
    return View(settings, curves, plane, mark, verdict(curves, sensitivity(blueprint, profile)), status, code)


def _own(settings: Any) -> View:
    try:
        curves, overwritten, status, code = own.own_view(settings)
    except SigpropError as error:
        return View(settings, {}, None, (1.0, 0.0), [("problem", str(error))], "", "")
    return View(settings, curves, None, (1.0, 0.0), verdict(curves, overwritten), status, code)


def curves_of(profile: Profile) -> dict[str, list[float]]:
    """By block: variance, gradient variance and correlation of the stream; by attention: the entropy."""
    rows = block_rows(profile.sites)
    found = {column: [float(getattr(row, column)) for row in rows] for column in COLUMNS[:3]}
    return found | {"entropy": [row.extras["entropy"] for row in profile.sites if "entropy" in row.extras]}


def sensitivity(blueprint: Blueprint, profile: Profile) -> float:
    """What branches add relative to their skips, in all, where a norm reads every sum; else 0."""
    post = isinstance(blueprint, Transformer) and blueprint.norm_placement == "post"
    return sum(added_shares(blueprint, profile.sites)) if post else 0.0  # type: ignore[arg-type]


def _plane(blueprint: Blueprint) -> tuple[PhaseDiagram | None, tuple[float, float]]:
    """chi_J around the settings, and where they stand."""
    is_plain = blueprint.name == "mlp" and not blueprint.mu  # type: ignore[attr-defined]
    height = 0.0 if is_plain else float(getattr(blueprint, "skip_scale", getattr(blueprint, "mu", 1.0)))
    top = max(1.5, 1.25 * height)
    try:
        plane = plane_around(blueprint, GAINS, [top * (place + 0.5) / POINTS for place in range(POINTS)])
    except SigpropError:
        return None, (1.0, height)
    return plane, (1.0, height)


def verdict(curves: dict[str, list[float]], overwritten: float = 0.0) -> list[tuple[str, str]]:
    """Sentences by the limits of `sigprop check`; one that says healthy where none is passed."""
    variance, gradient, correlation = (curves[column] for column in COLUMNS[:3])
    growth, ratio, similar = _ratio(variance[-1], variance[0]), _ratio(gradient[0], gradient[-1]), correlation[-1]
    found = []
    if severity := _severity(growth, "stream_growth"):
        word = "grows" if growth > 1 else "shrinks"
        found.append((severity, f"the signal {word} {factor(_size(growth))} in variance from first to last block"))
    if severity := _severity(ratio, "gradient_ratio"):
        word = "larger" if ratio > 1 else "smaller"
        found.append((severity, f"at the first block the gradient is {factor(_size(ratio))} {word} than at the last"))
    if overwritten > limit("sensitivity"):
        severity = "problem" if overwritten > limit("sensitivity_problem") else "warning"
        found.append(
            (severity, f"branches overwrite the stream: they add {number(overwritten)} times their skips in all")
        )
    if similar > limit("rank_collapse"):
        severity = "problem" if similar > limit("rank_collapse_problem") else "warning"
        place = next(block for block, value in enumerate(correlation, 1) if value > limit("rank_collapse"))
        found.append((severity, f"rank collapse: correlation passes {limit('rank_collapse')} at block {place}"))
    margins = (
        f"signal {factor(growth)} forward, gradient {factor(ratio)} backward, correlation {number(similar)} at the end"
    )
    return found or [("healthy", f"healthy: {margins}")]


def _severity(value: float, name: str) -> str:
    """By how far a ratio is from one; empty within the limit."""
    size = _size(value)
    return "problem" if size > limit(f"{name}_problem") else "warning" if size > limit(name) else ""


def _size(value: float) -> float:
    return max(value, 1 / value) if value > 0 and math.isfinite(value) else math.nan


def _ratio(top: float, bottom: float) -> float:
    return top / bottom if bottom else math.nan


def python_of(blueprint: Blueprint) -> str:
    """Python that makes the curves and the plane of a blueprint."""
    kind = type(blueprint)
    given = [field for field in fields(blueprint) if field.init and _set(blueprint, field)]
    options = ", ".join(f"{field.name}={_literal(getattr(blueprint, field.name))}" for field in given)
    return f"blueprint = {kind.__name__}({options})"


def _set(blueprint: Blueprint, field: Any) -> bool:
    value = getattr(blueprint, field.name)
    if field.name == "depth" or field.default is MISSING:
        return True
    derived = field.name == "key_value_heads" or (field.name == "tokens" and blueprint.name == "vit")
    return not derived and value != field.default


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return repr(value)
