"""The part of a gradient that is a linear function of the signal: `g_t = sum_s B_ts x_s + rest`.

A softmax leans to the rows that its input points to, and a norm takes out what points along the signal: both make the
gradient at the top of a network depend on the signal there. A branch `f = J x` with random `J` is part of that signal,
so that the gradient that comes back through it, `J^T B (x + J x)`, has the mean `E[J^T B J] x`. What is of one sign for
all tokens adds up over tokens, and over branches.

`B` is a vector over tokens where it is diagonal, as below a loss, and a matrix below an attention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sigprop.theory.kernels import Kernel
    from sigprop.theory.states import Gradient

Slope = Tensor | float
SameKind = TypeVar("SameKind", Tensor, Tensor | float)


def applied(slope: Tensor, values: Tensor) -> Tensor:
    """`B values` over the first of two tokens."""
    return slope[:, None] * values if slope.ndim == 1 else slope @ values


def matrix(slope: Tensor) -> Tensor:
    return torch.diag(slope) if slope.ndim == 1 else slope


def diagonal(slope: Tensor) -> Tensor:
    return slope if slope.ndim == 1 else slope.diagonal()


def added(first: Slope, second: Slope) -> Slope:
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)) or first.ndim == second.ndim:
        return first + second
    return matrix(first) + matrix(second)


def weighted(slope: SameKind, kernel: Tensor | float) -> SameKind:
    """Every entry of `B` times that of a kernel; nothing where there is no slope."""
    if not isinstance(slope, Tensor):
        return slope
    return slope * (kernel.diagonal() if slope.ndim == 1 and isinstance(kernel, Tensor) else kernel)


def crossed(kernel: Tensor, first: tuple[Slope, Slope], second: tuple[Slope, Slope]) -> Tensor | float:
    """What the squares of two gradients that meet lack of that of their sum, from the slope and alignment of each.

    With `a[s,t]` the alignment of the rest: `E g_t g'_u = (B K B'^T)[t,u] + (B' a)[u,t] + (B a')[t,u]`, both ways.
    """
    (slope, aligned), (other, aligned_other) = first, second
    total: Tensor | float = 0.0
    if isinstance(slope, Tensor) and isinstance(other, Tensor):
        total = applied(slope, applied(other, kernel).T)
    if isinstance(other, Tensor) and isinstance(aligned, Tensor):
        total = total + applied(other, aligned).T
    if isinstance(slope, Tensor) and isinstance(aligned_other, Tensor):
        total = total + applied(slope, aligned_other)
    return total + total.T if isinstance(total, Tensor) else 0.0


def alignment_of(gradient: Gradient, kernel: Kernel) -> Tensor:
    """`M[s,t]`: the expected average over channels of the signal at `s` times the gradient at `t`."""
    slope = gradient.along_signal.slope
    assert isinstance(slope, Tensor)
    return applied(slope, kernel.values).T + gradient.along_signal.rest


def aligned_gain(gradient: Gradient, kernel: Kernel) -> Tensor | float:
    """`E (sum_t x_t g_t)^2` of one channel, the part that comes from the alignment of signal and gradient."""
    if not isinstance(gradient.along_signal.slope, Tensor):
        return 0.0
    alignment = alignment_of(gradient, kernel)
    return alignment.diagonal().sum() ** 2 + (alignment * alignment.T).sum()
