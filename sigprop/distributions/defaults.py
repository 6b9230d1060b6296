"""The laws that torch's own layers draw from, recognized in a layer as it is.

A bias of sixteen entries tells its variance to 25 %. Where it is as torch's constructor leaves it, its law is known.
Larger parameters tell their own.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from sigprop.compat import ConvNd
from sigprop.distributions.constructor import agrees
from sigprop.distributions.distribution import Distribution

FEW = 2048
UNIFORM_IN_FAN = (nn.Linear, ConvNd, nn.Bilinear)


def default_law(module: nn.Module, key: str, parameter: Tensor) -> Distribution | None:
    """Torch's own law of a layer's weight or bias, if the numbers are within it and could come from it."""
    law = _law(module, key)
    if law is None or not 2 <= parameter.numel() <= FEW or not parameter.is_floating_point():
        return None
    values = parameter.detach()
    if values.min() == values.max():
        return None
    low, high = float(law.quantiles[0]), float(law.quantiles[-1])
    room = (high - low) / len(law.quantiles)
    bounded = float(values.min()) >= low - room and float(values.max()) <= high + room
    return law if bounded and agrees(law, values) else None


def _law(module: Any, key: str) -> Distribution | None:
    if isinstance(module, UNIFORM_IN_FAN) and key in ("weight", "bias"):
        weight = module.weight
        fan = weight.shape[1] * math.prod(weight.shape[2:]) if not isinstance(module, nn.Bilinear) else weight.shape[1]
        return Distribution.uniform(-1 / math.sqrt(fan), 1 / math.sqrt(fan))
    if isinstance(module, nn.RNNBase) and key.startswith(("weight", "bias")):
        return Distribution.uniform(-1 / math.sqrt(module.hidden_size), 1 / math.sqrt(module.hidden_size))
    return None
