"""What a width and depth rule expects of every size in a coordinate check, as exponents of width or depth.

Exponents are least squares of log size on log width (or depth), with their 95 percent intervals. Changes of features or
logits that are no pure powers are the sum of an aligned part, d^e, and of a random walk over the channels, smaller by
d^{-1/2} and independent of it (docs/evidence/scaling.md):

    size^2 = (A + B/d) d^{2e}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.optimize import nnls
from scipy.special import stdtrit
from torch import nn

from sigprop.plans.exponents import read_optimizer
from sigprop.plans.scaling.attention import attention_scales
from sigprop.plans.scaling.beside import Beside, Rules, beside_of
from sigprop.plans.scaling.dimensions import Dimensions, pattern
from sigprop.plans.scaling.model_and_base import ModelAndBase
from sigprop.plans.scaling.record import OUTPUT
from sigprop.plans.scaling.tables import tied_factor
from sigprop.plans.scaling.width_rules import WidthRule

Rows = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Expectations:
    """Exponents by parameter and by site, along `scales` (the widths or the depths).

    The update of an optimizer that follows the gradient's size is judged by its `rate`, update over gradient;
    the entries of an orthogonal update depend on the gradient's rank and are not judged. `decay` is that of one step,
    rate times weight decay, which decoupled decay keeps at every size.
    """

    scales: list[int]
    weight: dict[str, float]
    update: dict[str, float]
    rate: dict[str, float]
    decay: dict[str, float]
    site: dict[str, float]
    vector: dict[str, float]
    scores: dict[str, float]
    tied: dict[str, float]
    width: WidthRule
    along_depth: bool

    @classmethod
    def of_rows(cls, rows: Sequence[Rows], scales: list[int], rules: Rules, along_depth: bool) -> Expectations:
        """From the sizes of the build at every scale."""
        fits: dict[str, dict[str, float]] = {}
        for quantity in rows[0]:
            tables = [{pattern(n) if along_depth else n: v for n, v in row[quantity].items()} for row in rows]
            names = [name for name in tables[0] if all(name in table for table in tables)]
            if not names:
                fits[quantity] = {}
                continue
            sizes = np.array([[[table[name] for table in tables]] for name in names]).reshape(len(names), 1, -1)
            slopes, _, _ = fit_exponents(scales, sizes)
            fits[quantity] = dict(zip(names, slopes.tolist(), strict=True))
        weights = fits["weight"] if rules.depth != "none" or not along_depth else {}
        others = {name: fits[name] for name in ("update", "rate", "decay", "site", "vector", "scores", "tied")}
        assert rules.width is not None
        return cls(scales, weights, **others, width=rules.width, along_depth=along_depth)

    def of(
        self, quantity: str, name: str, step: int, finite: bool, end: str | None = None
    ) -> tuple[float | None, float | None]:
        """(expected exponent, upper bound); both None where nothing is asked.

        `end`: the site that a module which holds others ends in, and whose exponent it should have.
        `finite` sites do not grow with width: logits and scores. They may start smaller, never larger. A branch
        of scale l^{-alpha} may move less than that, down to 1/l when its own update dominates. Gains and biases may
        start smaller too: a bias of zeros does no harm, and what a small gain does shows in the activations.
        Where a readout, or a key, that aligns with the features would move logits or scores by a power of width (`sp`,
        whose rates assume that it does not), that power bounds it from above; at the start also where it is tied.
        """
        if quantity == "weight" and name in self.vector:
            return None, getattr(self, quantity).get(name)
        if quantity in ("weight", "update", "rate", "decay"):
            return getattr(self, quantity).get(name), None
        scores = name.endswith(".scores")
        if end is not None and self.along_depth:
            return None, None
        shift = self.site.get(end or name, 0.0)
        if quantity == "activation" and step == 0:
            free = name not in self.site if scores else finite and not self.along_depth
            return (None, shift + (0.0 if scores else self.tied.get(OUTPUT, 0.0))) if free else (shift, None)
        if quantity == "change" and step > 0:
            if scores:
                return None, self.scores.get(name, 0.0)
            if self.along_depth and shift != 0.0:
                return None, shift
            if self.along_depth:
                return shift, None
            if name != OUTPUT and not finite:
                return shift - self.width.change, None
            aligned = self.width.aligned_change
            return (None, shift + aligned) if aligned > 0.0 else (shift, None)
        return None, None


def expected_rows(
    model: nn.Module, base: nn.Module, dims: list[Dimensions], optimizer: str, pair: ModelAndBase, rules: Rules
) -> Rows:
    """What the rule asks of one build relative to the base: `rows[quantity][parameter or site]`."""
    assert rules.width is not None
    orthogonal = read_optimizer(optimizer).orthogonal
    beside = beside_of(model, base, dims, pair, rules)
    tied = _tied_gauges(beside)
    beside.scores.gauges |= tied
    sizes = beside.sizes()
    found = attention_scales(model, pair) if pair.scores() else beside.scores
    power = -0.5 if _aligns(rules) else 0.0
    alone = {name: ratio for name, ratio in found.heads.items() if name not in found.biased}
    random_scores = {f"{name}.scores": ratio**power for name, ratio in alone.items()}
    aligned = 0.0 if rules.width.scales_attention else 0.5 - rules.width.change
    return {
        "weight": {name: item.weight for name, item in sizes.items()},
        "vector": {item.name: 1.0 for item in dims if item.role == "vector"},
        "update": {item.name: sizes[item.name].update for item in dims if not orthogonal or item.role != "hidden"},
        "rate": {name: item.update / item.gradient for name, item in sizes.items()},
        "decay": {item.name: 1.0 for item in dims if read_optimizer(optimizer).name != "adam"},
        "site": beside.output_scales()
        | {name.rpartition(".")[0]: factor for name, factor in tied.items()}
        | random_scores,
        "scores": {f"{name}.scores": ratio**aligned for name, ratio in found.heads.items()},
        "tied": _own_logits(beside),
    }


def _aligns(rules: Rules) -> bool:
    """Whether scores go like 1/d: queries and keys align under the rule, unless the model's own scale is kept."""
    return rules.width is not None and rules.width.scales_attention and rules.attention != "keep"


def _own_logits(beside: Beside) -> dict[str, float]:
    """By how much the logit of the token that was read may grow from base to model where the table is the readout too:
    the stream starts as its row."""
    found = tied_factor(beside)
    if found is None or beside.rules.width is None:
        return {}
    return {OUTPUT: beside.dims[found[0].name].fan_out ** (1.0 - beside.rules.width.readout)}


def _tied_gauges(beside: Beside) -> dict[str, float]:
    """By parameter of the norm before a tied readout: the factor that it carries."""
    found = tied_factor(beside)
    names = beside.structure.readout_input if found is not None and beside.structure is not None else ()
    return dict.fromkeys(names, found[1]) if found is not None else {}


def query_owners(model: nn.Module, pair: ModelAndBase, rules: Rules) -> dict[str, str]:
    """By parameter that carries an attention's 1/d: the module of that attention."""
    if not _aligns(rules):
        return {}
    return {name: owner for name, owner in attention_scales(model, pair).owners.items() if owner}


def fit_exponent(scales: Sequence[float], sizes: np.ndarray, corrected: bool = False) -> tuple[float, float, float]:
    """(exponent, low, high) from `sizes[seed, scale]`, all seeds in one regression."""
    slope, low, high = fit_exponents(scales, np.atleast_2d(np.asarray(sizes, dtype=float)), corrected)
    return float(slope), float(low), float(high)


def fit_exponents(
    scales: Sequence[float], sizes: np.ndarray, corrected: bool = False, level: float = 0.95
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same for `sizes[..., seed, scale]`; `corrected` adds the term 1/d of the formula above to the regression.

    `level`: how often an interval is to hold the exponent.

    Sizes that are zero or not finite give nan; as many points as coefficients, an interval of no width; fewer
    than three scales, a fit without the correction.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.asarray(sizes, dtype=float))
    logs = np.where(np.isfinite(logs), logs, np.nan)
    design = _design(tuple(scales), corrected and len(scales) > 2)
    solution = np.linalg.pinv(design)
    coefficients = logs.mean(axis=-2) @ solution.T
    slope = coefficients[..., 1]
    seeds = logs.shape[-2]
    freedom = seeds * len(scales) - design.shape[1]
    if freedom < 1:
        return slope, slope, slope
    residual = logs - (coefficients @ design.T)[..., None, :]
    variance = (residual**2).sum(axis=(-2, -1)) / freedom / seeds * (solution @ solution.T)[1, 1]
    reach = _student(freedom, level) * np.sqrt(variance)
    return slope, slope - reach, slope + reach


def _design(scales: tuple[float, ...], corrected: bool) -> np.ndarray:
    """Columns 1, log d and, where asked, 1/d; centred, so that the columns stay well apart."""
    x = np.log(scales)
    columns = [np.ones(len(scales)), x - x.mean()]
    if corrected:
        columns.append(scales[0] / np.array(scales))
    return np.stack(columns, axis=1)


def error_of_two_parts(scales: Sequence[float], sizes: np.ndarray, exponent: float) -> float:
    """The largest relative error of the formula at this exponent, fitted to the means of `sizes[seed, scale]`."""
    widths, means = np.asarray(scales, dtype=float), np.atleast_2d(sizes).mean(axis=0)
    design = np.stack([widths ** (2 * exponent), widths ** (2 * exponent - 1)], axis=1) / means[:, None] ** 2
    parts, _ = nnls(design, np.ones(len(widths)))
    return float(np.abs(np.sqrt(design @ parts) - 1).max())


@cache
def _student(freedom: int, level: float) -> float:
    """Student's quantile of an interval that holds with this probability."""
    return float(stdtrit(freedom, (1 + level) / 2))
