"""What single units and channels do in one forward pass: dead or saturated activations, massive channels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sigprop.batches import copied, tensors_in
from sigprop.compat import own_modules
from sigprop.measurement.batch import call
from sigprop.measurement.guard import untouched

RECTIFIERS = {F.relu, torch.relu, torch.Tensor.relu, torch.relu_, F.relu6}
BOUNDED = {torch.tanh, torch.Tensor.tanh, F.tanh}
"""Sigmoids are left out: they are gates as a rule, and many start open or closed on purpose."""
BOUND_SHARE = 0.05
FEWEST = 16
"""Positions below which a unit that is always zero says nothing."""


@dataclass(frozen=True)
class Activity:
    """Shares of units: zero on every position, and of entries within 5 % of a bound; the largest channel's share.

    `channel_share` is the second moment of the largest channel over the sum of all channels'.
    """

    dead: float = 0.0
    saturated: float = 0.0
    channel_share: float = 0.0
    channel: int = -1
    channels: int = 0


def watch_activity(model: nn.Module, batch: Any) -> dict[str, Activity]:
    """One forward pass without gradients; the model is left as it was."""
    found: dict[str, Activity] = {}
    tensors = [tensor for _, tensor in tensors_in(batch)]
    with untouched(model.modules(), tensors), torch.no_grad(), _named(model, found) as current, _Watch(current, found):
        call(model, copied(batch))
    return found


@contextmanager
def _named(model: nn.Module, found: dict[str, Activity]) -> Iterator[list[str]]:
    """Keep the name of the module that runs; look at the channels of every module's output."""
    current: list[str] = [""]
    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: current.append(name)))
        handles.append(module.register_forward_hook(_leave(name, current, found)))
    try:
        yield current
    finally:
        for handle in handles:
            handle.remove()


def _leave(name: str, current: list[str], found: dict[str, Activity]) -> Any:
    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        current.pop()
        first = output[0] if isinstance(output, (tuple, list)) and output else output
        if not isinstance(first, Tensor) or not first.is_floating_point() or not own_modules(module):
            return
        if first.dim() == 3 and first.shape[-1] > 1:
            energy = first.double().square().mean((0, 1))
            place = int(energy.argmax())
            share = float(energy[place] / energy.sum().clamp_min(1e-300))
            before = found.get(name, Activity())
            found[name] = Activity(before.dead, before.saturated, share, place, len(energy))

    return hook


class _Watch(TorchFunctionMode):
    def __init__(self, current: list[str], found: dict[str, Activity]):
        super().__init__()
        self.current, self.found = current, found

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func in RECTIFIERS:
            self._note(dead=_dead(output))
        elif func in BOUNDED:
            self._note(saturated=float((output.abs() > 1.0 - BOUND_SHARE).double().mean()))
        return output

    def _note(self, dead: float = 0.0, saturated: float = 0.0) -> None:
        name = self.current[-1] or "(model)"
        before = self.found.get(name, Activity())
        self.found[name] = Activity(max(before.dead, dead), max(before.saturated, saturated))


def _dead(output: Tensor) -> float:
    """Share of units that are zero on every position: channels come last, or second where there are pixels."""
    axis = 1 if output.dim() == 4 else output.dim() - 1
    units = output.movedim(axis, 0).flatten(1)
    if units.dim() < 2 or units.shape[1] < FEWEST:
        return 0.0
    return float((units == 0).all(1).double().mean())
