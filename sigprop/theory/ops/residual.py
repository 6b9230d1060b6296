"""Residual sum of a skip path and a branch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Carried, Op
from sigprop.theory.ops.token_map import DrawnTokenLinear
from sigprop.theory.states import (
    ALL_TRANSFORMED,
    GIVEN,
    KEPT,
    AlongSignal,
    Common,
    Fluctuation,
    Gradient,
    Signal,
    Status,
    ThroughActivation,
)


@dataclass(frozen=True)
class Residual(Op):
    """`z = skip * x + branch * f`, the branch ending in independent zero-mean weights.

    Forward   `K_z = skip^2 K_x + branch^2 K_f` (plus the product of means)
    Backward  `G_x = skip^2 G_z`, `G_f = branch^2 G_z`; the gradient through the branch is added at `x`

    The shares follow from geometry: with `c^2` the part of the squared norm of `z` that one summand brings,
    a gradient with radial share `p` along `z` has share `c^2 p + 1 - c^2` along the summand. Of a gradient that came
    through a function of `z`, `z` being in part each summand, `ActivationGradient.share` keeps count; what it has
    beyond independence is `c^4` of that of `z`.

    Exact in expectation over the weights of the branch; shares and fluctuations in first order.
    """

    keeps_kurtosis = True

    carries = ALL_TRANSFORMED

    skip: Tensor | float = 1.0
    branch: Tensor | float = 1.0
    rows_in_branch: bool = field(default=False, kw_only=True)
    """Whether it is the second summand that brings embedding rows along, as in `dense(h) + x`."""

    def forward(self, *inputs: Signal) -> Signal:
        x, f = inputs
        skip2, branch2 = self.skip**2, self.branch**2
        kernel = x.kernel.scale(skip2) + f.kernel.scale(branch2)
        cross = kernel.outer(x.mean, f.mean).values + kernel.outer(f.mean, x.mean).values
        kernel = kernel.like(kernel.values + cross * kernel.spread(self.skip * self.branch))
        part_x, part_f = self._parts(x, f)
        cross = 4 * part_x * part_f * (1.0 + x.width * f.common.mixed)
        norm = part_x**2 * x.fluctuation.norm + part_f**2 * f.fluctuation.norm + cross
        uniform = part_x * x.common.uniform + part_f * f.common.uniform
        known = x.fluctuation is GIVEN and f.fluctuation is GIVEN
        return Residual.carries.signal(
            x,
            kernel,
            kernel.per_token(self.skip) * x.mean + kernel.per_token(self.branch) * f.mean,
            evidence=x.evidence.join(f.evidence),
            fluctuation=GIVEN if known else Fluctuation(norm, *self._pairs(x, f)),
            common=Common(uniform, part_x * x.common.share + part_f * f.common.share),
        )

    def _parts(self, x: Signal, f: Signal) -> tuple[Tensor, Tensor]:
        """Shares of the two summands in the squared norm of the sum, averaged over tokens."""
        energy_x = self.skip**2 * x.kernel.level
        energy_f = self.branch**2 * f.kernel.level
        total = (energy_x + energy_f).clamp_min(torch.finfo(energy_x.dtype).tiny)
        return energy_x / total, energy_f / total

    def _pairs(self, x: Signal, f: Signal) -> tuple[Tensor, Tensor]:
        """Fluctuation of pairs, and what of it is inherited.

        It is that of the differences between tokens, of which `f` brings the part `p`:

        `(1-p)^2 v_x + p^2 v_f + 2 p (1-p) (1 + sqrt(o_x o_f))`: 1 for the products of `x` with `f`, and what both have
        from one origin adds up. Sources have none. The sum of two branches is a branch, the sum with a skip path
        is where new ones begin. A branch that mixes tokens has nothing of that; its products with the skip path
        fluctuate by what it is made of.
        """
        energy_x = self.skip**2 * x.kernel.apart().clamp_min(0.0)
        energy_f = self.branch**2 * f.kernel.apart().clamp_min(0.0)
        part = energy_f / (energy_x + energy_f).clamp_min(torch.finfo(energy_x.dtype).tiny)
        started_x, started_f = (torch.as_tensor(item.fluctuation.pair_inherited) > 0.0 for item in (x, f))
        origin_x, origin_f = x.fluctuation.pair_origin, f.fluctuation.pair_origin
        shared = torch.where(started_x | started_f, (origin_x * origin_f).sqrt(), 0.0)
        mixed = torch.as_tensor(f.common.mixed)
        part = torch.where(mixed != 0.0, self._parts(x, f)[1], part)
        shared = torch.where(mixed != 0.0, x.width * mixed, shared)
        correlated = ((1.0 - part) * origin_x.sqrt() + part * origin_f.sqrt()) ** 2
        apart = (1.0 - part) ** 2 * x.fluctuation.pair + part**2 * f.fluctuation.pair
        total = apart + 2.0 * part * (1.0 - part) * (1.0 + shared)
        return total, torch.where(started_x & started_f, correlated, 0.0)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient, Gradient]:
        x, f = inputs
        part_x, part_f = self._parts(x, f)
        rest = gradient.along_signal.rest
        return (
            self._share(gradient, self.skip, x, part_x, 0.0 if self.rows_in_branch else rest),
            self._share(gradient, self.branch, f, part_f, rest if self.rows_in_branch else 0.0),
        )

    @staticmethod
    def _share(gradient: Gradient, scale: Tensor | float, x: Signal, part: Tensor, rest: Tensor | float) -> Gradient:
        """The gradient at a summand. Rows that the rest is along come with one of them, not with fresh weights."""
        slope, factor = gradient.along_signal.slope, scale**2
        seen = gradient.through_activation
        below = tuple(replace(item, share=item.share * part) for item in seen.gradients)
        through = ThroughActivation(below, seen.gain_excess * part**2)
        if isinstance(scale, Tensor) or scale != 1.0:
            scaled = replace(x, kernel=x.kernel.scale(factor), mean=x.mean * x.kernel.per_token(scale))
            through = through.collected(scaled)
        return Residual.carries.gradient(
            gradient,
            gradient.kernel.scale(factor),
            directions=gradient.directions.at_part(part),
            along_signal=AlongSignal(slope * factor if isinstance(slope, Tensor) else 0.0, rest),
            through_activation=through,
        )

    def kurtosis(self, output: Signal, inputs: Sequence[Signal], below: Sequence[Tensor | None]) -> Tensor | None:
        """Of independent tensors cumulants add up."""
        total: Tensor | None = None
        for scale, x, found in zip((self.skip, self.branch), inputs, below, strict=False):
            if found is not None:
                part = scale**2 * x.kernel.diagonal / output.kernel.diagonal.clamp_min(1e-300)
                found = found * part[:, None] * part
                total = found if total is None else total + found
        return total

    def of_entry(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The branch is added to it and is independent of it."""
        return values * self.skip, torch.ones_like(values) * self.skip

    def carried(self, number: int, output: Signal, *inputs: Signal) -> Carried | None:
        scales = (self.skip, self.branch)
        return Carried(output.kernel.per_token(scales[number])) if number < 2 else None


@dataclass(frozen=True)
class BranchOrigin(Op):
    """`y = x`, the tensor at which branches begin: what its pairs of tokens fluctuate by is inherited from nowhere.

    Forward   `K_y = K_x`
    Backward  `G_x = G_y`

    Exact.
    """

    keeps_kurtosis = True

    carries = ALL_TRANSFORMED.but(common=KEPT, directions=KEPT, along_signal=KEPT, through_activation=KEPT)

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        return self.carries.signal(x, x.kernel, x.mean, fluctuation=replace(x.fluctuation, pair_inherited=0.0))

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        return (self.carries.gradient(gradient, gradient.kernel),)

    def carried(self, number: int, output: Signal, *inputs: Signal) -> Carried:
        return Carried(1.0)

    def kurtosis(self, output: Signal, inputs: Sequence[Signal], below: Sequence[Tensor | None]) -> Tensor | None:
        return below[0]


@dataclass(frozen=True)
class Piece:
    """A part of a tensor: at each position so much of that position of the part; `bent` through a function of it;
    `slope`: so much of a gradient the part gets."""

    share: Tensor
    index: Tensor
    slope: Tensor
    bent: bool = False


@dataclass(frozen=True, eq=False)
class SharedResidual(Residual):
    """The sum of two tensors that both have pieces of the further inputs.

    Forward   `K_z = K_x + K_f + C + C^T`, `C` the covariance of the pieces
    Backward  each further input `u` also receives `a_t b_s G_ts` and its transpose: its two gradients are correlated

    Exact where the pieces are all that both have in common.
    """

    carries = ALL_TRANSFORMED

    pieces: tuple[tuple[Piece, Piece], ...] = ()

    def bound(self, states: Any, node: Any) -> SharedResidual:
        first, second, *parts = node.inputs
        return replace(self, pieces=tuple(states.shared_parts.again(first, second, parts, self.pieces)))

    def forward(self, *inputs: Signal) -> Signal:
        made = super().forward(*inputs[:2])
        values = made.kernel.values
        for (mine, other), part in zip(self.pieces, inputs[2:], strict=True):
            covariance = part.covariance.values[mine.index][:, other.index]
            cross = covariance * mine.share[:, None] * other.share * self.skip * self.branch
            values = values + cross + cross.T
        return replace(made, kernel=Dense(values)).note(Status.ASYMPTOTIC, "a part that was added before")

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient, ...]:
        found = list(super().backward(gradient, output, *inputs[:2]))
        for (mine, other), part in zip(self.pieces, inputs[2:], strict=True):
            scaled = gradient.kernel.values * self.skip * self.branch
            found.append(between_pieces(scaled, mine, other, part, gradient))
        return tuple(found)


@dataclass(frozen=True, eq=False)
class VisitedResidual(SharedResidual):
    """The sum of two tensors to which outputs of one weight have brought what both have in common.

    Forward   `K_z = K_x + K_f + C + C^T`, `C` the covariance of the two
    Backward  as `SharedResidual`

    In the limit of infinite width, where `C` is known; independent, and in doubt, where not.
    """

    carries = ALL_TRANSFORMED

    between: Tensor | None = None
    passed: float = 0.0
    """How often the summands came through the same weights (see `of_visits`)."""

    def bound(self, states: Any, node: Any) -> VisitedResidual:
        both, visits, pieces = node.inputs[:2], states.visits, super().bound(states, node).pieces
        return replace(self, pieces=pieces, between=visits.of(*both), passed=max(map(visits.passed, both)))

    def forward(self, *inputs: Signal) -> Signal:
        if self.between is None:
            return super().forward(*inputs)
        made = Residual.forward(self, *inputs[:2])
        cross = self.between * self.skip * self.branch
        made = replace(made, kernel=Dense(made.kernel.values + cross + cross.T))
        return of_visits(made, self.passed + self.more(made, *inputs), made.width)

    def more(self, output: Signal, *inputs: Signal) -> float:
        """How often the sum came through the same weights beyond its summands."""
        x, f = inputs[:2]
        return passes(output.kernel.level, self.skip**2 * x.kernel.level, self.branch**2 * f.kernel.level)


LIMIT = "uses of one weight, as of infinite width"
MANY = "through so many uses of one weight that a finite width counts"
LARGEST = 0.3
"""What finite width may add, in first order."""


def passes(total: Tensor, *parts: Tensor | float) -> float:
    """How often what adds up came through the weights, from how much larger it is than the largest of its parts.

    The sum over words of `n` factors `J` of a weight grows with `J^2` as a power, whose exponent is their mean number.
    """
    largest = max((float(item) for item in parts), default=0.0)
    return abs(math.log(float(total) / largest)) / 2.0 if largest > 0.0 and float(total) > 0.0 else 0.0


State = TypeVar("State", Signal, Gradient)


def of_visits(state: State, passed: float, width: int) -> State:
    """A state that came so often through one set of weights: of products of `n` of them finite width changes `n^2 /
    width` (see docs/log.md)."""
    left = passed**2 / width
    made = replace(state, evidence=state.evidence.doubted(max(left - state.evidence.doubt, 0.0)))
    return made.note(Status.ASYMPTOTIC, LIMIT) if left < LARGEST else made.note(Status.ASSUMED, MANY)


def between_pieces(values: Tensor, mine: Piece, other: Piece, part: Signal, gradient: Gradient) -> Gradient:
    """What a part receives because gradients at two pieces of it are correlated, `values` the kernel between them."""
    values, count = values * mine.slope[:, None] * other.slope, len(part.mean)
    total = torch.zeros(count, values.shape[1], dtype=values.dtype).index_add(0, mine.index, values)
    total = torch.zeros(count, count, dtype=values.dtype).index_add(1, other.index, total)
    return Gradient(Dense(total + total.T), evidence=gradient.evidence)


@dataclass(frozen=True)
class TokenResidual(Residual):
    """`z = skip * x + f`, `f = down(phi(up(norm(x))))` over tokens with drawn matrices.

    Forward   `K_z = skip^2 K_x + K_f + skip (C + C^T)`, `C[t,t'] = Cov(x_t, f_t')` over channels
    Backward  as a plain residual (the cross terms have random signs and add up to order 1/tokens)

    `f` acts on each channel by itself, so it is correlated with `x`: by Stein's lemma `C = s (K up^T) diag(E phi')
    down^T`, with `K` the normalized kernel and `s` the scale of each token of `x`. Exact forward for Gaussian tokens.
    """

    carries = ALL_TRANSFORMED

    cross: Tensor | float = 0.0

    @staticmethod
    def covariance(
        x: Signal, normalized: Signal, up: DrawnTokenLinear, slopes: Tensor, down: DrawnTokenLinear
    ) -> Tensor:
        """`C`, with `slopes` the mean of `phi'` at each hidden token."""
        scale = x.covariance.diagonal.sqrt()
        return scale[..., :, None] * ((normalized.covariance.values @ up.matrix.T) * slopes) @ down.matrix.T

    def forward(self, *inputs: Signal) -> Signal:
        made = super().forward(*inputs)
        both = torch.as_tensor(self.cross * self.skip)
        return replace(made, kernel=made.kernel.like(made.kernel.values + both + both.transpose(-1, -2)))
