"""A state as the numbers of a profile: mean, variance and token correlation over the positions that count."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.layout import BATCH, Layout
from sigprop.theory import Signal

Axes = tuple[tuple[int, bool], ...]
"""For each axis of positions its size and whether it is the batch."""


def token_correlation(signal: Signal, layout: Layout) -> float:
    """Of a traced state, by the profile's definition: pairs of different tokens of one sequence."""
    return summary(signal.kernel.values, signal.mean, axes_of(layout))[2]


def axes_of(layout: Layout) -> Axes:
    return tuple((axis.size, axis.role == BATCH) for axis in layout.order)


def padding_masks(batch: Any) -> list[Tensor]:
    """Masks `(sequences, tokens)` of the batch that leave something out, true for a real token; see `measure`."""
    named = dict(batch) if isinstance(batch, Mapping) else {}
    found = [named.get(key) for key in ("attention_mask", "decoder_attention_mask")]
    return [mask.bool() for mask in found if isinstance(mask, Tensor) and mask.dim() == 2 and not bool(mask.all())]


def fitting_mask(masks: list[Tensor], name: str, axes: Axes) -> Tensor | None:
    """The mask of a site's positions: that whose sequences and tokens it has, in this order."""
    sizes = [size for size, _ in axes]
    fitting = [mask for mask in masks if sizes == [n for n in mask.shape if n > 1] and (not axes or not axes[-1][1])]
    return None if not fitting else fitting[-1] if "decoder" in name else fitting[0]


def summary(kernel: Tensor, mean: Tensor, axes: Axes, mask: Tensor | None = None) -> tuple[float, float, float]:
    """Mean, variance and token correlation over the positions of a mask; pairs are taken within each sequence."""
    same = _same_sequence(axes)
    if mask is not None:
        kept = mask.flatten().nonzero()[:, 0]
        kernel, mean, same = kernel[kept][:, kept], mean[kept], same[kept][:, kept]
    overall = mean.mean()
    centred = kernel - overall * (mean[:, None] + mean) + overall**2 if overall else kernel
    level = centred.diagonal().clamp_min(0.0)
    usable = (level > 1e-13 * (kernel.diagonal() + overall**2)).double()
    inverse = usable / level.clamp_min(1e-300).sqrt()
    pairs = usable @ same @ usable
    correlation = float(inverse @ (centred * same) @ inverse / pairs) if pairs > 0 else float("nan")
    return float(overall), float(level.mean()), correlation


@lru_cache(maxsize=4)
def _same_sequence(axes: Axes) -> Tensor:
    """1 for pairs of different positions of one sequence."""
    index = torch.zeros([size for size, _ in axes] or [1], dtype=torch.long)
    for place, (size, is_batch) in enumerate(axes):
        if is_batch:
            shape = [-1 if other == place else 1 for other in range(len(axes))]
            index = index * size + torch.arange(size).reshape(shape)
    sequence = index.flatten()
    return (sequence[:, None] == sequence).double().fill_diagonal_(0.0)
