r"""Rules for another batch size, another number of steps, and for weight decay: what a tuned setting becomes.

Batch size, Adam (Malladi et al. 2022, square-root rule), with `kappa = batch / tuned batch`:

    lr sqrt(kappa),   1 - beta kappa,   epsilon / sqrt(kappa)

Number of steps, `kappa = steps / tuned steps`: `lr kappa^{-p}`, with p = 1/2 from averaging arguments, and p = 0.32 as
measured for language models over token horizons (Bjorck et al. 2024).

Weight decay. AdamW keeps an average of its updates over `1 / (lr decay)` steps; that time as a fixed share of the run
(Wang and Aitchison 2024) asks for `decay = 1 / (lr share steps)`. Independent decay (Loshchilov and Hutter 2019;
Wortsman et al. 2023), `w - lr update - decay w`, is torch's with `decay / lr`. A plan keeps the product of rate and
decay the same for all parameters, as both rules ask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sigprop.errors import require


@dataclass(frozen=True)
class AdamSettings:
    """What Adam is told."""

    lr: float
    betas: tuple[float, float]
    eps: float


def at_batch(settings: AdamSettings, batch: int, tuned: int) -> AdamSettings:
    """The settings at another batch size; refused where momentum would vanish."""
    require(batch >= 1 and tuned >= 1, "batch sizes", (batch, tuned), "positive numbers")
    kappa = batch / tuned
    betas = tuple(1.0 - (1.0 - beta) * kappa for beta in settings.betas)
    require(
        min(betas) >= 0.0, "batch", batch, f"at most {tuned / (1 - min(settings.betas)):.4g}, where a beta becomes 0"
    )
    return AdamSettings(settings.lr * math.sqrt(kappa), (betas[0], betas[1]), settings.eps / math.sqrt(kappa))


def at_horizon(lr: float, steps: int, tuned: int, exponent: float = 0.5) -> float:
    """The learning rate for another number of steps."""
    require(steps >= 1 and tuned >= 1, "steps", (steps, tuned), "positive numbers")
    return lr * (steps / tuned) ** -exponent


def averaging_decay(lr: float, steps: int, share: float) -> float:
    """The weight decay whose averaging time is this share of the run."""
    require(lr > 0 and steps >= 1 and share > 0, "lr, steps, share", (lr, steps, share), "positive numbers")
    return 1.0 / (lr * share * steps)


def independent_decay(decay: float, lr: float) -> float:
    """torch's weight decay for one that does not follow the learning rate; the schedule still multiplies both."""
    require(lr > 0, "lr", lr, "a positive number")
    return decay / lr
