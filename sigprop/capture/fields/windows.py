"""Which pixels the windows of a convolution see."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.layout import Layout


def image_windows(
    layout: Layout,
    shape: tuple[int, ...],
    rank: int,
    size: tuple[int, ...],
    stride: Any,
    padding: Any,
    dilation: Any,
) -> Tensor:
    """`[offset, position]`: the kernel row that each offset of the window sees, -1 outside the image."""

    def each(value: Any) -> tuple[int, ...]:
        return (value,) * rank if isinstance(value, int) else tuple(value) * (rank if len(value) == 1 else 1)

    steps, gaps = each(stride), each(dilation)
    if isinstance(padding, str):
        before = tuple(g * (k - 1) // 2 if padding == "same" else 0 for g, k in zip(gaps, size, strict=True))
    else:
        before = each(padding)
    rows = layout.index()
    rows = rows.reshape(-1, *rows.shape[-rank:])
    found = []
    for offset in itertools.product(*(range(k) for k in size)):
        places, inside = [], []
        for d in range(rank):
            place = torch.arange(shape[len(shape) - rank + d]) * steps[d] - before[d] + offset[d] * gaps[d]
            inside.append((place >= 0) & (place < rows.shape[1 + d]))
            places.append(place.clamp(0, rows.shape[1 + d] - 1))
        grid = rows
        live = torch.ones((), dtype=torch.bool)
        for d in range(rank):
            grid = grid.index_select(1 + d, places[d])
            live = live[..., None] & inside[d]
        found.append(torch.where(live, grid, -1).flatten())
    return torch.stack(found)
