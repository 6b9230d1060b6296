"""Collects the moments of many tensors without waiting for the device.

On a CPU each tensor is reduced at once, and on a GPU a large one. Small tensors of one shape on a GPU wait, as
copies, and are reduced together, which keeps the number of kernel launches low. The numbers cross to the host once,
when `read` is called.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sigprop.measure.moments import DEVICE_BLOCK

Reduce = Callable[[Tensor, Tensor | None, int], Tensor]


class Queue:
    """Moments under integer tickets, by one reduction of (tensor, mask, groups)."""

    def __init__(self, reduce: Reduce):
        self._reduce = reduce
        self._results: list[tuple[list[int], Tensor]] = []
        self._waiting: dict[tuple, list[tuple[int, Tensor, Tensor | None]]] = {}
        self._waiting_size = 0

    def add(self, ticket: int, x: Tensor, mask: Tensor | None) -> None:
        """Take in one tensor, read as (sequences, tokens, channels)."""
        if x.device.type == "cpu" or 2 * x.numel() > DEVICE_BLOCK:
            self._results.append(([ticket], self._reduce(x, mask, 1)))
            return
        if self._waiting_size + x.numel() > DEVICE_BLOCK:
            self.flush()
        key = (x.device, x.dtype, x.shape, None if mask is None else id(mask))
        self._waiting.setdefault(key, []).append((ticket, x.clone(), mask))
        self._waiting_size += x.numel()

    def flush(self) -> None:
        """Reduce what waits, one shape at a time."""
        for items in self._waiting.values():
            mask = items[0][2]
            stacked = torch.cat([tensor for _, tensor, _ in items])
            repeated = None if mask is None else mask.repeat(len(items), 1)
            tickets = [ticket for ticket, _, _ in items]
            self._results.append((tickets, self._reduce(stacked, repeated, len(items))))
        self._waiting.clear()
        self._waiting_size = 0

    def read(self) -> dict[int, list[float]]:
        """All results, with one transfer from each device."""
        self.flush()
        found: dict[int, list[float]] = {}
        for device in {values.device for _, values in self._results}:
            here = [(tickets, values) for tickets, values in self._results if values.device == device]
            tickets = [ticket for group, _ in here for ticket in group]
            rows = torch.cat([values for _, values in here]).tolist()
            found.update(zip(tickets, rows, strict=True))
        return found
