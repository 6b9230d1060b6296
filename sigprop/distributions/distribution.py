"""How the entries of a parameter are initialized: their quantiles, mean and variance, and what they share."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

PIECE = 1 << 18
"""Entries of a tensor that are copied to float64 at once."""
QUANTILES = 4096
LARGE = 1 << 20
"""Entries up to which a table is known by its numbers."""
SURE = 4.5
"""Standard errors beyond which a sample mean is not that of a centred distribution: 1 in 150,000 by chance."""

INDEPENDENT = "independent"
ORTHOGONAL = "orthogonal"
CENTRED = "centred"
STRUCTURED = "structured"
UNKNOWN = "unknown"
COPIED = "copied"


@dataclass(frozen=True)
class Distribution:
    """How the entries of a parameter are initialized: their sorted quantiles, mean and variance.

    `kind` says what the entries share: nothing (`independent`), orthogonal rows or columns (`orthogonal`), a sum of
    zero over the inputs of each output (`centred`), a formula, an identity, training (`structured`), that the
    builder could not be tracked (`unknown`), or their numbers with another parameter (`copied`).
    `uncertainty` is the relative standard error of the variance where it was read off numbers, and zero where the
    distribution is known. `numbers` are the entries themselves, where they are not drawn.
    """

    quantiles: Tensor
    mean: float
    variance: float
    kind: str = INDEPENDENT
    uncertainty: float = 0.0
    numbers: Tensor | None = None
    row_tails: float | None = None

    @property
    def tails(self) -> float:
        """The excess kurtosis that sums of entries see: of rows whose length is known, by that."""
        if self.row_tails is not None:
            return self.row_tails
        if not self.variance:
            return 0.0
        return float((self.quantiles - self.mean).pow(4).mean()) / self.variance**2 - 3.0

    @classmethod
    def of(cls, quantiles: Tensor, kind: str = INDEPENDENT) -> Distribution:
        values = quantiles.double().flatten()
        return cls(values, *_moments(values), kind)

    @classmethod
    @cache
    def normal(cls, mean: float, deviation: float, kind: str = INDEPENDENT) -> Distribution:
        grid = torch.special.ndtri(_levels())
        values = mean + deviation * grid / grid.square().mean().sqrt()
        return cls(values, float(mean), float(deviation) ** 2, kind)

    @classmethod
    def uniform(cls, low: float, high: float) -> Distribution:
        return cls(low + (high - low) * _levels(), (low + high) / 2, (high - low) ** 2 / 12)

    @classmethod
    @cache
    def truncated_normal(cls, mean: float, deviation: float, low: float, high: float) -> Distribution:
        bounds = torch.tensor([(low - mean) / deviation, (high - mean) / deviation], dtype=torch.float64)
        left, right = torch.special.ndtr(bounds)
        return cls.of(mean + deviation * torch.special.ndtri(left + (right - left) * _levels()))

    @classmethod
    def constant(cls, value: float, kind: str = INDEPENDENT) -> Distribution:
        return cls(torch.full((1,), float(value), dtype=torch.float64), float(value), 0.0, kind)

    @classmethod
    def measured(cls, tensor: Tensor, kind: str = INDEPENDENT) -> Distribution:
        """From a real tensor: its mean (zero, for independent entries, where that is within its standard error),
        its variance, and quantiles from an even subsample."""
        values = tensor.detach().flatten()
        if values.numel() == 0:
            return cls.constant(0.0)
        step = max(1, values.numel() // QUANTILES)
        quantiles = values[::step].double().sort().values
        found = cls(quantiles, *_moments(values))
        told = _told(quantiles - found.mean, found.variance, values.numel())
        chance = SURE * math.sqrt(found.variance / values.numel()) if kind != STRUCTURED else 0.0
        if 0.0 < abs(found.mean) <= chance:
            return cls(quantiles, 0.0, found.second_moment, kind, told)
        return cls(quantiles, found.mean, found.variance, kind, told)

    @classmethod
    def table(cls, tensor: Tensor) -> Distribution:
        """Of entries that are the same in every initialization."""
        found = cls.measured(tensor, STRUCTURED)
        if found.variance == 0.0:
            return cls.constant(found.mean)
        return replace(found, uncertainty=0.0, numbers=tensor.detach() if tensor.numel() <= LARGE else None)

    def times(self, factor: float) -> Distribution:
        """That of the entries times a number."""
        numbers = None if self.numbers is None else self.numbers * factor
        moments = (self.quantiles * factor, self.mean * factor, self.variance * factor**2)
        return Distribution(*moments, self.kind, self.uncertainty, numbers)

    def with_zeros(self, share: float) -> Distribution:
        """That of all entries, where a share of them is zero."""
        mean = (1.0 - share) * self.mean
        zeros = torch.zeros(max(1, round(len(self.quantiles) * share / (1.0 - share))), dtype=torch.float64)
        quantiles = torch.cat((self.quantiles, zeros)).sort().values
        return replace(self, quantiles=quantiles, mean=mean, variance=(1.0 - share) * self.second_moment - mean**2)

    @property
    def second_moment(self) -> float:
        return self.variance + self.mean**2

    @property
    def unevenness(self) -> float:
        """`E w^4 / (E w^2)^2`: 1 where all entries have one size, 3 for normal ones."""
        squares = self.quantiles.square()
        return float(squares.square().mean() / squares.mean().square()) if bool(squares.any()) else 1.0

    def draw(self, shape: torch.Size | tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Independent entries, float64; those of a table of this shape as they are."""
        if self.numbers is not None and self.numbers.shape == tuple(shape):
            return self.numbers.double()
        index = torch.randint(len(self.quantiles), tuple(shape), generator=generator)
        return self.quantiles[index]


def _told(centred: Tensor, variance: float, count: int) -> float:
    """The relative standard error of the variance of so many entries, by the tails of an even subsample."""
    if variance == 0.0:
        return 0.0
    tail = float((centred / math.sqrt(variance)).pow(4).mean())
    return math.sqrt(max(tail - 1.0, 0.1) / count)


def _moments(values: Tensor) -> tuple[float, float]:
    """Mean and variance, in sums about the first entry: exact for constants. Large ones are copied piece by piece."""
    first, pieces = values[0].double(), values.split(PIECE)
    offset = sum(float((piece.double() - first).sum()) for piece in pieces) / len(values)
    square = sum(float((piece.double() - first).square_().sum()) for piece in pieces) / len(values)
    mean, variance = float(first) + offset, square - offset**2
    return mean, variance if variance > 1e-14 * mean**2 else 0.0


def _levels() -> Tensor:
    return (torch.arange(QUANTILES, dtype=torch.float64) + 0.5) / QUANTILES
