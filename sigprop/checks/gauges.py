"""The numbers that findings about signals go by, each a function of a profile, so that a cure can be judged by them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sigprop.checks.branches import find_branches, normed_streams, sensitivity_of
from sigprop.checks.thresholds import limit
from sigprop.results import Profile

if TYPE_CHECKING:
    from sigprop.checks.subject import Subject


@dataclass(frozen=True)
class Gauge:
    """A quantity with the range in which it is healthy."""

    quantity: str
    read: Callable[[Subject, Profile], float]
    low: float = 0.0
    high: float = math.inf

    def healthy(self, value: float) -> bool:
        return not math.isfinite(value) or self.low <= value <= self.high


def stream_growth(subject: Subject, profile: Profile) -> float:
    """Variance of the stream, last block over first; the stream where that is farthest from one."""
    streams = [stream for stream in subject.streams if not subject.scale_free(stream)]
    return _worst([_ratio(stream.values(profile, "variance")[::-1]) for stream in streams])


def gradient_ratio(subject: Subject, profile: Profile) -> float:
    """Gradient variance of the stream (times its own where all readers normalize), first block over last."""
    streams = [stream for stream in subject.streams if stream.even]
    return _worst([_ratio(subject.relative_gradients(stream, stream.rows(profile))) for stream in streams])


def token_correlation(subject: Subject, profile: Profile) -> float:
    """Largest token correlation at the last block of a stream, where there is attention."""
    if not subject.attends:
        return math.nan
    found = [stream.values(profile, "token_correlation")[-1:] for stream in subject.streams if stream.residual]
    return max((value for values in found for value in values if math.isfinite(value)), default=math.nan)


def sensitivity(subject: Subject, profile: Profile) -> float:
    """Largest sensitivity of a stream whose sums are normalized."""
    found = normed_streams(find_branches(subject.structure, subject.streams, profile))
    return max(map(sensitivity_of, found), default=math.nan)


def smallest_branch(subject: Subject, profile: Profile) -> float:
    """Variance of the smallest branch over its skip, behind the first block."""
    found = find_branches(subject.structure, subject.streams, profile)
    return min((item.share for item in found if not item.first and item.share > 0), default=math.nan)


def score_variance(subject: Subject, profile: Profile) -> float:
    """Largest variance of attention scores."""
    return max((row.variance for row in subject.scores_of(profile) if math.isfinite(row.variance)), default=math.nan)


def rounding(subject: Subject, profile: Profile) -> float:
    """Share of the output that rounding to bfloat16 changes."""
    return subject.observed.rounding if profile is subject.measured else math.nan


def logit_variance(subject: Subject, profile: Profile) -> float:
    """Variance of the output of the readout over its classes: a softmax does not see their mean."""
    seen = subject.observed.losses if profile is subject.measured else []
    seen = [item for item in seen if item.kind == "cross_entropy"]
    if seen:
        return max(item.variance for item in seen)
    name = subject.logits_site if subject.classes is not None else None
    row = next((item for item in profile.sites if item.name == name), None) if name else None
    return math.nan if row is None else row.extras.get("class_variance", row.variance)


def _ratio(values: list[float]) -> float:
    """First over last."""
    usable = len(values) > 1 and values[0] > 0 and values[-1] > 0
    return values[0] / values[-1] if usable and all(map(math.isfinite, (values[0], values[-1]))) else math.nan


def _worst(ratios: list[float]) -> float:
    found = [value for value in ratios if math.isfinite(value) and value > 0]
    return max(found, key=lambda value: abs(math.log(value)), default=math.nan)


_GROWTH, _GRADIENT = limit("stream_growth"), limit("gradient_ratio")
GAUGES = {
    "stream_growth": Gauge("stream variance, last block / first", stream_growth, 1 / _GROWTH, _GROWTH),
    "gradient_explodes": Gauge("gradient variance, first block / last", gradient_ratio, 1 / _GRADIENT, _GRADIENT),
    "gradient_vanishes": Gauge("gradient variance, first block / last", gradient_ratio, 1 / _GRADIENT, _GRADIENT),
    "criticality": Gauge("gradient variance, first block / last", gradient_ratio, 1 / _GRADIENT, _GRADIENT),
    "rank_collapse": Gauge("token correlation at the last block", token_correlation, -1.0, limit("rank_collapse")),
    "sensitivity": Gauge("sensitivity of normalized sums", sensitivity, 0.0, limit("sensitivity")),
    "branch_share": Gauge("smallest branch over its skip", smallest_branch, limit("drowned_branch")),
    "attention_saturated": Gauge("largest score variance", score_variance, 0.0, limit("scores_large")),
    "initial_loss": Gauge("logit variance", logit_variance, 0.0, 2 * limit("initial_loss")),
    "rounding": Gauge("output changed by rounding to bf16", rounding, 0.0, limit("rounding")),
    "tied_readout": Gauge("logit variance", logit_variance, 0.0, 2 * limit("initial_loss")),
}
