"""Copies of tensors, to write back what a model has overwritten: values, shape and storage, bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from sigprop.compat import flatten_dense_tensors

GROUP_SIZE = 1 << 26
CPU_GROUP_SIZE = 1 << 18
"""Smaller pieces come from memory that the process has already; a large one is asked of the system, page by page."""
PLAIN_TYPES = (Tensor, nn.Parameter, nn.Buffer)


class TensorValues:
    """Plain tensors are joined in groups, so that saving and checking cost a GPU a few kernels; others stay single."""

    def __init__(self, tensors: Iterable[Tensor]):
        real = [tensor for tensor in tensors if tensor.device.type != "meta"]
        plain = [tensor for tensor in real if _is_plain(tensor)]
        self.storages = [(tensor, tensor.detach()) for tensor in plain]
        self.groups = [(group, joined(group)) for group in grouped(plain)]
        self.singles = [_Single(tensor) for tensor in real if not _is_plain(tensor)]

    def devices(self) -> set[torch.device]:
        return {tensor.device for tensor, _ in self.storages}

    def restore(self) -> None:
        """Give every tensor its storage and shape back, and write the values whose bits changed, only those."""
        for tensor, before in self.storages:
            if _place(tensor) != _place(before):
                tensor.data = before
        differences = [saved.device.type == "cpu" or _differ(joined(group), saved) for group, saved in self.groups]
        for (group, saved), differs in zip(self.groups, differences, strict=True):
            if differs:
                _write_back(group, saved)
        for single in self.singles:
            single.restore()


def _place(tensor: Tensor) -> tuple:
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in PLAIN_TYPES and tensor.layout == torch.strided and not tensor.is_quantized


class _Single:
    """A quantized or sparse tensor, or one of a type of its own."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor
        self.version = None if tensor.is_inference() else tensor._version
        self.saved = tensor.detach().clone()

    def restore(self) -> None:
        if self.tensor.is_quantized:
            changed = not torch.equal(self.tensor.int_repr(), self.saved.int_repr())
        else:
            changed = self.version is None or self.tensor._version != self.version
        if changed:
            with torch.no_grad():
                self.tensor.copy_(self.saved)


def _write_back(group: list[Tensor], saved: Tensor) -> None:
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
    for (device, _), members in kinds.items():
        group: list[Tensor] = []
        size, most = 0, CPU_GROUP_SIZE if device.type == "cpu" else GROUP_SIZE
        for tensor in members:
            if size > most:
                yield group
                group, size = [], 0
            group.append(tensor)
            size += tensor.numel()
        yield group


def joined(group: list[Tensor]) -> Tensor:
    with torch.no_grad():
        flat = flatten_dense_tensors(group)
        return flat.clone() if len(group) == 1 else flat  # a single tensor comes back as a view of itself


def _bits(tensor: Tensor) -> Tensor:
    """The same memory as integers, so that equal means equal bits, also for not-a-number."""
    tensor = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.view(kind)


def _differ(one: Tensor, other: Tensor) -> Tensor | bool:
    return one.shape != other.shape or (_bits(one) != _bits(other)).any()
