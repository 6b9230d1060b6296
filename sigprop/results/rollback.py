"""All or nothing: what a plan changes on a model is put back when applying it fails, or is interrupted."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from sigprop.compat import FORWARD_HOOKS, LOADING_HOOKS


class Saved:
    """Values of parameters, saved one by one before they are written."""

    def __init__(self) -> None:
        self._values: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keep(self, parameter: torch.Tensor) -> None:
        self._values.append((parameter, parameter.detach().clone()))

    def write(self, target: torch.Tensor, values: torch.Tensor) -> None:
        """New values for a tensor, sharded or not."""
        self.keep(target)
        fill(target, values)

    def put_back(self) -> None:
        with torch.no_grad():
            for parameter, values in self._values:
                parameter.copy_(values)


def fill(target: torch.Tensor, values: torch.Tensor) -> None:
    """Copy whole values into a tensor that may be sharded."""
    mesh = getattr(target, "device_mesh", None)
    if mesh is None:
        target.copy_(values)
        return
    from torch.distributed.tensor import distribute_tensor

    placed = values.to(device=mesh.device_type, dtype=target.dtype)
    target.copy_(distribute_tensor(placed, mesh, target.placements))  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def all_or_nothing(model: nn.Module, generator: torch.Generator | None) -> Iterator[Saved]:
    """Run a change of the model; on any exception its hooks, own attributes, parameters and the generator go back."""
    saved = Saved()
    modules = [(module, _state(module)) for module in model.modules()]
    drawn = None if generator is None else generator.get_state()
    numbers = torch.get_rng_state()
    try:
        yield saved
    except BaseException:
        saved.put_back()
        for module, state in modules:
            _restore(module, state)
        if generator is not None and drawn is not None:
            generator.set_state(drawn)
        torch.set_rng_state(numbers)
        raise


def _state(module: nn.Module) -> dict[str, Any]:
    """The module's attributes, with its hooks and names of parameters copied."""
    state = dict(module.__dict__)
    for name in (*FORWARD_HOOKS, LOADING_HOOKS, "_parameters", "_sigprop_originals"):
        if name in state:
            state[name] = copy.copy(state[name])
    return state


def _restore(module: nn.Module, state: dict[str, Any]) -> None:
    """In place where others may hold the dictionaries of a module."""
    for name in [name for name in module.__dict__ if name not in state]:
        del module.__dict__[name]
    for name, value in state.items():
        present = module.__dict__.get(name)
        if isinstance(present, dict) and isinstance(value, dict) and present is not value:
            present.clear()
            present.update(value)
        else:
            module.__dict__[name] = value
