"""Hooks that a user has put on a model to watch it: not run by a prediction, whose tensors are not the user's.

Hooks that are part of the model are kept: methods of its modules, torch's own (weight and spectral norm) and the
multipliers of a plan.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sigprop.compat import (
    accumulated_hooks,
    any_compiled,
    backward_hook_tables,
    current_function_mode,
    forward_hook_tables,
    hooked_modules,
    set_accumulated_hooks,
    uncompiled,
)

Model = TypeVar("Model")


def as_written(model: Model) -> Model:
    """The module behind `torch.compile(module)`; anything else as it is."""
    return uncompiled(model)


def eagerly(modules: Iterable[nn.Module]) -> AbstractContextManager[Any]:
    """Inside, compiled submodules run as written. Torch has one switch for the process: see `undisturbed`."""
    return torch.compiler.set_stance("force_eager") if any_compiled(modules) else nullcontext()


class Mode(TorchFunctionMode):
    """Left only if it is the one in force: after an interrupt it may be gone already, with another in its place."""

    def __exit__(self, *error: Any) -> None:
        if current_function_mode() is self:
            super().__exit__(*error)


KEPT = ("torch", "sigprop", "transformers")


def observers(model: nn.Module) -> Iterator[tuple[str, dict[int, Any], int]]:
    """The user's forward hooks: name of the module, table of its hooks, key in the table."""
    own = {id(module) for module in model.modules()}
    for name, module in hooked_modules(model):
        for hooks in forward_hook_tables(module):
            for key, hook in hooks.items():
                if not _belongs(hook, own):
                    yield name or type(module).__name__, hooks, key


def without_observers(model: nn.Module) -> list[str]:
    """Take the user's forward hooks off a copy, or a model that is put back; names of the modules that had some."""
    found = list(observers(model))
    for _, hooks, key in found:
        del hooks[key]
    return list(dict.fromkeys(name for name, _, _ in found))


@contextmanager
def without_backward_hooks(model: nn.Module) -> Iterator[list[str]]:
    """For a while, a model without hooks that see, and may change, gradients; names of the modules that have some."""
    found: list[str] = []
    taken: list[tuple[dict[int, Any], dict[int, Any]]] = []
    for name, tables in backward_hook_tables(model):
        found.append(name or type(model).__name__)
        taken += [(table, dict(table)) for table in tables]
    for table, _ in taken:
        table.clear()
    try:
        yield found
    finally:
        for table, hooks in taken:
            table.update(hooks)


@contextmanager
def without_accumulation_hooks(tensors: Iterable[Tensor]) -> Iterator[None]:
    """For a while without the user's hooks on accumulated gradients: an optimizer that steps in one would step here."""
    taken = [(tensor, hooks) for tensor in tensors if (hooks := accumulated_hooks(tensor))]
    try:
        for tensor, hooks in taken:
            kept = OrderedDict((key, hook) for key, hook in hooks.items() if _belongs(hook, set()))
            set_accumulated_hooks(tensor, kept or None)
        yield
    finally:
        for tensor, hooks in taken:
            set_accumulated_hooks(tensor, hooks)


def _belongs(hook: Any, own: set[int]) -> bool:
    while isinstance(hook, partial):
        hook = hook.func
    if id(getattr(hook, "__self__", None)) in own:
        return True
    home = getattr(hook, "__module__", None) or type(hook).__module__
    return home.split(".")[0] in KEPT
