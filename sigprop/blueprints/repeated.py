"""Stacks of like blocks, all layers at once.

A recursion `x_{l+1} = f(x_l)` over layers looks sequential. Here the block is tabulated once over a grid of states, the
table is walked to get a close guess of the whole trajectory, and Newton's method polishes it: every iteration evaluates
all blocks in one vectorized call (depth is just another grid axis of an exchangeable state) and solves a linear
recursion of a few numbers per layer. The result equals the sequential one to rounding; where the method does not
apply (settings that change from layer to layer) or does not converge, the sequential chain is used.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.interpolate import RegularGridInterpolator
from scipy.linalg import solve_banded
from torch import Tensor

from sigprop.blueprints.base import Blueprint, Tape
from sigprop.graph.graph import Node
from sigprop.theory import EXACT, Evidence, Exchangeable, Gradient, Signal
from sigprop.theory.ops.residual import BranchOrigin
from sigprop.theory.states import Common, Directions, Fluctuation

ALL = slice(None)
Layer = int | slice
Step = Callable[[Tensor], Tensor]
SMALLEST_DEPTH = 16
_LEVELS = (-4.0, 14.0, 14)
_STEP = 1e-6
_TOLERANCE = 1e-6
_ITERATIONS = 8
_ROUNDING = 1e-10
"""Weight of a coordinate below which it is rounding: so are finite differences by it, and Newton's step would carry
them to layers where they count."""


@dataclass(frozen=True)
class RepeatedBlueprint(Blueprint):
    """A start, `depth` blocks that map a stream to a stream of the same shape, and a finish."""

    depth: int

    @abstractmethod
    def start(self, tape: Tape) -> Node:
        """The stream that enters the first block."""

    @abstractmethod
    def block(self, tape: Tape, x: Node, layer: Layer, name: str) -> Node:
        """One block, or all of them side by side when `layer` is `ALL`."""

    @abstractmethod
    def finish(self, tape: Tape, x: Node) -> Node:
        """From the stream that leaves the last block to the output."""

    def stream(self, tape: Tape) -> Node:
        """The start, as the tensor at which branches begin."""
        return tape.apply(BranchOrigin(), self.start(tape))

    def forward(self, tape: Tape) -> Node:
        x = self.stream(tape)
        for layer in range(self.depth):
            x = self.block(tape, x, layer, f"blocks.{layer}")
        return self.finish(tape, x)


@dataclass(frozen=True)
class Unrolled:
    """The three tapes of a stack solved at once; `blocks` has one grid axis, the layer."""

    start: Tape
    blocks: Tape
    finish: Tape
    depth: int


def unroll(blueprint: RepeatedBlueprint, top: Gradient | None) -> Unrolled | None:
    """Forward and backward of all layers at once, or None where the method does not apply."""
    start = Tape()
    x = blueprint.stream(start)
    signal = start.signal(x)
    if blueprint.depth < SMALLEST_DEPTH or signal.kernel.values.ndim != 1 or bool(signal.mean.any()):
        return None
    tape = Tape()
    codec = _Codec(signal, tape.signal(blueprint.block(tape, tape.source(signal), 0, "")))

    def forward(states: Tensor) -> Tensor:
        tape = Tape()
        return codec.encode(tape.signal(blueprint.block(tape, tape.source(codec.decode(states)), ALL, "")))

    guess = _walk(forward, codec.encode(signal), blueprint.depth)
    states = None if guess is None else _polish(forward, guess, codec.precision)
    if states is None:
        return None
    blocks = Tape()
    inner = blocks.source(codec.decode(states[:-1]))
    outer = blueprint.block(blocks, inner, ALL, "blocks")
    finish = Tape()
    last = finish.source(codec.decode(states[-1], blocks.signal(outer).evidence))
    output = blueprint.finish(finish, last)
    finish.backward((output, blueprint.top_gradient(finish, output) if top is None else top))
    arrived = finish.states.gradient(last)

    def backward(gradients: Tensor) -> Tensor:
        blocks.backward((outer, codec.decode_gradient(gradients.flip(-2))))
        return codec.encode_gradient(blocks.states.gradient(inner)).flip(-2)

    descent = _descend(backward, codec.encode_gradient(arrived), blueprint.depth)
    down = None if descent is None else _polish(backward, descent, torch.ones_like)
    if down is None:
        return None
    per_block = blocks.states.gradient(inner).evidence.doubt
    evidence = blocks.signal(outer).evidence.join(arrived.evidence).doubted(per_block * (blueprint.depth - 1))
    blocks.backward((outer, codec.decode_gradient(down[:-1].flip(0), evidence)))
    start.backward((x, codec.decode_gradient(down[-1], blocks.states.gradient(inner).evidence)))
    return Unrolled(start, blocks, finish, blueprint.depth)


def _walk(step: Step, first: Tensor, layers: int) -> Tensor | None:
    """Guess of the forward trajectory: `step` tabulated over (log variance, -log(1 - r)), walked layer by layer."""
    levels = first[0] + torch.linspace(*_LEVELS, dtype=torch.float64)
    levels[levels.abs().argmin()] = 0.0
    bends = torch.linspace(0.0, 38.0**0.5, 24, dtype=torch.float64) ** 2
    grid = torch.cartesian_prod(levels, bends)
    inputs = torch.cat((grid, first[2:].expand(len(grid), -1)), 1)[:, None]
    table = step(inputs)
    if table.shape != inputs.shape:
        return None
    table = RegularGridInterpolator((levels, bends), table.reshape(len(levels), len(bends), -1).numpy())
    low, high, rows = grid[0].numpy(), grid[-1].numpy(), [first.numpy()]
    for _ in range(layers):
        rows.append(table(np.clip(rows[-1][:2], low, high))[0])
    return torch.from_numpy(np.stack(rows))


def _descend(step: Step, first: Tensor, layers: int) -> Tensor | None:
    """Guess of the backward trajectory: a block is linear in the gradient's two kernel values, up to 1/width.

    None where a block would make a gradient of no energy, as rounding does in a stack that explodes.
    """
    basis = first.expand(2, layers, len(first)).clone()
    basis[..., 0] = 0.0
    basis[1, :, 1], basis[0, :, 1] = 0.5, 0.0
    values = step(basis)
    gains, shares = values[..., 0].exp(), values[0, :, 2:].tolist()
    zero = torch.stack((gains[0], gains[0] * values[0, :, 1]), -1)
    slope = (torch.stack((gains[1], gains[1] * values[1, :, 1]), -1) - zero) / 0.5
    level, correlation = float(first[0]), float(first[1])
    rows = [first.tolist()]
    for (z0, z1), (s0, s1), share in zip(zero.tolist(), slope.tolist(), shares, strict=True):
        gain = z0 + correlation * s0
        if not 0.0 < gain < math.inf:
            return None
        correlation = (z1 + correlation * s1) / gain
        level += math.log(gain)
        rows.append([level, correlation, *share])
    return torch.tensor(rows, dtype=torch.float64)


def _polish(step: Step, x: Tensor, precision: Step) -> Tensor | None:
    """Newton's method on the whole trajectory `x_{l+1} = step(x_l)`, or None without convergence.

    `precision` weighs the coordinates in the test of convergence; an update of 1e-6 leaves an error of its square.
    """
    size = x.shape[1]
    bumps = torch.cat((torch.zeros(1, size, dtype=x.dtype), torch.eye(size, dtype=x.dtype)))[:, None, :]
    for _ in range(_ITERATIONS):
        widths = _STEP * x[:-1].abs().clamp_min(1.0)
        values = step(x[:-1] + bumps * widths)
        slopes = (values[1:] - values[:1]).permute(1, 2, 0) / widths[:, None, :]
        slopes = torch.where(precision(x[:-1])[:, None, :] > _ROUNDING, slopes, 0.0)
        update = _linear_recursion(slopes.numpy(), (values[0] - x[1:]).numpy())
        if not np.isfinite(update).all():
            return None
        x[1:] += torch.from_numpy(update)
        if (np.abs(update) * precision(x[1:]).numpy()).max() <= _TOLERANCE:
            return x
    return None


def _linear_recursion(slopes: np.ndarray, defects: np.ndarray) -> np.ndarray:
    """`d_{l+1} = slopes_l d_l + defects_l` from `d_0 = 0`: a system with a narrow band below its unit diagonal."""
    layers, size = defects.shape
    band = np.zeros((2 * size, layers * size))
    band[0] = 1.0
    for row in range(size):
        for column in range(size):
            band[size + row - column, column : (layers - 1) * size : size] = -slopes[1:, row, column]
    return solve_banded((2 * size - 1, 0), band, defects.ravel(), check_finite=False).reshape(layers, size)


class _Codec:
    """States as short vectors: log of the same-token value, correlation, and two finite-width shares.

    The signal has the fluctuation of pairs beside, and what channels have in common where a block makes such. Its
    correlation is written as `-log(1 - r)`, which keeps Newton's steps below one.
    """

    def __init__(self, like: Signal, after: Signal):
        self.tokens, self.width = like.kernel.tokens, like.width
        self._shares = bool(torch.as_tensor(after.common.share).any())

    def encode(self, signal: Signal) -> Tensor:
        same, different = signal.kernel.values.unbind(-1)
        apart = (1.0 - different / same).clamp_min(1e-300)
        fluctuation, common = signal.fluctuation, signal.common
        shares = (fluctuation.norm, common.uniform, fluctuation.pair, *((common.share,) if self._shares else ()))
        return _stack(same.log(), -apart.log(), *shares)

    def decode(self, states: Tensor, evidence: Evidence = EXACT) -> Signal:
        same, apart = states[..., 0].exp(), (-states[..., 1]).exp()
        kernel = Exchangeable(torch.stack((same, same * (1.0 - apart)), -1), self.tokens)
        fluctuation = Fluctuation(states[..., 2], states[..., 4])
        common = Common(states[..., 3], states[..., 5] if self._shares else 0.0)
        return Signal(kernel, torch.zeros_like(same), self.width, fluctuation, common, evidence=evidence)

    def precision(self, states: Tensor) -> Tensor:
        """Errors of `-log(1 - r)` and of the fluctuation of pairs count by what they change in `r`: where tokens have
        become identical, both are rounding."""
        weights = torch.ones_like(states)
        weights[..., 1] = weights[..., 4] = (-states[..., 1]).exp()
        return weights

    def encode_gradient(self, gradient: Gradient) -> Tensor:
        same, different = gradient.kernel.values.unbind(-1)
        directions = gradient.directions
        return _stack(same.log(), different / same, directions.radial, directions.uniform, directions.response)

    def decode_gradient(self, states: Tensor, evidence: Evidence = EXACT) -> Gradient:
        same = states[..., 0].exp()
        kernel = Exchangeable(torch.stack((same, same * states[..., 1]), -1), self.tokens)
        return Gradient(kernel, Directions(states[..., 2], states[..., 3], response=states[..., 4]), evidence=evidence)


def _stack(first: Tensor, *others: Tensor | float) -> Tensor:
    columns = [torch.as_tensor(value, dtype=torch.float64).expand(first.shape) for value in others]
    return torch.stack((first, *columns), -1)
