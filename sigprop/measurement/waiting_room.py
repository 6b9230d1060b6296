"""Where tensors on a CPU wait to be reduced together.

Between two layers the code and the memory of a reduction are out of the caches, and its thirty calls cost three times
what they cost in a row. So a tensor waits until others of its sequences and tokens have come. What waits is a clone
that shares the tensor's memory until somebody writes to it, by whatever name: it stays as it was when it came.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from sigprop.compat import shared_clone
from sigprop.measurement.moments import Moments
from sigprop.measurement.precision import no_autocast

MOST_BYTES, MOST_TENSORS = 1 << 23, 32
"""What waits at most: less than a cache holds, and so little that memory does not matter."""
LARGE = 1 << 22
"""Bytes of a tensor that does not wait."""


class _Waiting(NamedTuple):
    ticket: int
    x: Tensor
    signal: bool


class WaitingRoom:
    """Reduces tensors, (sequences, tokens, channels), group by group, and hands out their moments.

    With `at_once` nobody waits.
    """

    def __init__(self, moments: Moments, store: Callable[[int, bool, list[float]], None], at_once: bool):
        self._moments = moments
        self._store = store
        self._at_once = at_once
        self._groups: dict[tuple, tuple[Tensor | None, list[_Waiting]]] = {}
        self._bytes = self._count = 0

    def add(self, ticket: int, x: Tensor, mask: Tensor | None, signal: bool, is_new: bool) -> None:
        """Take in one tensor. One that is not new, such as a buffer of the model's, is reduced now: a write while its
        clone waits would move it to other memory."""
        clone = None
        if is_new and not self._at_once and x.nbytes < LARGE and self._moments.is_quick(x):
            clone = shared_clone(x)
        if clone is None:
            self._reduce(mask, [_Waiting(ticket, x, signal)])
            return
        key = (x.shape[0], x.shape[1], id(mask))
        self._groups.setdefault(key, (mask, []))[1].append(_Waiting(ticket, clone, signal))
        self._bytes += x.nbytes
        self._count += 1
        if self._bytes > MOST_BYTES or self._count >= MOST_TENSORS:
            self.empty()

    def empty(self) -> None:
        """Reduce all that waits."""
        groups = self._groups.values()
        self.close()
        for mask, group in groups:
            self._reduce(mask, group)

    def close(self) -> None:
        """Let all that waits go."""
        self._groups = {}
        self._bytes = self._count = 0

    def _reduce(self, mask: Tensor | None, group: list[_Waiting]) -> None:
        with no_autocast("cpu"):
            found = self._moments.together([item.x for item in group], [item.signal for item in group], mask)
        for item, numbers in zip(group, found, strict=True):
            self._store(item.ticket, item.signal, numbers)
