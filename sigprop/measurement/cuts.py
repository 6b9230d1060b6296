"""Cutting a model's graph at module outputs, to differentiate from one site to another only."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn

from sigprop.errors import InputError, UnknownNameError, UnsupportedError
from sigprop.isolation import seed_of
from sigprop.measurement.batch import signals_in


class Cuts:
    """While active, the first signal of each `sources` module is replaced by a leaf, or by a dual tensor.

    `output(name)` is what a module in `targets` computed, `leaf(name)` what the rest of the model continued with.
    """

    def __init__(self, model: nn.Module, sources: list[str], targets: list[str], tangent_seed: int | None = None):
        self.model = model
        self.sources = set(sources)
        self.targets = set(targets)
        self.tangent_seed = tangent_seed
        self.order: list[str] = []
        self._outputs: dict[str, Tensor] = {}
        self._leaves: dict[str, Tensor] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Cuts:
        for name in self.sources | self.targets:
            handle = self.model.get_submodule(name).register_forward_hook(self._hook(name))
            self._stack.callback(handle.remove)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def output(self, name: str) -> Tensor:
        return _present(self._outputs, name)

    def leaf(self, name: str) -> Tensor:
        return _present(self._leaves, name)

    def _hook(self, name: str):
        def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
            signals = signals_in(output)
            if not signals:
                raise InputError(f"{name} returns no floating-point tensor to differentiate")
            if name in self._outputs:
                raise UnsupportedError(f"{name} runs more than once; choose sites that run once")
            signal = signals[0][1]
            self.order.append(name)
            self._outputs[name] = signal
            if name not in self.sources:
                return None
            self._leaves[name] = leaf = self._cut(signal)
            return _replaced(output, signal, leaf)

        return hook

    def _cut(self, signal: Tensor) -> Tensor:
        if self.tangent_seed is None:
            return signal.detach().requires_grad_()
        generator = torch.Generator(signal.device).manual_seed(seed_of("tangent", self.tangent_seed))
        direction = torch.randn(signal.shape, generator=generator, device=signal.device)
        return forward_ad.make_dual(signal.detach(), direction.to(signal.dtype))


def _present(table: dict[str, Tensor], name: str) -> Tensor:
    if name not in table:
        raise InputError(f"{name} did not run on this batch; choose a module that does")
    return table[name]


def _replaced(value: Any, old: Tensor, new: Tensor) -> Any:
    """The same structure with one tensor exchanged."""
    if value is old:
        return new
    if isinstance(value, Mapping):
        made = type(value)()
        for key, item in value.items():
            made[key] = _replaced(item, old, new)  # type: ignore[index]
        return made
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_replaced(item, old, new) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_replaced(item, old, new) for item in value)
    return value


def module_names(model: nn.Module, patterns: Iterable[str]) -> list[str]:
    """Names of modules that the patterns match, in the order of the model."""
    known = [name for name, _ in model.named_modules() if name]
    found: dict[str, None] = {}
    for pattern in patterns:
        matching = [pattern] if pattern in known else fnmatch.filter(known, pattern)
        if not matching:
            raise UnknownNameError("module", pattern, known)
        found.update(dict.fromkeys(matching))
    return list(found)


def repeated_blocks(model: nn.Module) -> list[str]:
    """The children of the list of like modules that holds the most parameters."""
    best: tuple[int, list[str]] = (-1, [])
    for name, module in model.named_modules():
        children = list(module.named_children())
        alike = len(children) > 1 and len({type(child) for _, child in children}) == 1
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and alike:
            size = sum(parameter.numel() for parameter in module.parameters())
            if size > best[0]:
                best = (size, [f"{name}.{key}" if name else key for key, _ in children])
    if not best[1]:
        raise InputError("the model has no list of like blocks; name them with blocks=")
    return best[1]
