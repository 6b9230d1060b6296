"""Hooks that watch module outputs, residual junctions and attention scores while a model runs."""

from __future__ import annotations

import fnmatch
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.compat import forget_gradient_hooks, forward_hook_tables, gradient_hooks, version_of
from sigprop.errors import SigpropError, UnknownNameError
from sigprop.measurement.batch import signals_in
from sigprop.measurement.layout import TokenLayout
from sigprop.measurement.moments import Moments
from sigprop.measurement.parameters import fetched
from sigprop.sites import ROOT, nth, part

FORMATS: dict[str, tuple[float, float]] = {
    "bf16": (2.0**-133, torch.finfo(torch.bfloat16).max),
    "fp16": (2.0**-24, torch.finfo(torch.float16).max),
    "fp8_e4m3": (2.0**-9, torch.finfo(torch.float8_e4m3fn).max),
    "fp8_e5m2": (2.0**-16, torch.finfo(torch.float8_e5m2).max),
}
"""Smallest positive (subnormal) and largest finite number of each format."""


def format_fractions(x: Tensor, mask: Tensor | None = None, prefix: str = "") -> dict[str, Tensor]:
    """Per format, the fraction of entries that are not zero but round to zero, and that exceed the largest number.

    `x` is (sequences, tokens, channels); `mask` leaves padding out.
    """
    size = x.double().abs()
    counted = torch.ones_like(size, dtype=torch.bool) if mask is None else mask[:, :, None].expand_as(size)
    total = counted.sum()
    found: dict[str, Tensor] = {}
    for name, (smallest, largest) in FORMATS.items():
        under = (size > 0) & (size <= smallest / 2) & counted
        over = (size > largest) & counted
        found[f"{prefix}{name}_underflow"] = under.sum() / total
        found[f"{prefix}{name}_overflow"] = over.sum() / total
    return found


class NotBuilt(SigpropError):
    """A module appeared while the model ran, too late to be watched."""


@dataclass(slots=True)
class Site:
    """One tensor of one forward pass.

    `same` points to an earlier site that holds the very same tensor. `values` are numbers taken directly,
    columns or extras, still on their device.
    """

    name: str
    module: nn.Module | None = None
    same: int | None = None
    hooked: bool = False
    values: dict[str, Tensor] = field(default_factory=dict)


class Recorder:
    """Watches one forward and one backward pass; `sites` are in the order of execution."""

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        layout: TokenLayout,
        sites: Iterable[str] | None,
        formats: bool = False,
    ):
        self.modules = modules
        self.layout = layout
        self.patterns = None if sites is None else list(sites)
        self.formats = formats
        self.sites: list[Site] = []
        self._moments = Moments()
        self._signals: dict[int, Tensor] = {}
        self._gradients: dict[int, Tensor] = {}
        self.gradient_order: list[int] = []
        self.phase = "idle"
        self.current: list[str] = []
        self._index: dict[str, int] = {}
        self._calls: dict[str, int] = {}
        self._replayed: dict[str, int] = {}
        self._seen: dict[int, tuple[weakref.ref, int, int]] = {}
        self._unmatched = set(self.patterns or ())
        self._hooks: list[tuple[weakref.ref[Tensor], Any, Any]] = []

    @contextmanager
    def attached(self, track_modules: bool = False) -> Iterator[None]:
        """Hooks on every module, taken off at the end; written directly, since handles cost more than the hooks."""
        key = object()
        try:
            for name, module in self.modules.items():
                watch = self._tracked_output if track_modules else self._module_output
                hooks, pre_hooks = forward_hook_tables(module)
                hooks[key] = partial(watch, name or ROOT)
                if track_modules:
                    pre_hooks[key] = partial(self._entering, name or ROOT)
            yield
        finally:
            for module in self.modules.values():
                for table in forward_hook_tables(module):
                    table.pop(key, None)
            self._unhook_tensors()

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        self.phase = phase
        try:
            yield
        finally:
            self.phase = "idle"

    def _entering(self, name: str, module: nn.Module, inputs: Any) -> None:
        self.current.append(name)

    def _tracked_output(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        self.current.pop()
        self._module_output(name, module, inputs, output)

    def _module_output(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        if self.phase == "forward":
            self._calls[name] = call = self._calls.get(name, 0) + 1
            label = nth(name, call)
            for index, (path, tensor) in enumerate(signals_in(output)):
                self.record(part(label, path, index), tensor, module)
        elif self.phase == "backward":
            self._recomputed(name, output)

    def _recomputed(self, name: str, output: Any) -> None:
        """Checkpointing runs a segment again, last segment first; its tensors are those that get gradients."""
        replay = self._replayed.get(name, 0)
        self._replayed[name] = replay + 1
        call = self._calls.get(name, 1) - replay
        label = nth(name, call)
        for index, (path, tensor) in enumerate(signals_in(output)):
            ticket = self._index.get(part(label, path, index))
            if ticket is not None and not self.sites[ticket].hooked and self.sites[ticket].same is None:
                self._watch_gradient(ticket, tensor)

    def note(self, name: str, values: dict[str, Tensor], module: nn.Module | None = None) -> Site | None:
        """Open a row with numbers already known; None when the name is not wanted."""
        if not self._wanted(name):
            return None
        self._index[name] = len(self.sites)
        site = Site(name, module, values=values)
        self.sites.append(site)
        return site

    def record(self, name: str, tensor: Tensor, module: nn.Module | None = None) -> None:
        """Take in a tensor now, and its gradient when it comes."""
        site = self.note(name, {}, module)
        if site is None:
            return
        ticket = len(self.sites) - 1
        seen = self._seen.get(id(tensor))
        if seen is not None and seen[0]() is tensor and self._is_as_seen(tensor, *seen[1:]):
            site.same = seen[2]
            return
        self._seen[id(tensor)] = (weakref.ref(tensor), version_of(tensor), ticket)
        self._take(ticket, tensor, signal=True)
        self._watch_gradient(ticket, tensor)

    def _is_as_seen(self, tensor: Tensor, version: int, ticket: int) -> bool:
        """Not written to since, nor made a result of its own by a function that ran a module without a graph."""
        return version_of(tensor) == version and self.sites[ticket].hooked == tensor.requires_grad

    def _watch_gradient(self, ticket: int, tensor: Tensor) -> None:
        if tensor.requires_grad:
            self.sites[ticket].hooked = True
            self.hook(tensor, partial(self._gradient, ticket))

    def hook(self, tensor: Tensor, function: Callable[[Tensor | None], None]) -> None:
        """Call a function with the tensor's gradient; parameters, and what a model keeps, lose the hook at the end."""
        before = gradient_hooks(tensor)
        self._hooks.append((weakref.ref(tensor), before, tensor.register_hook(function)))

    def _unhook_tensors(self) -> None:
        for reference, before, handle in reversed(self._hooks):
            handle.remove()
            tensor = reference()
            if before is None and tensor is not None:
                forget_gradient_hooks(tensor)
        self._hooks.clear()

    def _gradient(self, ticket: int, gradient: Tensor | None) -> None:
        if self.phase == "backward" and gradient is not None:
            self.gradient_order.append(ticket)
            self._take(ticket, gradient, signal=False)

    def _take(self, ticket: int, tensor: Tensor, signal: bool) -> None:
        site = self.sites[ticket]
        values = self.layout.view(site.name, tensor.detach(), site.module)
        mask = self.layout.mask(site.name, values)
        if signal:
            self._signals[ticket] = self._moments.signal(values, mask)
        else:
            self._gradients[ticket] = self._moments.gradient(values, mask)
        self._note_more(site, values, mask, signal)

    def moments(self) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
        """(mean, variance, token correlation) of signals and of gradients, by ticket; waits for the device."""
        numbers = iter(fetched([*self._signals.values(), *self._gradients.values()]))
        return {ticket: next(numbers) for ticket in self._signals}, {
            ticket: next(numbers) for ticket in self._gradients
        }

    def _note_more(self, site: Site, values: Tensor, mask: Tensor | None, signal: bool) -> None:
        """What else is taken from a tensor, (sequences, tokens, channels), or from its gradient."""
        if self.formats:
            site.values |= format_fractions(values, mask, prefix="" if signal else "grad_")

    def _wanted(self, name: str) -> bool:
        if self.patterns is None:
            return True
        matching = [pattern for pattern in self.patterns if name == pattern or fnmatch.fnmatchcase(name, pattern)]
        self._unmatched.difference_update(matching)
        return bool(matching)

    def require_all_modules(self, model: nn.Module) -> None:
        """Raise where a module was made during the forward pass, and so was not watched."""
        watched = {id(module) for module in self.modules.values()}
        if any(id(module) not in watched for module in model.modules()):
            raise NotBuilt

    def require_matches(self) -> None:
        """Raise for a pattern that named no site."""
        for pattern in sorted(self._unmatched):
            known = [*self._calls, *self._index]
            hint = "Patterns such as '*.mlp' are allowed; '.scores' needs scores=True, '.add' junctions=True."
            raise UnknownNameError("site", pattern, set(known), hint)
