r"""The one table of optimizers: from sizes to what lr, weight decay and epsilon of a parameter are multiplied by.

A step changes an entry by `lr * (normalized gradient)`; asking it to have the size `update` gives

    adam, adamw, lion, sign   lr = update                 eps = gradient (adam, adamw)
    soap, shampoo             lr = update                 eps = gradient (soap)
    sgd, momentum             lr = update / gradient
    adafactor                 lr = update / weight        second eps = weight (a floor for the weight's size)
    muon (hidden)             lr = update * m_in^alpha / (scale * sqrt(m_in / m_out))    eps = gradient
    adamh (hidden)            lr = update / weight        eps = gradient
    muonh (hidden)            as muon with the scale rms, over weight

Decay keeps `lr * weight_decay` fixed (decoupled, and SGD's), or, as an L2 term inside Adam, the ratio of the
term to the gradient. What Muon does not train takes AdamW's rule.

A parameter written as `s` times another (a scale folded into it) has sizes (s, s, 1/s), and the rules above keep its
trajectory exactly. Adafactor's first epsilon mixes units in torch and must lie below the squares of the gradients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from sigprop.plans.exponents import read_optimizer

RMS_OF_ADAM = 0.2
"""What torch's `match_rms_adamw` multiplies besides the root of the longer side."""
WITH_EPSILON = ("adam", "adamw", "adamh", "soap")


@dataclass(frozen=True)
class Sizes:
    """Sizes relative to a reference: of the weight, of its update, of its gradient."""

    weight: float = 1.0
    update: float = 1.0
    gradient: float = 1.0

    def gauged(self, kappa: float) -> Sizes:
        """The same function and training with the parameter written as `kappa` times the old one."""
        return Sizes(self.weight * kappa, self.update * kappa, self.gradient / kappa)


@dataclass(frozen=True)
class Matrix:
    """A matrix beside its reference: ratios of fan-in and fan-out, and (own, reference) rows and columns as stored."""

    fan_in: float = 1.0
    fan_out: float = 1.0
    rows: tuple[int, int] = (1, 1)
    columns: tuple[int, int] = (1, 1)


class Multipliers(NamedTuple):
    """What an optimizer's settings are multiplied by for one parameter."""

    lr: float
    weight_decay: float
    eps: float


def multipliers(sizes: Sizes, optimizer: str, matrix: Matrix | None = None, alpha: float = 1.0) -> Multipliers:
    """The optimizer's multipliers; `matrix` for what Muon trains, with the alignment `alpha` behind `update`."""
    rule = read_optimizer(optimizer)
    if rule.orthogonal and matrix is not None:
        response = sizes.update * matrix.fan_in**alpha
        scales = [muon_scale(rule.scale, *size) for size in zip(matrix.rows, matrix.columns, strict=True)]
        lr = response * scales[1] / (scales[0] * math.sqrt(matrix.fan_in / matrix.fan_out)) / sizes.weight**rule.weight
        return Multipliers(lr, 1.0 / lr, sizes.gradient)
    lr = sizes.update / sizes.gradient**rule.gradient / sizes.weight**rule.weight
    decay = sizes.gradient / sizes.weight if rule.name == "adam" else 1.0 / lr
    if rule.name == "adafactor":
        return Multipliers(lr, decay, sizes.weight)
    follows = rule.orthogonal or rule.name in WITH_EPSILON
    return Multipliers(lr, decay, sizes.gradient if follows else 1.0)


def muon_scale(scale: str, rows: int, columns: int) -> float:
    """What this Muon multiplies the orthogonal update of a matrix with."""
    return {
        "none": 1.0,
        "shape": math.sqrt(max(1.0, rows / columns)),
        "rms": math.sqrt(max(rows, columns)),
        "unit": math.sqrt(rows / columns),
    }[scale]
