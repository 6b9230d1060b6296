"""Takes in signals and gradients as they appear, and gives back their moments.

On a CPU tensors wait for others like them: between two layers the code and the memory of a reduction are out of the
caches, and its thirty calls cost three times what they cost in a row. What waits is a clone that shares the tensor's
memory until somebody writes to it.

On a GPU tensors wait, by reference, and are reduced together, so that a site costs neither a kernel nor a
synchronization; the device is waited for once, at the end. Two things can go wrong on the way, and then the model has
to be run again: a tensor is written to while it waits (`Overwritten`; copies are in order), or float32 turns out too
coarse for a tensor that is gone already (`TooCoarse`; float64 is in order).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from sigprop.compat import shared_clone, version_of
from sigprop.errors import SigpropError
from sigprop.measurement import stacked_moments
from sigprop.measurement.moments import Moments
from sigprop.measurement.precision import float32_products, no_autocast
from sigprop.measurement.stacked_moments import StackOfTensors, columns, reduce_stacks, unreliable

MOST_BYTES, MOST_TENSORS = 1 << 23, 32
"""What waits at most: less than a cache holds, and so little that memory does not matter."""
LARGE_BYTES = 1 << 22
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
        if is_new and not self._at_once and x.nbytes < LARGE_BYTES and self._moments.is_quick(x):
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


DEVICE_SHARE = 64
DEFAULT_BYTES = 1 << 28
LARGE_SHARE = 8
LARGE = 1 << 22


class Overwritten(SigpropError):
    """A tensor was written to before it was reduced."""


class TooCoarse(SigpropError):
    """Float32 did not suffice for a tensor that was let go."""


class Waiting(NamedTuple):
    """One tensor, (sequences, tokens, channels), with the version it had when it came."""

    ticket: int
    signal: bool
    x: Tensor
    version: int
    mask: Tensor | None


class Reduced(NamedTuple):
    """Items whose sums are under way, a row for each; the tensors are let go."""

    members: list[tuple[int, bool]]
    table: Tensor


class Queue:
    """After `read`, `signals` and `gradients` are (mean, variance, token correlation) by ticket.

    On a GPU tensors wait until they fill a share of its memory. With `fleeting`, for a pass that cannot be run again,
    copies wait, a large tensor not at all, and what float32 cannot do is done in float64 before they are let go.
    """

    def __init__(self, copies: bool = False, exact: bool = False, fleeting: bool = False):
        self.signals: dict[int, list[float]] = {}
        self.gradients: dict[int, list[float]] = {}
        self._copies = copies
        self._exact = exact
        self._on_cpu = WaitingRoom(Moments(float32_products("cpu")), self._keep, at_once=fleeting)
        self._waiting: list[Waiting] = []
        self._reduced: list[Reduced] = []
        self._bytes = 0
        self._fleeting = fleeting
        self._limit: int | None = None

    def add(self, ticket: int, x: Tensor, mask: Tensor | None, signal: bool, is_new: bool = False) -> None:
        """Take in one tensor, read as (sequences, tokens, channels); new is one that the pass itself has made."""
        if not stacked_moments.pays_off(x.device):
            self._on_cpu.add(ticket, x, mask, signal, is_new)
            return
        if self._limit is None:
            self._limit = _most_bytes(x.device)
        if self._fleeting and x.nbytes > self._limit // LARGE_SHARE:
            self._reduced += self._reduce_surely([Waiting(ticket, signal, x, version_of(x), mask)])
            return
        if self._copies or self._fleeting:
            x = x.clone()
        self._waiting.append(Waiting(ticket, signal, x, version_of(x), mask))
        self._bytes += x.nbytes
        if self._bytes > self._limit:
            items = self._taken_out()
            self._reduced += self._reduce_surely(items) if self._fleeting else self._reduce(items, self._exact)

    def keep_copies(self) -> None:
        """From now on, and of all that waits: something is about to run that may write without a trace."""
        if not self._copies:
            items = self._taken_out()
            self._copies = True
            for item in items:
                self.add(item.ticket, item.x, item.mask, item.signal)

    def close(self) -> None:
        """Let go of memory that is shared with tensors of the model."""
        self._on_cpu.close()

    def read(self) -> None:
        """Reduce what waits and wait for the device; what float32 cannot do is done again in float64."""
        self._on_cpu.empty()
        last = self._taken_out()
        if self._fleeting:
            self._store([*self._reduced, *self._reduce_surely(last)])
            return
        doubtful = self._store([*self._reduced, *self._reduce(last, self._exact)])
        if doubtful and not self._exact:
            again = [item for item in last if (item.ticket, item.signal) in doubtful]
            if len(again) < len(doubtful):
                raise TooCoarse
            self._store(self._reduce(again, exact=True))

    def _keep(self, ticket: int, signal: bool, numbers: list[float]) -> None:
        (self.signals if signal else self.gradients)[ticket] = numbers

    def _taken_out(self) -> list[Waiting]:
        """All that waits, which must be as it was when it came."""
        items, self._waiting, self._bytes = self._waiting, [], 0
        if any(version_of(item.x) != item.version for item in items):
            raise Overwritten
        return items

    def _reduce(self, items: list[Waiting], exact: bool) -> list[Reduced]:
        found = []
        for batch in _batches(items):
            table = reduce_stacks(_stacks(batch), batch[0][0].mask, exact)
            found.append(Reduced([(item.ticket, item.signal) for group in batch for item in group], table))
        return found

    def _reduce_surely(self, items: list[Waiting]) -> list[Reduced]:
        """With the items that float32 cannot do once more, in float64; waits for the device to know them."""
        found = self._reduce(items, exact=False)
        doubtful = {
            member
            for members, table in found
            for member, doubt in zip(members, unreliable(table).tolist(), strict=True)
            if doubt
        }
        return found + self._reduce([item for item in items if (item.ticket, item.signal) in doubtful], exact=True)

    def _store(self, reduced: list[Reduced]) -> set[tuple[int, bool]]:
        """Fetch the results; returns the items that float32 cannot do."""
        doubtful = set()
        for (members, _), table in zip(reduced, _fetched([table for _, table in reduced]), strict=True):
            for member, row, doubt in zip(members, columns(table).tolist(), unreliable(table).tolist(), strict=True):
                self._keep(*member, row)
                if doubt:
                    doubtful.add(member)
        return doubtful


def _most_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return DEFAULT_BYTES
    return torch.cuda.get_device_properties(device).total_memory // DEVICE_SHARE


def _batches(items: list[Waiting]) -> list[list[list[Waiting]]]:
    """Groups of one shape and kind; batches of groups with the same tokens and mask."""
    groups: dict[tuple, list[Waiting]] = {}
    for item in items:
        x = item.x
        groups.setdefault((x.shape, x.dtype, x.get_device(), id(item.mask), item.signal), []).append(item)
    batches: dict[tuple, list[list[Waiting]]] = {}
    for (shape, dtype, device, mask, _), group in sorted(groups.items(), key=_widest_first):
        kind = (shape[1], dtype == torch.float64, device, mask)
        wider = next((key for key in batches if key[1:] == kind), None) if shape[0] == 1 else None
        batches.setdefault(wider or (shape[0], *kind), []).append(group)
    return list(batches.values())


def _widest_first(entry: tuple[tuple, list[Waiting]]) -> tuple[int, int]:
    """Most sequences first, so that single ones find their batch; equal channels side by side."""
    sequences, _, channels = entry[0][0]
    return -sequences, channels


def _stacks(batch: list[list[Waiting]]) -> list[StackOfTensors]:
    """A group joined to one tensor; large tensors stay apart and are not copied.

    A single sequence among several, such as positions, is repeated: that changes none of its moments.
    """
    sequences = max(group[0].x.shape[0] for group in batch)
    found = []
    for group in batch:
        tensors = [item.x for item in group]
        if len(tensors[0]) < sequences:
            tensors = [x.expand(sequences, -1, -1) for x in tensors]
        if len(group) == 1 or tensors[0].numel() > LARGE:
            found += [StackOfTensors(x[None], group[0].signal) for x in tensors]
        else:
            found.append(StackOfTensors(torch.stack(tensors), group[0].signal))
    return found


def _fetched(results: list[Tensor]) -> list[Tensor]:
    """Tables on the host, with one transfer from each device."""
    found: dict[int, Tensor] = {}
    for device in {result.device for result in results}:
        here = [index for index, result in enumerate(results) if result.device == device]
        flat = torch.cat([results[index].flatten() for index in here]).cpu()
        parts = flat.split([results[index].numel() for index in here])
        for index, part in zip(here, parts, strict=True):
            found[index] = part.view(results[index].shape)
    return [found[index] for index in range(len(results))]
