"""Whether a predicted number agrees with what drawn initializations show.

Draws of a deep network are skewed: a few large ones carry the mean, and a handful may miss them. So a number differs
only where the mean of the draws says so *and* the mean of their logarithms (corrected to that of a lognormal) does,
both by Student's t at one in ten thousand, and by more than a tenth. It agrees where it is within a tenth, and within
a fifth with the noise included.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from scipy.special import stdtr, stdtrit

from sigprop.measurement.measurement import deviation
from sigprop.verification.spread import error_of_logarithm, standard_error

CHANCE = 1e-4
MATTERS = 0.10
AGREES = 0.20
NOTHING = 0.1
"""Of a drawn number that may be rounding noise: a predicted one below that is as good as zero."""
ROOM = 2.5
"""Standard errors that must fit, with the difference, into what still agrees."""
STATED = 0.99
"""Of the cases in which the truth is within a stated error."""
FINEST = 0.005
"""No error is stated below this: what a few draws of single precision, on one machine, tell no better."""


class Judgement(Enum):
    AGREES = "agrees"
    DIFFERS = "differs"
    UNCLEAR = "unclear"


@dataclass(frozen=True)
class Verdict:
    """A predicted number beside drawn ones; `difference` and `error` are relative to the column's scale, `left_open` to
    the simulated number."""

    judgement: Judgement
    predicted: float
    simulated: float
    standard_error: float
    difference: float
    error: float
    left_open: float = 0.0

    @property
    def stated_error(self) -> float:
        """How far the truth may be from the predicted number, relative to it; of zero that has no meaning, unless the
        simulated number is zero as well."""
        if self.predicted == 0.0 or not math.isfinite(self.difference):
            return FINEST if self.simulated == 0.0 else math.inf
        return (abs(self.difference) + self.left_open) * abs(self.simulated / self.predicted)

    @property
    def z(self) -> float:
        if self.error > 0:
            return self.difference / self.error
        return 0.0 if abs(self.difference) < MATTERS else math.copysign(math.inf, self.difference)

    @property
    def is_doubtful(self) -> bool:
        """Unclear, and the draws are the better guess: off by a tenth, or by more than chance explains."""
        return self.judgement is Judgement.UNCLEAR and (abs(self.difference) > MATTERS or abs(self.z) > ROOM)


def judged(predicted: float, draws: Sequence[float], scale: float | None = None, floor: float = 0.0) -> Verdict:
    """A number against draws of it. `scale` makes differences absolute (means, correlations); without it they are
    relative to the mean of the draws, which are positive. Draws below `floor` are rounding noise where the predicted
    number is as good as zero beside them; else they are numbers like any other, small as they are."""
    mean = statistics.fmean(draws)
    error = standard_error(draws)
    if abs(mean) <= floor and abs(predicted) <= NOTHING * abs(mean):
        return Verdict(Judgement.AGREES, predicted, mean, error, 0.0, 0.0, left_open(draws))
    unit = scale if scale is not None else abs(mean)
    if unit == 0.0:
        return Verdict(Judgement.DIFFERS, predicted, mean, error, math.inf, 0.0)
    difference, relative = (predicted - mean) / unit, error / unit
    sure = _improbable(difference, relative, len(draws))
    if sure and scale is None and len(draws) > 1 and predicted > 0 and min(draws) > 0:
        sure = _improbable(*_in_logarithms(predicted, draws), len(draws))
    if sure and abs(difference) > MATTERS:
        judgement = Judgement.DIFFERS
    elif abs(difference) <= MATTERS and abs(difference) + ROOM * relative <= AGREES and len(draws) != 2:
        judgement = Judgement.AGREES
    else:
        judgement = Judgement.UNCLEAR
    return Verdict(judgement, predicted, mean, error, difference, relative, left_open(draws))


def left_open(draws: Sequence[float]) -> float:
    """How far the mean over all initializations may be from that of the draws, relatively, in 99 of 100 cases.

    By Student's t; and, since the draws are skewed and a few of them miss the large ones, by the same of their
    logarithms where that is more. At least `FINEST`: draws that agree to the last digit do not promise that."""
    count, mean = len(draws), abs(statistics.fmean(draws))
    if count < 2 or mean == 0.0:
        return FINEST
    quantile = float(stdtrit(count - 1, (1.0 + STATED) / 2.0))
    plain = quantile * deviation(draws) / math.sqrt(count) / mean
    if min(draws) <= 0.0:
        return max(FINEST, plain)
    return max(FINEST, plain, math.expm1(min(quantile * error_of_logarithm(draws), 50.0)))


def _improbable(difference: float, error: float, count: int) -> bool:
    if count < 2 or error == 0.0:
        return abs(difference) > MATTERS
    return 2.0 * float(stdtr(count - 1, -abs(difference) / error)) < CHANCE


def _in_logarithms(predicted: float, draws: Sequence[float]) -> tuple[float, float]:
    logs = [math.log(value) for value in draws]
    return math.log(predicted) - statistics.fmean(logs) - deviation(logs) ** 2 / 2.0, error_of_logarithm(draws)
