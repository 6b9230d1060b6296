"""Exponents by least squares of log size on log width (or depth), with its 95 percent interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from scipy import stats


def fit_exponent(scales: Sequence[float], sizes: np.ndarray) -> tuple[float, float, float]:
    """(exponent, low, high) from `sizes[seed, scale]`, all seeds in one regression.

    Sizes that are zero or not finite give nan; two points give an interval of no width.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.atleast_2d(np.asarray(sizes, dtype=float)))
    if not np.isfinite(logs).all():
        return math.nan, math.nan, math.nan
    x = np.log(np.asarray(scales, dtype=float))
    x = x - x.mean()
    spread = float(x @ x) * len(logs)
    slope = float((logs @ x).sum()) / spread
    freedom = logs.size - 2
    if freedom < 1:
        return slope, slope, slope
    residual = logs - logs.mean() - slope * x
    error = math.sqrt(float((residual**2).sum()) / freedom / spread)
    reach = _student(freedom) * error
    return slope, slope - reach, slope + reach


@cache
def _student(freedom: int) -> float:
    """Student's 97.5 percent quantile."""
    return float(stats.t.ppf(0.975, freedom))
