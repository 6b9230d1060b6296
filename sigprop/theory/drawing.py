"""Numbers drawn from the kernels of states, and kernels of what was drawn."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sigprop.errors import UnsupportedError
from sigprop.theory.corrections.along_signal import diagonal
from sigprop.theory.states import Gradient, Signal

DTYPE = torch.float32
"""Of all that is drawn."""
SMALLEST_SLOPE = 1e-6
"""Share of a gradient's energy below which its slope along the signal is not followed through draws."""


def root_of(kernel: Tensor) -> Tensor:
    """A matrix `R` with `R R^T` the kernel."""
    scale = kernel.diagonal().mean().clamp_min(1e-300)
    unit = kernel / scale
    if not bool(torch.isfinite(unit).all()):
        raise UnsupportedError("a predicted kernel is not finite beside its diagonal: nothing can be sampled from it")
    factor, failed = torch.linalg.cholesky_ex(unit + 1e-7 * torch.eye(len(kernel), dtype=kernel.dtype))
    if not failed:
        return factor * scale.sqrt()
    values, vectors = torch.linalg.eigh(unit)
    return vectors * (values.clamp_min(0.0) * scale).sqrt()


def drawn_rows(root: Tensor, channels: int, generator: torch.Generator) -> Tensor:
    """`[..., positions, channels]`, channels independent with covariance `root root^T`."""
    shape = (*root.shape[:-2], root.shape[-1], channels)
    return root.to(DTYPE) @ torch.randn(shape, generator=generator, dtype=DTYPE)


def drawn_signs(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Independent signs: the bits of drawn integers."""
    count = math.prod(shape)
    words = torch.randint(1 << 16, (math.ceil(count / 16), 1), generator=generator, dtype=torch.int32)
    bits = (words >> torch.arange(16, dtype=torch.int32)) & 1
    return (2 * bits - 1).to(DTYPE).flatten()[:count].reshape(shape)


def kernel_of(rows: Tensor) -> Tensor:
    """Mean over channels of `[..., position, channel]`, in the precision of the rows; float64."""
    return (rows @ rows.mT).double() / rows.shape[-1]


def unit_kernel(gradient: Gradient) -> tuple[Tensor, float]:
    """A kernel of mean diagonal 1, which float32 can hold, and what it was divided by."""
    scale = float(gradient.kernel.diagonal.mean())
    return gradient.kernel.values / (scale or 1.0), scale


def unit_slope(gradient: Gradient, signal: Signal) -> tuple[Tensor | None, float]:
    """The slope along the signal in units of its largest entry, and that entry; None where it is too small."""
    slope = gradient.along_signal.slope
    if not isinstance(slope, Tensor):
        return None, 0.0
    energy = float(diagonal(slope).square().mean() * signal.kernel.diagonal.mean())
    scale = float(slope.abs().max())
    matters = energy > SMALLEST_SLOPE * float(gradient.energy())
    return (slope / scale).float() if matters else None, scale
