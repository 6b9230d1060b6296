r"""From sizes to an optimizer's multipliers.

A step changes an entry by `lr * (normalized gradient)`; asking it to have the size `update` gives

    adam, adamw, lion, sign   lr = update                 eps = gradient
    sgd, momentum             lr = update / gradient
    adafactor                 lr = update / weight        (relative step)
    muon (hidden)             lr = update * m_in^alpha / (scale * sqrt(m_in / m_out))

Decay keeps `lr * weight_decay` fixed (decoupled, and SGD's), or, as an L2 term inside Adam, the ratio of the
term to the gradient. Muon's other parameters take AdamW's rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sigprop.scaling.dimensions import Dimensions
from sigprop.scaling.width import Factors
from sigprop.theory.exponents import read_optimizer

WITH_EPSILON = ("adam", "adamw")


@dataclass(frozen=True)
class Multipliers:
    """What an optimizer's settings are multiplied by for one parameter."""

    lr: float
    weight_decay: float
    eps: float


def multipliers(factors: Factors, dims: Dimensions, optimizer: str, alpha: float = 1.0) -> Multipliers:
    rule = read_optimizer(optimizer)
    if rule.orthogonal and dims.role == "hidden":
        response = factors.update * dims.fan_in**alpha
        scales = [muon_scale(rule.scale, *size) for size in zip(dims.rows, dims.columns, strict=True)]
        lr = response * scales[1] / (scales[0] * math.sqrt(dims.fan_in / dims.fan_out))
        return Multipliers(lr, 1.0 / lr, 1.0)
    lr = factors.update / factors.gradient**rule.gradient / factors.weight**rule.weight
    decay = factors.gradient / factors.weight if rule.name == "adam" else 1.0 / lr
    follows = rule.orthogonal or rule.name in WITH_EPSILON
    return Multipliers(lr, decay, factors.gradient if follows else 1.0)


def muon_scale(scale: str, rows: int, columns: int) -> float:
    """What this Muon multiplies the orthogonal update of a matrix with."""
    return {
        "none": 1.0,
        "shape": math.sqrt(max(1.0, rows / columns)),
        "rms": math.sqrt(max(rows, columns)),
        "unit": math.sqrt(rows / columns),
    }[scale]
