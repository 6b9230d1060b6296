"""Whether two tensors are samples of one distribution: every test with its p-value, nothing by a percentage.

mean       Welch's test
std        the ratio of variances, F distributed with the degrees of freedom that the kurtosis leaves
shape      Kolmogorov and Smirnov's test on standardized entries; tails: the kurtosis, by its influence function
entries    shares of zeros and of entries at a bound (two proportions); far outliers; constants; what entries share

Constants, and tensors that hold identical numbers, are compared exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from scipy import special, stats
from torch import Tensor

from sigprop.distributions.distribution import INDEPENDENT, ORTHOGONAL
from sigprop.distributions.independence import kind_of
from sigprop.measurement.parameters import square_of, total_of

SUBSAMPLE = 1 << 14
TAILS = 1 << 18
"""Entries of an even subsample, sorted; and of one that fourth powers are summed over."""
FEW = 100
"""Entries below which a sample says little about its tails: they are taken for those of a normal at least."""
TIES = 8
"""Entries of one extreme value that no continuous distribution has; two are its own."""
TAILED = 5.0
"""Kurtosis above which independent entries may look structured."""
OUTLIER = 12.0
"""Of a tail that the other sample does not have: this many times the 99.9 % quantile."""
CERTAIN = 0.0
"""The p-value of a difference that no chance makes."""


@dataclass(frozen=True)
class EntrySample:
    """What is needed of one tensor to compare it with another."""

    count: int
    mean: float
    variance: float
    kurtosis: float
    kurtosis_error: float
    zeros: float
    bound: float
    largest: float
    kind: str
    quantiles: Tensor
    rounding: float
    missing: float

    @property
    def std(self) -> float:
        return math.sqrt(self.variance)

    @property
    def is_constant(self) -> bool:
        return self.variance == 0.0

    @property
    def words(self) -> str:
        if self.missing:
            return "uninitialized" if self.missing == 1.0 else f"{self.missing:.2g} of it not a number"
        if self.is_constant:
            return f"constant {self.mean:.6g}"
        mean = f" mean {self.mean:.3g}" if abs(self.mean) > 5 * self.std / math.sqrt(self.count) else ""
        kind = "" if self.kind == INDEPENDENT else f", {self.kind}"
        return f"std {self.std:.4g}{mean}{kind}"


def sample_of(values: Tensor) -> EntrySample:
    """Mean, variance and extremes of all entries; tails, shape and bounds of an even subsample."""
    flat = values.detach().reshape(-1)
    rounding = torch.finfo(flat.dtype).eps if flat.is_floating_point() else 0.0
    flat = flat.float() if flat.dtype != torch.float64 else flat
    missing = 0.0
    sums = _sums(flat)
    if not math.isfinite(sums[1]):
        finite = torch.isfinite(flat)
        missing = 1.0 - float(finite.double().mean())
        flat = flat[finite]
        sums = _sums(flat)
    if flat.numel() == 0:
        return EntrySample(
            0, math.nan, 0.0, 3.0, 0.0, 0.0, 0.0, math.nan, INDEPENDENT, torch.zeros(1), rounding, missing or 1.0
        )
    low, high = (float(item) for item in flat.aminmax())
    if low == high:
        zeros = float(low == 0.0)
        return EntrySample(
            flat.numel(), low, 0.0, 3.0, 0.0, zeros, 1.0, abs(low), INDEPENDENT, flat[:1], rounding, missing
        )
    mean, variance = _moments_of(flat, *sums)
    squares = (flat[:: max(1, flat.numel() // TAILS)].double() - mean).square_()
    squares /= squares.mean()
    kurtosis = float(squares.square().mean())
    influence = squares.square() - kurtosis - 2.0 * kurtosis * (squares - 1.0)
    kurtosis_error = float(influence.square().mean().sqrt()) / math.sqrt(len(influence))
    quantiles = flat[:: max(1, flat.numel() // SUBSAMPLE)].sort().values.double()
    at_bound = float(((quantiles == low) | (quantiles == high)).double().mean())
    kind = kind_of(values.detach()) if not missing else INDEPENDENT
    zeros = 1.0 - int(flat.count_nonzero()) / flat.numel()
    largest = max(mean - low, high - mean)
    return EntrySample(
        flat.numel(),
        mean,
        variance,
        kurtosis,
        kurtosis_error,
        zeros,
        at_bound,
        largest,
        kind,
        quantiles,
        rounding,
        missing,
    )


def _sums(flat: Tensor) -> tuple[float, float]:
    return float(total_of(flat)), float(square_of(flat))


def _moments_of(flat: Tensor, total: float, square: float) -> tuple[float, float]:
    """Mean and variance from sums, which hold the variance unless the mean is thousands of times the std."""
    mean = total / flat.numel()
    variance = (square - total * mean) / (flat.numel() - 1)
    if variance > 1e-6 * mean**2:
        return mean, variance
    spread, centre = torch.var_mean(flat.double())
    return float(centre), float(spread)


@dataclass(frozen=True)
class Tested:
    """p-values by test; `scores` are those of mean and std in standard errors, with a sign, for pooling over layers.

    `resolution`: the relative difference of std that is one standard error.
    """

    chances: dict[str, float]
    scores: dict[str, float] = field(default_factory=dict)
    resolution: float = math.nan

    @property
    def smallest(self) -> tuple[str, float]:
        return min(self.chances.items(), key=lambda item: item[1], default=("", 1.0))


def compared(a: EntrySample, b: EntrySample) -> Tested:
    """The tests that apply to two samples."""
    if a.missing or b.missing:
        return Tested({"not a number": 1.0 if a.missing == b.missing else CERTAIN})
    if not a.count or not b.count:
        return Tested({"empty": 1.0 if a.count == b.count else CERTAIN})
    if min(a.count, b.count) == 1 or (a.is_constant and b.is_constant):
        return _constants(a, b)
    if a.is_constant or b.is_constant:
        return Tested({"constant": CERTAIN})
    scores, chances, resolution = _moments(a, b)
    chances["shape"] = _shape(a, b)
    chances["zeros"] = _shares(a.zeros, b.zeros, a.count, b.count)
    ties = sorted(round(item.bound * len(item.quantiles)) for item in (a, b))
    if a.rounding == b.rounding and ties[0] <= 2 and ties[1] >= TIES:
        chances["at a bound"] = CERTAIN
    if min(a.count, b.count) >= 5 * FEW:
        error = math.sqrt(2.0) * max(a.kurtosis_error, b.kurtosis_error)
        chances["tails"] = float(2.0 * stats.norm.sf(abs(a.kurtosis - b.kurtosis) / error))
    if _outliers(a) != _outliers(b) and min(a.count, b.count) > 1000:
        chances["outliers"] = CERTAIN
    heavy = max(a.kurtosis, b.kurtosis) > TAILED and ORTHOGONAL not in (a.kind, b.kind)
    if a.kind != b.kind and not heavy:
        chances["entries"] = CERTAIN
    elif a.kind == ORTHOGONAL and abs(a.std / b.std - 1.0) > 1e-3:
        chances["std"] = CERTAIN
    return Tested(chances, scores, resolution)


def _constants(a: EntrySample, b: EntrySample) -> Tested:
    """One number is a sample or a constant; one with few digits is no sample."""
    margin = max(a.rounding, b.rounding, 1e-6) * max(abs(a.mean), abs(b.mean))
    if abs(a.mean - b.mean) <= margin:
        return Tested({"value": 1.0})
    chosen = _few_digits(a) or _few_digits(b) or min(a.count, b.count) > 1
    return Tested({"value": CERTAIN} if chosen else {"one number": 1.0})


def _few_digits(item: EntrySample) -> bool:
    return math.isclose(item.mean, float(f"{item.mean:.3g}"), rel_tol=max(item.rounding, 1e-7), abs_tol=0.0)


def _moments(a: EntrySample, b: EntrySample) -> tuple[dict[str, float], dict[str, float], float]:
    spread = math.sqrt(a.variance / a.count + b.variance / b.count)
    mean = (a.mean - b.mean) / spread
    freedom = spread**4 / sum((item.variance / item.count) ** 2 / (item.count - 1) for item in (a, b))
    tails = (a.count * a.kurtosis + b.count * b.kurtosis) / (a.count + b.count)
    tails = max(tails, 3.0 if min(a.count, b.count) < FEW else 1.05)
    degrees = [max(2.0 * (item.count - 1) / (tails - 1.0), 1.0) for item in (a, b)]
    ratio = a.variance / b.variance
    low = special.fdtr(*degrees, ratio) if ratio < 1.0 else special.fdtrc(*degrees, ratio)
    chance = min(1.0, 2.0 * float(low))
    error = math.sqrt(sum(2.0 / item for item in degrees))
    score = math.copysign(float(stats.norm.isf(max(chance, 1e-300) / 2.0)), ratio - 1.0)
    chances = {"mean": float(2.0 * stats.t.sf(abs(mean), freedom)), "std": chance}
    return {"mean": mean, "std": score}, chances, error / 2.0


def _shape(a: EntrySample, b: EntrySample) -> float:
    if min(a.count, b.count) < 32:
        return 1.0
    one, other = ((item.quantiles - item.mean) / item.std for item in (a, b))
    grid = torch.cat((one, other)).sort().values
    below = [torch.searchsorted(values, grid, right=True).double() / len(values) for values in (one, other)]
    distance = float((below[0] - below[1]).abs().max())
    few = len(one) * len(other) / (len(one) + len(other))
    return float(special.kolmogorov(distance * math.sqrt(few)))


def _shares(one: float, other: float, count: int, count_other: int) -> float:
    """Whether two shares of so many entries are one."""
    if one == other or max(one * count, other * count_other) < 12:
        return 1.0
    pooled = (one * count + other * count_other) / (count + count_other)
    error = math.sqrt(pooled * (1.0 - pooled) * (1.0 / count + 1.0 / count_other))
    return float(2.0 * stats.norm.sf(abs(one - other) / error))


def _outliers(item: EntrySample) -> bool:
    cut = item.quantiles[[int(0.0005 * len(item.quantiles)), -1 - int(0.0005 * len(item.quantiles))]] - item.mean
    return item.largest > OUTLIER * float(cut.abs().max())
