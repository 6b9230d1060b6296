"""Takes in signals and gradients as they appear, and gives back their moments.

On a CPU they are reduced as they come.

On a GPU tensors wait, by reference, and are reduced together, so that a site costs neither a kernel nor a
synchronization; the device is waited for once, at the end. Two things can go wrong on the way, and then the model has
to be run again: a tensor is written to while it waits (`Overwritten`; copies are in order), or float32 turns out too
coarse for a tensor that is gone already (`TooCoarse`; float64 is in order).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sigprop.compat import version_of
from sigprop.errors import SigpropError
from sigprop.measurement import stacked_moments
from sigprop.measurement.moments import Moments
from sigprop.measurement.stacked_moments import StackOfTensors, columns, reduce_stacks, unreliable

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
        self._moments = Moments()
        self._waiting: list[Waiting] = []
        self._reduced: list[Reduced] = []
        self._bytes = 0
        self._fleeting = fleeting
        self._limit: int | None = None

    def add(self, ticket: int, x: Tensor, mask: Tensor | None, signal: bool) -> None:
        """Take in one tensor, read as (sequences, tokens, channels)."""
        if not stacked_moments.pays_off(x.device):
            self._keep(ticket, signal, (self._moments.signal if signal else self._moments.gradient)(x, mask))
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

    def read(self) -> None:
        """Reduce what waits and wait for the device; what float32 cannot do is done again in float64."""
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
