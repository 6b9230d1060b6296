"""Leave the model as it was: parameters, buffers, gradients, train flags, random states, bit for bit."""

from __future__ import annotations

import operator
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors

GROUP_SIZE = 1 << 26
COMMON_ATTRIBUTES = frozenset(vars(nn.Module()))


@contextmanager
def untouched(modules: Iterable[nn.Module], batch_tensors: Iterable[Tensor] = ()) -> Iterator[None]:
    """Whatever happens inside, also an exception, the modules and the random states come back as they were."""
    states = [_ModuleState(module) for module in modules]
    held = {id(tensor): tensor for state in states for tensor in state.tensors()}
    values = _Values(held.values())
    gradients = _take_gradients([*held.values(), *(item for state in states for item in state.attributes())])
    devices = {tensor.device for tensor in (*values.tensors, *batch_tensors)}
    random_states = _RandomStates(devices)
    try:
        yield
    finally:
        changed = values.changed()
        for state in states:
            state.restore()
        for tensor, gradient in gradients:
            tensor.grad = gradient
        random_states.restore()
        values.restore(changed)


class _ModuleState:
    """The attributes of one module that a forward pass may rebind: parameters, buffers, the train flag."""

    def __init__(self, module: nn.Module):
        self.module = module
        self.training = module.training
        self.parameters = dict(module._parameters.items())
        self.buffers = dict(module._buffers.items())

    def tensors(self) -> Iterator[Tensor]:
        """Parameters and buffers."""
        for tensor in (*self.parameters.values(), *self.buffers.values()):
            if tensor is not None:
                yield tensor

    def attributes(self) -> Iterator[Tensor]:
        """Tensors that the module holds without registering them."""
        own = vars(self.module).items()
        return (value for key, value in own if key not in COMMON_ATTRIBUTES and isinstance(value, Tensor))

    def restore(self) -> None:
        if self.module.training is not self.training:
            self.module.training = self.training
        _rebind(self.module._parameters, self.parameters)
        _rebind(self.module._buffers, self.buffers)


def _rebind(current: dict[str, Any], saved: dict[str, Any]) -> None:
    if list(current.keys()) != list(saved) or not all(map(operator.is_, current.values(), saved.values())):
        current.clear()
        current.update(saved)


class _Values:
    """Copies of tensors, joined in groups so that saving and checking cost a GPU a few kernels."""

    def __init__(self, tensors: Iterable[Tensor]):
        self.tensors = [tensor for tensor in tensors if tensor.device.type != "meta"]
        self.groups = [(group, joined(group)) for group in grouped(self.tensors)]

    def changed(self) -> list[Tensor | bool]:
        """For each group whether a bit changed, not yet known on a GPU; on a CPU tensors are looked at one by one."""
        return [saved.device.type == "cpu" or _differ(joined(group), saved) for group, saved in self.groups]

    def restore(self, changed: list[Tensor | bool]) -> None:
        """Write back the tensors whose bits changed, and only those."""
        for (group, saved), differs in zip(self.groups, changed, strict=True):
            if not differs:
                continue
            parts = saved.split([tensor.numel() for tensor in group])
            for tensor, part in zip(group, parts, strict=True):
                before = part.view(tensor.shape)
                if not torch.equal(_bits(tensor), _bits(before)):
                    with torch.no_grad():
                        tensor.copy_(before)


def grouped(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one device and type together, up to a size."""
    kinds: dict[tuple, list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    for members in kinds.values():
        group: list[Tensor] = []
        size = 0
        for tensor in members:
            if size > GROUP_SIZE:
                yield group
                group, size = [], 0
            group.append(tensor)
            size += tensor.numel()
        yield group


def joined(group: list[Tensor]) -> Tensor:
    with torch.no_grad():
        flat = _flatten_dense_tensors(group)
        return flat.clone() if len(group) == 1 else flat  # a single tensor comes back as a view of itself


def _bits(tensor: Tensor) -> Tensor:
    """The same memory as integers, so that equal means equal bits, also for not-a-number."""
    tensor = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.view(kind)


def _differ(one: Tensor, other: Tensor) -> Tensor | bool:
    return one.shape != other.shape or (_bits(one) != _bits(other)).any()


def _take_gradients(tensors: Iterable[Tensor]) -> list[tuple[Tensor, Tensor | None]]:
    """Set the gradients of leaves aside, and remember them."""
    leaves = {id(tensor): tensor for tensor in tensors if tensor.requires_grad and tensor.is_leaf}
    taken = [(tensor, tensor.grad) for tensor in leaves.values()]
    for tensor, _ in taken:
        tensor.grad = None
    return taken


class _RandomStates:
    """Random states of Python, NumPy, the CPU and the devices in use."""

    def __init__(self, devices: Iterable[torch.device]):
        self.python = random.getstate()
        self.numpy: Any = np.random.get_state()  # noqa: NPY002
        self.cpu = torch.get_rng_state()
        self.cuda = {device: torch.cuda.get_rng_state(device) for device in devices if device.type == "cuda"}

    def restore(self) -> None:
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002
        torch.set_rng_state(self.cpu)
        for device, state in self.cuda.items():
            torch.cuda.set_rng_state(state, device)
