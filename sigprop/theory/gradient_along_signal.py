"""The part of a gradient that is a linear function of the signal: `g_t = sum_s B_ts x_s + rest`.

A softmax leans to the rows that its input points to, and a norm takes out what points along the signal: both make the
gradient at the top of a network depend on the signal there. A branch `f = J x` with random `J` is part of that signal,
so that the gradient that comes back through it, `J^T B (x + J x)`, has the mean `E[J^T B J] x`. What is of one sign for
all tokens adds up over tokens, and over branches.

`B` is a vector over tokens where it is diagonal, as below a loss, and a matrix below an attention.
"""

from __future__ import annotations

import torch
from torch import Tensor

Tilt = Tensor | float


def applied(tilt: Tensor, values: Tensor) -> Tensor:
    """`B values` over the first of two tokens."""
    return tilt[:, None] * values if tilt.ndim == 1 else tilt @ values


def matrix(tilt: Tensor) -> Tensor:
    return torch.diag(tilt) if tilt.ndim == 1 else tilt


def diagonal(tilt: Tensor) -> Tensor:
    return tilt if tilt.ndim == 1 else tilt.diagonal()


def added(first: Tilt, second: Tilt) -> Tilt:
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)) or first.ndim == second.ndim:
        return first + second
    return matrix(first) + matrix(second)


def weighted(tilt: Tensor, kernel: Tensor) -> Tensor:
    """Every entry of `B` times that of a kernel."""
    return tilt * (kernel.diagonal() if tilt.ndim == 1 else kernel)


def crossed(kernel: Tensor, first: tuple[Tilt, Tilt], second: tuple[Tilt, Tilt]) -> Tensor | float:
    """What the squares of two gradients that meet lack of that of their sum, from the tilt and alignment of each.

    With `a[s,t]` the alignment of the rest: `E g_t g'_u = (B K B'^T)[t,u] + (B' a)[u,t] + (B a')[t,u]`, both ways.
    """
    (tilt, aligned), (other, aligned_other) = first, second
    total: Tensor | float = 0.0
    if isinstance(tilt, Tensor) and isinstance(other, Tensor):
        total = applied(tilt, applied(other, kernel).T)
    if isinstance(other, Tensor) and isinstance(aligned, Tensor):
        total = total + applied(other, aligned).T
    if isinstance(tilt, Tensor) and isinstance(aligned_other, Tensor):
        total = total + applied(tilt, aligned_other)
    return total + total.T if isinstance(total, Tensor) else 0.0
