"""Which module runs while a model is captured, and what its modules hand on: the sites."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from sigprop.capture.attached import attached
from sigprop.capture.record import Field
from sigprop.sites import ROOT, nth, part


class ModuleSites:
    """Names of the modules that run, innermost last, and the tensors that modules of a model have made."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.modules: list[str] = []
        self.sites: list[tuple[str, Field]] = []
        self._module_names = {id(module): name for name, module in model.named_modules()}
        self._module_calls: dict[str, int] = {}

    @property
    def module(self) -> str:
        return self.modules[-1] if self.modules else ROOT

    @contextmanager
    def module_hooks(self) -> Iterator[None]:
        """On the modules of this copy alone: other models, in other threads, run as they are."""
        handles = []
        try:
            for module in self.model.modules():
                handles.append(module.register_forward_pre_hook(self._enter, prepend=True))
                handles.append(module.register_forward_hook(self._leave))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        name = self._module_names.get(id(module))
        self.modules.append((name if name != "" else ROOT) if name is not None else self.module)

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        name = self.modules.pop()
        if id(module) not in self._module_names:
            return
        call = self._module_calls[name] = self._module_calls.get(name, 0) + 1
        label = nth(name, call)
        signals = [(path, t) for path, t in tensors_in(output) if t.is_floating_point() and t.dim() and t.numel()]
        for number, (path, tensor) in enumerate(signals):
            found = attached(tensor)
            if isinstance(found, Field):
                found = found.before_hook or found
                found.seal()
                self.sites.append((part(label, path, number), found))


def tensors_in(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors_in(item, f"{path}[{key}]")
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from tensors_in(item, f"{path}[{index}]")
