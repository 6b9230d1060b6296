"""A schedule that multiplies the rate of every group alike, so that a plan's factors stay."""

from __future__ import annotations

import math

import torch
from torch.optim.lr_scheduler import LambdaLR

from sigprop.errors import require


def cosine_factor(step: int, steps: int, warmup: float = 0.1, final: float = 0.1) -> float:
    """Linear over the first share `warmup` of the steps, then a cosine down to `final` of the peak."""
    warm = round(warmup * steps)
    if step < warm:
        return (step + 1) / warm
    place = min((step - warm) / max(steps - warm, 1), 1.0)
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * place))


def scheduler(
    optimizer: torch.optim.Optimizer, steps: int, warmup: float = 0.1, final: float = 0.1
) -> torch.optim.lr_scheduler.LambdaLR:
    """Warm-up and cosine for all groups; torch's own `eta_min` and a single `max_lr` give all groups one rate."""
    require(steps >= 1, "steps", steps, "a positive number")
    require(0 <= warmup < 1 and 0 <= final <= 1, "warmup, final", (warmup, final), "shares from 0 to 1")
    return LambdaLR(optimizer, lambda step: cosine_factor(step, steps, warmup, final))
