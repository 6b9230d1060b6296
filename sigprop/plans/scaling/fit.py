r"""Exponents by least squares of log size on log width (or depth), with their 95 percent intervals; and the law of two
parts behind those that are no pure powers.

A change of features or logits is the sum of an aligned part, d^e, and of a random walk over the channels, smaller by
d^{-1/2} and independent of it:

    size^2 = (A + B/d) d^{2e}

The random part rules below the width B/A, which grows with the number of tokens in the batch: the sum of many
gradients is little aligned with each of them. Powers fitted over a narrow range then lie between e - 1/2 and e.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.optimize import nnls
from scipy.special import stdtrit


def fit_exponent(scales: Sequence[float], sizes: np.ndarray, corrected: bool = False) -> tuple[float, float, float]:
    """(exponent, low, high) from `sizes[seed, scale]`, all seeds in one regression."""
    slope, low, high = fit_exponents(scales, np.atleast_2d(np.asarray(sizes, dtype=float)), corrected)
    return float(slope), float(low), float(high)


def fit_exponents(
    scales: Sequence[float], sizes: np.ndarray, corrected: bool = False, level: float = 0.95
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same for `sizes[..., seed, scale]`; `corrected` adds the term 1/d of the law above to the regression.

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


@dataclass(frozen=True)
class TwoParts:
    """A and B of the law above, and the largest relative error of the size that it leaves."""

    aligned: float
    random: float
    error: float


def fit_two_parts(scales: Sequence[float], sizes: np.ndarray, exponent: float) -> TwoParts:
    """The law with its exponent given, to the means of `sizes[seed, scale]`; A, B >= 0."""
    widths, means = np.asarray(scales, dtype=float), np.atleast_2d(sizes).mean(axis=0)
    design = np.stack([widths ** (2 * exponent), widths ** (2 * exponent - 1)], axis=1) / means[:, None] ** 2
    (aligned, random), _ = nnls(design, np.ones(len(widths)))
    error = np.abs(np.sqrt(design @ [aligned, random]) - 1).max()
    return TwoParts(float(aligned), float(random), float(error))


@cache
def _student(freedom: int, level: float) -> float:
    """Student's quantile of an interval that holds with this probability."""
    return float(stdtrit(freedom, (1 + level) / 2))
