"""Random numbers that a model samples in its forward: others would do as well, and every draw takes its own.

A tensor of such numbers knows how it was made: filled by a distribution, or a function of other noise, entry by entry.
Who gives a generator means the numbers that it makes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

NOISE = "_sigprop_noise"
STANDARD = {"randn": "normal", "randn_like": "normal", "rand": "uniform", "rand_like": "uniform"}
DIRECT = frozenset((*STANDARD, "normal"))
"""Makers that return new numbers; the others fill a tensor."""
USUAL: dict[str, dict[str, float]] = {
    "normal": {"mean": 0.0, "std": 1.0},
    "uniform": {"from": 0.0, "to": 1.0},
    "bernoulli": {"p": 0.5},
    "exponential": {"lambd": 1.0},
}
"""Distributions that fill a tensor, and their parameters where none are given."""
MAKERS = frozenset((*STANDARD, *USUAL))
ENTRYWISE = frozenset(
    ("add", "radd", "sub", "rsub", "mul", "rmul", "div", "truediv", "neg", "floor", "exp", "log", "sqrt", "clamp")
)
FEWEST, ENTRIES = 16, 1 << 18
"""Samples that tell second moments, of so many entries together."""


class Samples:
    """Noise of one draw: the same for all that is made of it."""

    def __init__(self, generator: torch.Generator):
        self.generator = generator
        self._found: dict[Any, Tensor] = {}

    def of(self, way: Callable[[Samples], Tensor]) -> Tensor:
        if way not in self._found:
            self._found[way] = way(self)
        return self._found[way]


def remember_noise(made: Any, func: Callable, name: str, args: tuple, kwargs: dict[str, Any]) -> None:
    """Let what a call made know how, or forget it."""
    if isinstance(made, Tensor):
        setattr(made, NOISE, _way(made, func, name, args, kwargs))


def _way(made: Tensor, func: Callable, name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
    if not made.is_floating_point() or kwargs.get("generator") is not None:
        return None
    if name in MAKERS:
        in_place = getattr(func, "__name__", "").endswith("_")
        return _filled(name, args[1:] if in_place else args, kwargs, made) if in_place or name in DIRECT else None
    ways = [getattr(item, NOISE, None) for item in args]
    if name not in ENTRYWISE or not any(ways) or any(isinstance(item, Tensor) for item in kwargs.values()):
        return None
    pairs = [(item, way) for item, way in zip(args, ways, strict=True)]

    def made_of(samples: Samples) -> Tensor:
        return func(*(item if way is None else samples.of(way).clone() for item, way in pairs), **kwargs)

    return made_of


def _filled(name: str, numbers: tuple, kwargs: dict[str, Any], made: Tensor) -> Any:
    """A way to fill a tensor by a distribution of two numbers or fewer, of which the first may be given by name."""
    kind = STANDARD.get(name, name)
    found = list(USUAL[kind].values())
    if name in USUAL:
        found = [kwargs.get(key, usual) for key, usual in USUAL[kind].items()]
        found[: len(numbers)] = [_number(item) for item in numbers[: len(found)]]
    if None in found:
        return None
    shape, dtype = made.shape, made.dtype

    def drawn(samples: Samples) -> Tensor:
        if kind == "normal":
            return found[0] + found[1] * torch.randn(shape, generator=samples.generator, dtype=dtype)
        even = torch.rand(shape, generator=samples.generator, dtype=dtype)
        if kind == "uniform":
            return found[0] + (found[1] - found[0]) * even
        return (even < found[0]).to(dtype) if kind == "bernoulli" else -torch.log1p(-even) / found[0]

    return drawn


def _number(item: Any) -> float | None:
    """The number that fills a tensor, or is one; None for several numbers."""
    if isinstance(item, Tensor):
        return float(item.flatten()[0]) if item.numel() and bool((item == item.flatten()[0]).all()) else None
    return float(item)


def expected(way: Callable[[Samples], Tensor], rows: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Second moments over pairs of positions, and the mean, averaged over channels and samples; `rows` of a sample."""
    generator = torch.Generator().manual_seed(0)
    found = [rows(Samples(generator).of(way))]
    found += [rows(Samples(generator).of(way)) for _ in range(max(FEWEST, math.ceil(ENTRIES / found[0].numel())) - 1)]
    kernel = sum((item @ item.T for item in found), start=torch.zeros((), dtype=torch.float64))
    return kernel / (len(found) * found[0].shape[1]), torch.stack([item.mean(1) for item in found]).mean(0)
