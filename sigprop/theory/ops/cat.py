"""Concatenation, along positions and along channels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sigprop.theory.kernels import Dense, Kernel
from sigprop.theory.ops.base import Op, joined_evidence
from sigprop.theory.ops.residual import Piece, between_pieces, of_visits
from sigprop.theory.states import (
    ALL_TRANSFORMED,
    KEPT,
    Common,
    Directions,
    Evidence,
    Fluctuation,
    Gradient,
    Signal,
    Status,
    ended,
)

MATTERS = 0.05
"""Of the gradient's kernel: what may stand between two tensors, unmentioned."""
SMALLEST = 1e-4
"""Share of a kernel's largest eigenvalue below which a direction says nothing of another tensor."""


@dataclass(frozen=True, eq=False)
class CatPositions(Op):
    """Positions of several tensors one after another; fluctuations are averages over positions.

    Tensors are independent but for the `pieces`: the numbers of two of the first `count` inputs, what each holds of one
    of the further inputs, in order. Their covariance stands between the two blocks, and the further input receives the
    gradient between them: its two gradients are correlated. `uses`: pairs made by uses of one weight, with all that
    they have in common in `between`, in the limit of infinite width. `doubt`: why they have more in common than that,
    which is not followed; it lowers the evidence of the output, and of gradients where blocks of `G` are not zero
    between tensors. Exact where the pieces are all that tensors have in common.

    Forward   the kernels are blocks of `K_y`; between two tensors stand `m m'^T` and what their pieces have in common
    Backward  each gets the block of its positions of `G`, `B` and `H`; of a use `B K K_own^-1`, what is along all of
              them. What `sum_t g_t x_t` has over all positions cannot be told apart again, unless draws have told it
              position by position: that ends
    """

    carries = ALL_TRANSFORMED.but(directions=KEPT)

    count: int | None = None
    pieces: tuple[tuple[int, Piece, int, Piece], ...] = ()
    doubt: str = ""
    uses: tuple[tuple[int, int], ...] = ()
    between: tuple[Tensor | None, ...] = ()
    passed: float = 0.0
    """How often the tensors came through one set of weights (see `of_visits`)."""

    def bound(self, states: Any, node: Any) -> CatPositions:
        made = self._again(states, node)
        if not self.uses:
            return made
        pairs = [(node.inputs[first], node.inputs[second]) for first, second in self.uses]
        passed = max(states.visits.passed(item) for pair in pairs for item in pair)
        return replace(made, between=tuple(states.visits.of(*pair) for pair in pairs), passed=passed)

    def _again(self, states: Any, node: Any) -> CatPositions:
        if not self.pieces:
            return self
        parts, found = node.inputs[self.count :], list(self.pieces)
        for pair in dict.fromkeys((first, second) for first, _, second, _ in self.pieces):
            places = [n for n, (first, _, second, _) in enumerate(self.pieces) if (first, second) == pair]
            one, other = (node.inputs[number] for number in pair)
            own = [(self.pieces[n][1], self.pieces[n][3]) for n in places]
            again = states.shared_parts.again(one, other, [parts[n] for n in places], own)
            for n, (mine, theirs) in zip(places, again, strict=True):
                found[n] = (pair[0], mine, pair[1], theirs)
        return replace(self, pieces=tuple(found))

    def forward(self, *inputs: Signal) -> Signal:
        inputs, parts = inputs[: self.count], inputs[len(inputs[: self.count]) :]
        covariance = torch.block_diag(*(x.covariance.values for x in inputs))
        found = [(pair, cross) for pair, cross in zip(self.uses, self.between, strict=False) if cross is not None]
        for (first, mine, second, other), part in zip(self.pieces, parts, strict=True):
            if (first, second) not in self.uses:
                values = part.covariance.values[mine.index][:, other.index]
                found.append(((first, second), values * mine.share[:, None] * other.share))
        for (first, second), cross in found:
            rows, columns = self.block_of(first, inputs), self.block_of(second, inputs)
            covariance[rows, columns] += cross
            covariance[columns, rows] += cross.T
        mean = torch.cat([x.mean for x in inputs])
        counts = [len(x.mean) / len(mean) for x in inputs]

        def average(part: str, name: str) -> Tensor | float:
            return sum(n * getattr(getattr(x, part), name) for n, x in zip(counts, inputs, strict=True))

        evidence = joined_evidence(*inputs)
        made = self.carries.signal(
            inputs[0],
            Dense(covariance + mean[:, None] * mean),
            mean,
            evidence=evidence.join(Evidence(Status.ASSUMED, self.doubt)) if self.doubt else evidence,
            fluctuation=Fluctuation(*(average("fluctuation", name) for name in ("norm", "pair", "pair_inherited"))),
            common=Common(*(average("common", name) for name in ("uniform", "share", "mixed"))),
        )
        return of_visits(made, self.passed, made.width) if self.between else made

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient, ...]:
        inputs, parts = inputs[: self.count], inputs[len(inputs[: self.count]) :]
        if self.doubt and self._between(gradient, inputs) > MATTERS:
            gradient = gradient.note(Status.ASSUMED, self.doubt)
        kernel = output.kernel.values if self.uses else None
        found = [self._block(gradient, self.block_of(number, inputs), kernel) for number in range(len(inputs))]
        for (first, mine, second, other), part in zip(self.pieces, parts, strict=True):
            between = gradient.kernel.values[self.block_of(first, inputs), self.block_of(second, inputs)]
            found.append(between_pieces(between, mine, other, part, gradient))
        return tuple(found)

    def _between(self, gradient: Gradient, inputs: tuple[Signal, ...]) -> float:
        """The largest entry of the gradient's kernel between two tensors, in units of the largest of all."""
        values = gradient.kernel.values.abs()
        apart = values.clone()
        for number in range(len(inputs)):
            apart[self.block_of(number, inputs), self.block_of(number, inputs)] = 0.0
        return float(apart.max() / values.max().clamp_min(1e-300))

    @staticmethod
    def block_of(number: int, inputs: tuple[Signal, ...]) -> slice:
        start = sum(len(x.mean) for x in inputs[:number])
        return slice(start, start + len(inputs[number].mean))

    def _block(self, gradient: Gradient, own: slice, joint: Tensor | None) -> Gradient:
        def cut(kernel: Kernel) -> Kernel:
            return Dense(kernel.values[own, own])

        excess = torch.as_tensor(gradient.through_activation.gain_excess)
        excess = excess[own].sum() if excess.ndim else 0.0
        along = gradient.along_signal.moved(lambda values: values[(own,) * values.ndim])
        slope = gradient.along_signal.slope
        if joint is not None and isinstance(slope, Tensor) and slope.ndim == 2:
            along = replace(along, slope=_in_own(slope[own], joint, own))
        return self.carries.gradient(
            gradient,
            cut(gradient.kernel),
            along_signal=along,
            through_activation=replace(gradient.through_activation.moved(cut), gain_excess=excess),
        )


def _in_own(slope: Tensor, joint: Tensor, own: slice) -> Tensor:
    """The slope along one of several tensors, of a gradient that is along all: others as far as they follow from it."""
    return slope @ joint[:, own] @ torch.linalg.pinv(joint[own, own], rtol=SMALLEST, hermitian=True)


@dataclass(frozen=True, eq=False)
class CatChannels(Op):
    """Channels side by side: the average of the states, weighted by their widths.

    Forward   `K_y = sum w K_x`, mean `sum w m`, `w` the share of the channels
    Backward  each gets the gradient of its channels; of the shares `p` of that along the signal and along all ones it
              has `e p + 1 - e` and `w p + 1 - w`, as the summands of a residual sum do, with `e` the share of the
              squared norm that a tensor brings

    `norm` and `pair` are `sum e^2 v / w`, what is inherited is correlated, `(sum e sqrt(v / w))^2`, and what is uniform
    `sum e u`. Exact for independent tensors.
    """

    carries = ALL_TRANSFORMED.but(
        along_signal=KEPT,
        through_activation=ended("channels of different tensors have distributions of their own under one function"),
    )

    shares: tuple[float, ...]
    width: int

    def forward(self, *inputs: Signal) -> Signal:
        kernel = torch.stack([s * x.kernel.values for s, x in zip(self.shares, inputs, strict=True)]).sum(0)
        mean = torch.stack([s * x.mean for s, x in zip(self.shares, inputs, strict=True)]).sum(0)
        brought = list(zip(self._brought(inputs), self.shares, inputs, strict=True))
        step = sum(e * (torch.as_tensor(x.fluctuation.pair_inherited) / w).sqrt() for e, w, x in brought)
        fluctuation = Fluctuation(
            sum(e**2 * x.fluctuation.norm / w for e, w, x in brought),
            sum(e**2 * x.fluctuation.pair / w for e, w, x in brought),
            step**2,
        )
        common = Common(
            sum(e * x.common.uniform for e, _, x in brought), sum(e * w * x.common.share for e, w, x in brought)
        )
        evidence = joined_evidence(*inputs)
        return self.carries.signal(
            inputs[0], Dense(kernel), mean, self.width, evidence, fluctuation=fluctuation, common=common
        )

    def _brought(self, inputs: tuple[Signal, ...]) -> list[Tensor]:
        energies = [share * x.kernel.diagonal.mean() for share, x in zip(self.shares, inputs, strict=True)]
        total = torch.stack(energies).sum().clamp_min(1e-300)
        return [energy / total for energy in energies]

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient, ...]:
        before = gradient.directions
        found = []
        for part, share in zip(self._brought(inputs), self.shares, strict=True):
            directions = Directions(1.0 + (before.radial - 1.0) * part, 1.0 + (before.uniform - 1.0) * share)
            found.append(self.carries.gradient(gradient, gradient.kernel, directions=directions))
        return tuple(found)
