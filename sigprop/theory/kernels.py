"""Second moments over pairs of tokens, in two representations behind one interface.

A kernel holds `K[t, t'] = E[x_t x_t']`, averaged over channels. Rules are written on *pair values*: a tensor that
has one entry per kind of pair. `Exchangeable` has two kinds (same token, different tokens) and broadcasts over any
grid of hyperparameters; `Dense` has all T x T pairs. Per-token vectors are spread onto pairs by `left` and `right`,
so that most rules are one line that serves both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

Self = TypeVar("Self", bound="Kernel")
ROUNDING = 1e-7
"""Of the sum over tokens of a gradient, against that of identical tokens: what cancels to less is rounding."""
NO_DIRECTION = 1e-12
"""A token whose mean square is this small beside the largest has no direction (in norm: a millionth)."""


class Kernel(ABC):
    """Values over token pairs, with elementwise arithmetic."""

    pair_axes: ClassVar[int]
    """Trailing axes of the values; a per-token vector has one less."""

    def __init__(self, values: Tensor, tokens: int):
        self.values = values
        self.tokens = tokens

    def like(self: Self, values: Tensor) -> Self:
        """The same representation with other pair values."""
        return type(self)(values, self.tokens)

    def __add__(self: Self, other: Kernel) -> Self:
        return self.like(self.values + other.values)

    def __sub__(self: Self, other: Kernel) -> Self:
        return self.like(self.values - other.values)

    def __mul__(self: Self, other: Kernel) -> Self:
        return self.like(self.values * other.values)

    def scale(self: Self, factor: Tensor | float) -> Self:
        """Multiply every pair by one factor (a number or a grid)."""
        return self.like(self.values * self.spread(factor))

    def outer(self: Self, left: Tensor, right: Tensor) -> Self:
        """The kernel `left_t right_t'` of two per-token vectors."""
        return self.like(self.left(left) * self.right(right) + torch.zeros_like(self.values))

    def contract(self, other: Kernel) -> Tensor:
        """Sum over all token pairs of the product of two kernels."""
        return (self * other).total()

    def spread(self, factor: Tensor | float) -> Tensor | float:
        """Give a number or grid the trailing axes of the pair values."""
        return _with_axes(factor, self.pair_axes)

    def spread_all(self, *factors: Tensor | float) -> list[Tensor | float]:
        return [_with_axes(factor, self.pair_axes) for factor in factors]

    def per_token(self, factor: Tensor | float) -> Tensor | float:
        """Give a number or grid the trailing axes of a per-token vector."""
        return _with_axes(factor, self.pair_axes - 1)

    @abstractmethod
    def left(self, vector: Tensor) -> Tensor:
        """A per-token vector, placed on the first token of each pair."""

    @abstractmethod
    def right(self, vector: Tensor) -> Tensor:
        """A per-token vector, placed on the second token of each pair."""

    @cached_property
    @abstractmethod
    def diagonal(self) -> Tensor:
        """Per-token vector of same-token values."""

    @abstractmethod
    def add_diagonal(self: Self, vector: Tensor) -> Self:
        """Add a per-token vector to the same-token pairs."""

    @abstractmethod
    def total(self) -> Tensor:
        """Sum over all ordered token pairs."""

    def summed(self) -> Tensor:
        """Mean square of the sum over tokens; zero where only rounding is left of it.

        Nobody sees a shift that all keys have in common: what float32 draws leave of that sum is no number.
        """
        total = self.total()
        return torch.where(total > ROUNDING * self.tokens**2 * self.level, total, torch.zeros_like(total))

    @abstractmethod
    def token_average(self, vector: Tensor) -> Tensor:
        """Average of a per-token vector over tokens."""

    @abstractmethod
    def pair_average(self) -> Tensor:
        """Average over ordered pairs of different tokens (nan for a single token)."""

    @abstractmethod
    def centred(self: Self) -> Self:
        """The kernel of `x_t - average over tokens of x`."""

    @abstractmethod
    def met_by(self, matrix: Tensor) -> Tensor:
        """`M K` of a map over tokens, all pairs written out."""

    @abstractmethod
    def mapped(self, matrix: Tensor) -> Kernel:
        """`M K M^T`, the kernel of `M x`; of exchangeable tokens, that of its average token and pair."""

    @abstractmethod
    def transposed(self: Self) -> Self:
        """The two tokens of each pair exchanged."""

    @abstractmethod
    def dense(self) -> Dense:
        """With all pairs written out."""

    @abstractmethod
    def exchangeable(self) -> Exchangeable:
        """With all tokens taken as exchangeable."""

    @cached_property
    def level(self) -> Tensor:
        """Mean square over tokens."""
        return self.token_average(self.diagonal)

    def cosine_average(self) -> Tensor:
        """Average cosine over pairs of different tokens."""
        return self.normalized().pair_average()

    def apart(self) -> Tensor:
        """Mean square of the differences of tokens from their average."""
        return self.level - self.total() / self.tokens**2

    def squared_cosine(self) -> Tensor:
        """Average square of the cosines over all pairs of tokens: the correlation of their squared norms."""
        cosine = self.normalized()
        return cosine.like(cosine.values**2).total() / self.tokens**2

    def scale_diagonal(self: Self, factor: Tensor | float) -> Self:
        """Multiply the same-token pairs by a factor."""
        return self.add_diagonal(self.diagonal * (factor - 1.0))

    def normalized(self: Self) -> Self:
        """Cosines: every pair divided by the root of its two same-token values; what rounding leaves of a token that is
        zero (a difference with itself) is no direction."""
        root = self.diagonal.clamp_min(torch.finfo(self.values.dtype).tiny).sqrt()
        return self.like((self.values / (self.left(root) * self.right(root))).clamp(-1.0, 1.0))


class Exchangeable(Kernel):
    """Exchangeable tokens: `values[..., 0]` for the same token, `values[..., 1]` for two different ones."""

    pair_axes = 1

    @classmethod
    def of(cls, same: Tensor | float, different: Tensor | float, tokens: int) -> Exchangeable:
        pair = torch.broadcast_tensors(_float64(same), _float64(different))
        return cls(torch.stack(pair, -1), tokens)

    def left(self, vector: Tensor) -> Tensor:
        return vector[..., None]

    right = left

    @cached_property
    def diagonal(self) -> Tensor:
        return self.values[..., 0]

    @property
    def different(self) -> Tensor:
        return self.values[..., 1]

    def add_diagonal(self, vector: Tensor) -> Exchangeable:
        return self.like(torch.stack((self.diagonal + vector, self.different + torch.zeros_like(vector)), -1))

    def total(self) -> Tensor:
        return self.tokens * (self.diagonal + (self.tokens - 1) * self.different)

    def token_average(self, vector: Tensor) -> Tensor:
        return vector

    def pair_average(self) -> Tensor:
        return self.different if self.tokens > 1 else torch.full_like(self.different, torch.nan)

    def centred(self) -> Exchangeable:
        return self.like(self.values - (self.total() / self.tokens**2)[..., None])

    def met_by(self, matrix: Tensor) -> Tensor:
        rows, (same, different) = matrix.to(self.values), (v[..., None, None] for v in self.values.unbind(-1))
        return different * rows.sum(-1, keepdim=True) + (same - different) * rows

    def mapped(self, matrix: Tensor) -> Exchangeable:
        (own, pair), (own_sum, pair_sum) = _average_products(matrix), _average_products(matrix.sum(1, keepdim=True))
        same, different = self.values.unbind(-1)
        apart = same - different
        return Exchangeable.of(different * own_sum + apart * own, different * pair_sum + apart * pair, len(matrix))

    def transposed(self) -> Exchangeable:
        return self

    def exchangeable(self) -> Exchangeable:
        return self

    def dense(self) -> Dense:
        """The same kernel with all pairs written out (the grid, if any, stays in front)."""
        eye = torch.eye(self.tokens, dtype=self.values.dtype, device=self.values.device)
        values = self.different[..., None, None] * (1 - eye) + self.diagonal[..., None, None] * eye
        return Dense(values, self.tokens)


class Dense(Kernel):
    """Every pair of tokens: `values[..., t, t']`."""

    pair_axes = 2

    def __init__(self, values: Tensor, tokens: int | None = None):
        super().__init__(values, tokens or values.shape[-1])

    def left(self, vector: Tensor) -> Tensor:
        return vector[..., :, None]

    def right(self, vector: Tensor) -> Tensor:
        return vector[..., None, :]

    @cached_property
    def diagonal(self) -> Tensor:
        return self.values.diagonal(dim1=-2, dim2=-1)

    def add_diagonal(self, vector: Tensor) -> Dense:
        return self.like(self.values + torch.diag_embed(vector.expand(self.values.shape[:-1])))

    def total(self) -> Tensor:
        return self.values.sum((-2, -1))

    def token_average(self, vector: Tensor) -> Tensor:
        return vector.mean(-1) if vector.ndim else vector

    def pair_average(self) -> Tensor:
        pairs = self.tokens * (self.tokens - 1)
        different = self.total() - self.diagonal.sum(-1)
        return different / pairs if pairs else torch.full_like(different, torch.nan)

    def cosine_average(self) -> Tensor:
        """Average cosine over pairs of tokens, those without a direction left out, as in a measurement."""
        level = self.diagonal
        known = (level > NO_DIRECTION * level.amax(-1, keepdim=True)).to(level.dtype)
        count = known.sum(-1)
        cosines = self.normalized().values * known[..., :, None] * known[..., None, :]
        different = cosines.sum((-2, -1)) - (cosines.diagonal(dim1=-2, dim2=-1)).sum(-1)
        return different / (count * (count - 1))

    def centred(self) -> Dense:
        half = self.values - self.values.mean(-1, keepdim=True)
        return self.like(half - half.mean(-2, keepdim=True))

    def met_by(self, matrix: Tensor) -> Tensor:
        return matrix.to(self.values) @ self.values

    def mapped(self, matrix: Tensor) -> Dense:
        return Dense(self.met_by(matrix) @ matrix.to(self.values).T)

    def transposed(self) -> Dense:
        return self.like(self.values.transpose(-1, -2))

    def dense(self) -> Dense:
        return self

    def exchangeable(self) -> Exchangeable:
        """The closest exchangeable kernel: averages over tokens and over pairs."""
        return Exchangeable.of(self.level, self.pair_average(), self.tokens)


def _average_products(rows: Tensor) -> tuple[float, float]:
    """Average product of a row with itself, and with another one (itself if there is no other)."""
    count, own = len(rows), float(rows.square().sum()) / len(rows)
    total = float(rows.sum(0).square().sum())
    return own, (total - count * own) / (count * (count - 1)) if count > 1 else own


def _with_axes(factor: Tensor | float, count: int) -> Tensor | float:
    return factor[(..., *[None] * count)] if isinstance(factor, Tensor) and factor.ndim else factor


def _float64(value: Tensor | float) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64)
