"""The real constructor, called where it is small enough: what it draws and what it fills by a formula.

A model is first built without its weights (`recorder`). Where that could not follow what was done to a parameter, and
for small models always, the constructor is called twice with different seeds. What differs is random, with the
distribution that both draws show; what is equal is a constant or a table, known by its numbers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from sigprop.distributions.distribution import STRUCTURED, SURE, UNKNOWN, Distribution
from sigprop.distributions.independence import kind_of_both
from sigprop.distributions.recorder import Law
from sigprop.errors import SigpropError
from sigprop.isolation import undisturbed

ALWAYS = 4_000_000
"""Parameters up to which the constructor is called in any case."""
AT_MOST = 60_000_000
"""Parameters up to which it is called where the recorder could not follow it."""
SEEDS = (1_234_567, 7_654_321)

Factory = Callable[[], nn.Module]


def constructed(factory: Factory, seed: int) -> nn.Module:
    """What a factory makes from one seed; random states of the process are put back."""
    with undisturbed() as interrupts, interrupts.let_through():
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        torch.manual_seed(seed)
        return factory()


def refined(laws: dict[str, Law], parameters: dict[str, Tensor], factory: Factory) -> dict[str, Law]:
    """The distributions of parameters by name, corrected by what the real constructor does where that is affordable.

    Numbers instead of a distribution: given, those of the one draw that was recorded; returned, a table that a formula
    fills.
    """
    total = sum(parameter.numel() for parameter in parameters.values())
    unknown = any(isinstance(law, Distribution) and law.kind == UNKNOWN for law in laws.values())
    if total > (AT_MOST if unknown else ALWAYS):
        return dict(laws)
    try:
        first, second = (dict(constructed(factory, seed).named_parameters()) for seed in SEEDS)
    except SigpropError:
        raise
    except Exception:  # what only a constructor without weights can do stays as it was recorded
        return dict(laws)
    found: dict[str, Law] = dict(laws)
    for name, law in laws.items():
        one, other = first.get(name), second.get(name)
        if one is not None and other is not None and one.shape == other.shape == parameters[name].shape:
            found[name] = _law(law, one.detach(), other.detach())
    return found


def _law(recorded: Law, one: Tensor, other: Tensor) -> Law:
    """What two draws say of a parameter; the recorded distribution where they agree with it, since it is exact."""
    if not one.is_floating_point():
        return recorded
    if torch.equal(one, other):
        return one.clone() if bool((one != one.flatten()[:1]).any()) else Distribution.constant(float(one.flatten()[0]))
    kind = kind_of_both(one, other)
    if isinstance(recorded, Distribution) and recorded.kind == kind != STRUCTURED and agrees(recorded, one, other):
        return recorded
    return Distribution.measured(torch.cat((one.flatten(), other.flatten())), kind)


def agrees(law: Distribution, *draws: Tensor) -> bool:
    """Whether draws have the mean and the second moment of a distribution, within `SURE` standard errors."""
    values = torch.cat([draw.detach().double().flatten() for draw in draws])
    count = values.numel()
    spread = math.sqrt(law.variance / count)
    tail = float((law.quantiles - law.mean).pow(4).mean())
    scatter = math.sqrt(max(tail - law.variance**2, 0.0) / count)
    mean = abs(float(values.mean()) - law.mean)
    second = abs(float((values - law.mean).square().mean()) - law.variance)
    return mean <= SURE * spread + 1e-6 * abs(law.mean) and second <= SURE * scatter + 1e-5 * law.variance
