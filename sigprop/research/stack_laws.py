"""Laws of a whole Transformer, read off its predicted profile: growth, rank collapse, sensitivity.

`SCALINGS` names the residual scalings that dslm compares in its Table 3; `stack_laws` puts numbers where that table
has orders.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sigprop.blueprints.prediction import predict
from sigprop.blueprints.transformer import NORMS, Transformer
from sigprop.errors import UnknownNameError, require
from sigprop.plans.recipes.schemes.sums import layer_scale_start
from sigprop.results import SiteRow

CONSTANT_RANGE = 3.0
LINEAR_ERROR = 0.1
COLLAPSED = 0.99
BRANCH = re.compile(r".*blocks\.(\d+)\.(?:attention|cross_attention|mlp)")


@dataclass(frozen=True)
class Growth:
    """`kind` with its number: `rate` per layer (exponential), `exponent` (power), and the total factor."""

    kind: str
    number: float
    total: float
    residual: float

    def __str__(self) -> str:
        words = {
            "constant": f"constant (x{self.total:.3g} in all)",
            "linear": f"linear, {self.number:+.3g} per layer",
            "power": f"hyperbolic, depth^{self.number:+.3g}",
            "exponential": f"exponential, x{math.exp(self.number):.4g} per layer",
        }
        return words[self.kind]


def growth_class(values: Sequence[float], depths: Sequence[float] | None = None) -> Growth:
    """The simplest law that fits positive values over depths (layers 1, 2, ... unless given).

    Constant when the extreme values are within a factor of 3. Otherwise linear, `y = a + b n`, if that fits within
    10 %; otherwise the better of a power, `log y = a + c log(n + n0)` (the hyperbolic law of Pre-LN gradients), and an
    exponential, `log y = a + c n`. Errors are root mean squares of `log y`.
    """
    y = np.asarray(values, dtype=float)
    require(y.ndim == 1 and len(y) >= 4, "values", y.shape, "a sequence of at least 4 depths")
    require(bool((y > 0).all() and np.isfinite(y).all()), "values", values, "finite positive numbers")
    total = float(y[-1] / y[0])
    if y.max() / y.min() <= CONSTANT_RANGE:
        return Growth("constant", 0.0, total, float(np.log(y).std(ddof=1)))
    n = np.arange(1.0, len(y) + 1) if depths is None else np.asarray(depths, dtype=float)
    require(n.shape == y.shape, "depths", n.shape, f"as many as values, {len(y)}")
    slope, fitted = _line(n, y)
    error = _rms(np.log(y / fitted)) if (fitted > 0).all() else math.inf
    if error <= LINEAR_ERROR:
        return Growth("linear", slope, total, error)
    kinds = [("exponential", n), *(("power", np.log(n + offset)) for offset in np.linspace(0.0, 20.0, 81))]
    fits = [(kind, *_line(places, np.log(y))) for kind, places in kinds]
    kind, slope, fitted = min(fits, key=lambda fit: _rms(np.log(y) - fit[2]))
    return Growth(kind, slope, total, _rms(np.log(y) - fitted))


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    slope, intercept = np.polyfit(x, y, 1)
    return float(slope), intercept + slope * x


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x**2)))


SCALINGS: dict[str, Callable[[int], dict[str, Any]]] = {
    "vanilla": lambda depth: {"init": "xavier"},
    "deepscale": lambda depth: {
        "init": "deepscale",
        "skip_scale": (1 - 2 / depth) ** 0.5,
        "branch_scale": (2 / depth) ** 0.5,
    },
    "ds_init": lambda depth: {"init": "xavier", "branch_scale": [1.0 / layer for layer in range(1, depth + 1)]},
    "layer_scale": lambda depth: {"init": "xavier", "branch_scale": layer_scale_start(depth)},
    "deepnorm": lambda depth: {
        "init": "xavier",
        "skip_scale": (2 * depth) ** 0.25,
        "branch_scale": (8 * depth) ** -0.5,
    },
}


def scaled_transformer(scaling: str, depth: int, **settings: Any) -> Transformer:
    """A Transformer under one of `SCALINGS`.

    DS-Init divides both weights of a branch by the root of the layer's number, DeepNorm scales two weights of a
    branch by `(8N)^-1/4`: both are written here as the equivalent branch scale.
    """
    if scaling not in SCALINGS:
        raise UnknownNameError("scaling", scaling, SCALINGS)
    return Transformer(depth=depth, **{**SCALINGS[scaling](depth), **settings})


@dataclass(frozen=True)
class StackLaws:
    """What a stack does from end to end.

    `forward_ratio` is the variance of the last block over that of the first, `gradient_ratio` the gradient variance
    of the first block over that of the last; `collapse_layer` the first block whose token correlation passes
    `COLLAPSED`, if any; sensitivity the relative variance that branches add, summed (mean) or robustly (median).
    """

    forward_ratio: float
    gradient_ratio: float
    correlation: float
    gradient_correlation: float
    collapse_layer: int | None
    sensitivity_mean: float
    sensitivity_median: float


def stack_laws(blueprint: Transformer) -> StackLaws:
    """The laws of one stack, predicted."""
    sites = predict(blueprint).sites
    rows, shares = block_rows(sites), added_shares(blueprint, sites)
    passed = [index for index, row in enumerate(rows) if row.token_correlation > COLLAPSED]
    return StackLaws(
        rows[-1].variance / rows[0].variance,
        rows[0].grad_variance / rows[-1].grad_variance,
        rows[-1].token_correlation,
        rows[0].grad_token_correlation,
        passed[0] if passed else None,
        len(shares) * statistics.fmean(shares),
        len(shares) * statistics.median(shares),
    )


def depth_laws(scaling: str, depths: tuple[int, ...] = (24, 48, 96, 192), **settings: Any) -> tuple[Growth, Growth]:
    """How the forward and the gradient ratio of a scaling grow as the stack gets deeper (dslm Table 3)."""
    laws = [stack_laws(scaled_transformer(scaling, depth, **settings)) for depth in depths]
    forward = growth_class([law.forward_ratio for law in laws], depths)
    backward = growth_class([law.gradient_ratio for law in laws], depths)
    return forward, backward


def block_rows(sites: list[SiteRow]) -> list[SiteRow]:
    """Whole blocks, in order."""
    return [row for row in sites if row.name.rpartition(".")[2].isdigit()]


def added_shares(blueprint: Transformer, sites: Iterable[SiteRow]) -> list[float]:
    """Per branch: the variance that it adds, relative to its skip (the sensitivity of dslm 5.6)."""
    epsilon = NORMS[blueprint.norm]().epsilon
    found, skip = [], 1.0
    for row in sites:
        block = BRANCH.fullmatch(row.name)
        if block is None:
            skip = skip if row.name.endswith(("_residual", ".scores")) else row.variance
            continue
        branch, kept = (_at(scale, int(block[1])) for scale in (blueprint.branch_scale, blueprint.skip_scale))
        size = row.variance / (row.variance + epsilon) if blueprint.norm_placement == "sandwich" else row.variance
        added, kept = branch**2 * size, kept**2 * skip
        found.append(added / kept)
        skip = added + kept
        if blueprint.norm_placement == "post":
            skip = skip / (skip + epsilon)
    return found


def _at(scale: Any, layer: int) -> float:
    return float(scale[layer]) if isinstance(scale, (list, tuple)) else float(scale)
