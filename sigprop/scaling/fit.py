r"""Exponents by least squares of log size on log width (or depth), with their 95 percent intervals.

A change of features or logits is the sum of an aligned part d^e and of a random walk that is smaller by d^{-1/2}
and independent of it, so that its size is d^e sqrt(1 + c/d): the fitted power of a narrow range of widths lies
below e. With `corrected` the term 1/d is fitted too, and the exponent is that of large width.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from scipy import stats


def fit_exponent(scales: Sequence[float], sizes: np.ndarray, corrected: bool = False) -> tuple[float, float, float]:
    """(exponent, low, high) from `sizes[seed, scale]`, all seeds in one regression."""
    slope, low, high = fit_exponents(scales, np.atleast_2d(np.asarray(sizes, dtype=float)), corrected)
    return float(slope), float(low), float(high)


def fit_exponents(
    scales: Sequence[float], sizes: np.ndarray, corrected: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same for `sizes[..., seed, scale]`.

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
    reach = _student(freedom) * np.sqrt(variance)
    return slope, slope - reach, slope + reach


def _design(scales: tuple[float, ...], corrected: bool) -> np.ndarray:
    """Columns 1, log d and, where asked, 1/d; centred, so that the columns stay well apart."""
    x = np.log(scales)
    columns = [np.ones(len(scales)), x - x.mean()]
    if corrected:
        columns.append(scales[0] / np.array(scales))
    return np.stack(columns, axis=1)


@cache
def _student(freedom: int) -> float:
    """Student's 97.5 percent quantile."""
    return float(stats.t.ppf(0.975, freedom))
