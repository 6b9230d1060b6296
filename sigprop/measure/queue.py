"""Takes in signals and gradients as they appear, and gives back their moments.

On a CPU each tensor is reduced at once. On a GPU tensors wait, by reference, and are reduced together, so that a site
costs neither a kernel nor a synchronization; the device is waited for once, or whenever what waits has grown to a
fixed share of its memory. A tensor that waits must not be written to: `Overwritten` says that one was, and a queue
that keeps copies is then in order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sigprop.errors import SigpropError
from sigprop.measure import together
from sigprop.measure.moments import Moments
from sigprop.measure.precision import full_precision
from sigprop.measure.together import Stack, columns, reduce_together, unreliable

DEVICE_SHARE = 64
DEFAULT_BYTES = 1 << 28
LARGE = 1 << 22


class Overwritten(SigpropError):
    """A tensor was written to before it was reduced."""


class Waiting(NamedTuple):
    """One tensor, (sequences, tokens, channels), with the version it had when it came."""

    ticket: int
    x: Tensor
    version: int


class Group(NamedTuple):
    """What waits in one shape."""

    mask: Tensor | None
    signals: list[Waiting]
    gradients: list[Waiting]


class Queue:
    """`signals` and `gradients` are (mean, variance, token correlation) by ticket, complete after `flush`."""

    def __init__(self, copies: bool = False):
        self.signals: dict[int, list[float]] = {}
        self.gradients: dict[int, list[float]] = {}
        self._copies = copies
        self._moments = Moments()
        self._groups: dict[tuple, Group] = {}
        self._bytes = 0
        self._limit = 0

    def add(self, ticket: int, x: Tensor, mask: Tensor | None, signal: bool) -> None:
        """Take in one tensor, read as (sequences, tokens, channels)."""
        if not together.pays_off(x.device):
            reduce = self._moments.signal if signal else self._moments.gradient
            with full_precision("cpu"):
                (self.signals if signal else self.gradients)[ticket] = reduce(x, mask).tolist()
            return
        if self._copies:
            x = x.clone()
        key = (x.shape, x.dtype, x.device, id(mask))
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(mask, [], [])
        (group.signals if signal else group.gradients).append(Waiting(ticket, x, x._version))
        self._bytes += x.nbytes
        self._limit = self._limit or _most_bytes(x.device)
        if self._bytes > self._limit:
            self.flush()

    def keep_copies(self) -> None:
        """From now on, and of all that waits: something is about to run that may write without a trace."""
        if not self._copies:
            self._copies = True
            groups = self._require_untouched()
            self._groups, self._bytes = {}, 0
            for group in groups:
                for signal, items in ((True, group.signals), (False, group.gradients)):
                    for item in items:
                        self.add(item.ticket, item.x, group.mask, signal)

    def flush(self) -> None:
        """Reduce what waits; what float32 cannot do is done again in float64."""
        groups = self._require_untouched()
        self._groups, self._bytes = {}, 0
        again = self._reduce(groups, exact=False)
        self._reduce(again, exact=True)

    def _require_untouched(self) -> list[Group]:
        groups = list(self._groups.values())
        if any(item.x._version != item.version for group in groups for item in (*group.signals, *group.gradients)):
            raise Overwritten
        return groups

    def _reduce(self, groups: list[Group], exact: bool) -> list[Group]:
        """Store the results; returns what needs float64."""
        batches = _batches(groups)
        sums = _read([reduce_together(_stacks(batch), batch[0].mask, exact) for batch in batches])
        again = []
        for batch, table in zip(batches, sums, strict=True):
            rows = iter(zip(columns(table).tolist(), unreliable(table).tolist(), strict=True))
            for group in batch:
                doubtful = Group(group.mask, [], [])
                for found, items, doubts in (
                    (self.signals, group.signals, doubtful.signals),
                    (self.gradients, group.gradients, doubtful.gradients),
                ):
                    for item in items:
                        found[item.ticket], doubt = next(rows)
                        if doubt and not exact and item.x.dtype != torch.float64:
                            doubts.append(item)
                again.append(doubtful)
        return [group for group in again if group.signals or group.gradients]


def _most_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return DEFAULT_BYTES
    return torch.cuda.get_device_properties(device).total_memory // DEVICE_SHARE


def _batches(groups: list[Group]) -> list[list[Group]]:
    """Groups with the same sequences, tokens and mask go together."""
    found: dict[tuple, list[Group]] = {}
    for group in groups:
        x = (*group.signals, *group.gradients)[0].x
        found.setdefault((x.device, x.shape[:2], id(group.mask), x.dtype == torch.float64), []).append(group)
    return list(found.values())


def _stacks(batch: list[Group]) -> list[Stack]:
    """A group joined to one tensor; large tensors stay apart and are not copied."""
    found = []
    for group in batch:
        tensors = [item.x for item in (*group.signals, *group.gradients)]
        if tensors[0].numel() > LARGE or len(tensors) == 1:
            found += [Stack(x[None], int(place < len(group.signals))) for place, x in enumerate(tensors)]
        else:
            found.append(Stack(torch.stack(tensors), len(group.signals)))
    return found


def _read(results: list[Tensor]) -> list[Tensor]:
    """Tables on the host, with one transfer from each device."""
    found: dict[int, Tensor] = {}
    for device in {result.device for result in results}:
        here = [index for index, result in enumerate(results) if result.device == device]
        flat = torch.cat([results[index].flatten() for index in here]).cpu()
        parts = flat.split([results[index].numel() for index in here])
        for index, part in zip(here, parts, strict=True):
            found[index] = part.view(results[index].shape)
    return [found[index] for index in range(len(results))]
