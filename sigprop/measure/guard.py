"""Leave the model as it was: parameters, buffers, gradients, train flags, random states, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

GROUP_SIZE = 1 << 24


@contextmanager
def untouched(model: nn.Module, batch_tensors: Iterable[Tensor] = ()) -> Iterator[None]:
    """Whatever happens inside, also an exception, the model and the random states come back as they were."""
    values = _Values([*model.parameters(), *model.buffers()])
    modules = [_ModuleState(module) for module in model.modules()]
    gradients = _take_gradients(model)
    devices = {tensor.device for tensor in (*values.tensors, *batch_tensors)}
    states = _RandomStates(devices)
    try:
        yield
    finally:
        for module in modules:
            module.restore()
        for tensor, gradient in gradients:
            tensor.grad = gradient
        values.restore()
        states.restore()


class _ModuleState:
    """The attributes of one module that a forward pass may rebind: parameters, buffers, the train flag."""

    def __init__(self, module: nn.Module):
        self.module = module
        self.training = module.training
        self.parameters = dict(module._parameters)
        self.buffers = dict(module._buffers)

    def restore(self) -> None:
        if self.module.training is not self.training:
            self.module.training = self.training
        _rebind(self.module._parameters, self.parameters)
        _rebind(self.module._buffers, self.buffers)


def _rebind(current: dict[str, Any], saved: dict[str, Any]) -> None:
    if len(current) != len(saved) or any(current.get(key) is not saved[key] for key in saved):
        current.clear()
        current.update(saved)


class _Values:
    """Copies of tensors, joined in groups so that saving and checking cost a GPU a few kernels."""

    def __init__(self, tensors: Iterable[Tensor]):
        unique = {id(tensor): tensor for tensor in tensors if tensor.device.type != "meta"}
        self.tensors = list(unique.values())
        self.groups = [(group, _joined(group)) for group in _groups(self.tensors)]

    def restore(self) -> None:
        """Write back the tensors whose bits changed, and only those."""
        for group, saved in self.groups:
            if saved.device.type != "cpu" and torch.equal(_bits(_joined(group)), _bits(saved)):
                continue
            parts = saved.split([tensor.numel() for tensor in group])
            for tensor, part in zip(group, parts, strict=True):
                before = part.view(tensor.shape)
                if not torch.equal(_bits(tensor), _bits(before)):
                    with torch.no_grad():
                        tensor.copy_(before)


def _groups(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one device and type together, up to a size."""
    kinds: dict[tuple, list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    for members in kinds.values():
        group: list[Tensor] = []
        for tensor in members:
            if group and sum(item.numel() for item in group) > GROUP_SIZE:
                yield group
                group = []
            group.append(tensor)
        yield group


def _joined(group: list[Tensor]) -> Tensor:
    with torch.no_grad():
        flat = torch._utils._flatten_dense_tensors(group)
        return flat.clone() if len(group) == 1 else flat  # a single tensor comes back as a view of itself


def _bits(tensor: Tensor) -> Tensor:
    """The same memory as integers, so that equal means equal bits, also for not-a-number."""
    tensor = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.view(kind)


def _take_gradients(model: nn.Module) -> list[tuple[Tensor, Tensor | None]]:
    """Set the gradient of every leaf that the model holds aside, and remember it."""
    held = [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    leaves = [
        tensor for tensor in (*model.parameters(), *model.buffers(), *held) if tensor.is_leaf and tensor.requires_grad
    ]
    unique = {id(tensor): tensor for tensor in leaves}
    taken = [(tensor, tensor.grad) for tensor in unique.values()]
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
