"""Layers that one rule has drawn tell the law of each other.

A depthwise filter of 144 entries tells its variance to 12 %. Where the variances of all layers of its type, times
their fan-in, fan-out, the average of both, or nothing, are one number within their standard errors, the number that
they show together is the law of the small ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import nn

from sigprop.distributions.distribution import INDEPENDENT, Distribution

FEW = 2048
FEWEST = 3
Rule = Callable[[nn.Module, tuple[int, ...]], float]


@dataclass(frozen=True)
class Sibling:
    """A layer's weight with the law that its own numbers show."""

    module: nn.Module
    shape: tuple[int, ...]
    law: Distribution

    @property
    def entries(self) -> int:
        return math.prod(self.shape)


def _fan_in(module: nn.Module, shape: tuple[int, ...]) -> float:
    return math.prod(shape[1:])


def _fan_out(module: nn.Module, shape: tuple[int, ...]) -> float:
    return shape[0] * math.prod(shape[2:])


def _fan_out_of_group(module: nn.Module, shape: tuple[int, ...]) -> float:
    return _fan_out(module, shape) / getattr(module, "groups", 1)


RULES: tuple[Rule, ...] = (
    lambda module, shape: 1.0,
    _fan_in,
    _fan_out,
    _fan_out_of_group,
    lambda module, shape: (_fan_in(module, shape) + _fan_out(module, shape)) / 2,
)


def shared_laws(found: Sequence[Sibling]) -> list[Distribution]:
    """The laws of weights of one type of layer, small ones corrected by what all of them show."""
    usable = [item for item in found if item.law.kind == INDEPENDENT and item.law.variance and not item.law.mean]
    laws = [item.law for item in found]
    if len(usable) < FEWEST:
        return laws
    misfit, rule = min(((_misfit(usable, rule), rule) for rule in RULES), key=lambda pair: pair[0])
    freedom = len(usable) - 1
    if misfit > freedom + 3.0 * math.sqrt(2.0 * freedom):
        return laws
    level, told = _level(usable, rule), math.sqrt(2.0 / sum(item.entries for item in usable))
    small = [item in usable and item.entries <= FEW for item in found]
    return [
        _scaled(item.law, level / rule(item.module, item.shape), told) if corrected else item.law
        for item, corrected in zip(found, small, strict=True)
    ]


def _level(usable: Sequence[Sibling], rule: Rule) -> float:
    total = sum(item.entries for item in usable)
    return sum(item.entries * item.law.variance * rule(item.module, item.shape) for item in usable) / total


def _misfit(usable: Sequence[Sibling], rule: Rule) -> float:
    """Chi-squared of the variances about their common level, for normal entries."""
    level = _level(usable, rule)
    return sum(
        item.entries / 2.0 * (item.law.variance * rule(item.module, item.shape) / level - 1.0) ** 2 for item in usable
    )


def _scaled(law: Distribution, variance: float, told: float) -> Distribution:
    quantiles = law.quantiles * math.sqrt(variance / law.variance)
    return replace(law, quantiles=quantiles, variance=variance, uncertainty=told)
