"""Copies of tensors, to put back what a model has overwritten: values, shape and storage, bit for bit.

A large tensor on a CPU lends its memory: while the model runs, it has that of a clone which shares its own until
somebody writes, and is then moved elsewhere. What it had stays where it was, so nothing is copied nor compared. Where
torch cannot do that, or anything else holds the memory, it is copied as all others are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sigprop.compat import flatten_dense_tensors, is_sole_holder, shared_clone, version_of

GROUP_SIZE = 1 << 26
SMALL = 1 << 14
PLAIN_TYPES = (Tensor, nn.Parameter, nn.Buffer)


class TensorValues:
    """Plain tensors are joined in groups, so that saving and checking cost few calls or kernels; others stay single.

    Nothing is changed before `lend`.
    """

    def __init__(self, tensors: Iterable[Tensor]):
        real = [tensor for tensor in tensors if tensor.device.type != "meta"]
        plain = [tensor for tensor in real if _is_plain(tensor)]
        large = [tensor for tensor in plain if tensor.device.type == "cpu" and tensor.numel() > SMALL]
        clones = [lendable_clone(tensor) for tensor in large]
        self.lent = [_Lent(x, x.detach(), y) for x, y in zip(large, clones, strict=True) if y is not None]
        copied = [x for x, y in zip(large, clones, strict=True) if y is None]
        small = [tensor for tensor in plain if tensor.device.type != "cpu" or tensor.numel() <= SMALL]
        self.storages = [(tensor, tensor.detach()) for tensor in (*copied, *small)]
        self.large = [(x, x.detach().clone(memory_format=torch.contiguous_format)) for x in copied]
        self.groups = [(group, joined(group)) for group in grouped(small)]
        self.singles = [_Single(tensor) for tensor in real if not _is_plain(tensor)]

    def lend(self) -> None:
        """From now on what is written to a large tensor goes elsewhere."""
        for tensor, _, clone in self.lent:
            tensor.data = clone

    def restore(self) -> None:
        """Give every tensor its storage and shape back, and write the values whose bits changed, only those."""
        self._take_back()
        for tensor, before in self.storages:
            if _place(tensor) != _place(before):
                tensor.data = before
        for tensor, saved in self.large:
            _write_back(tensor, saved)
        differences = [_differ(joined(group), saved) for group, saved in self.groups]
        for (group, saved), differs in zip(self.groups, differences, strict=True):
            if differs:
                parts = saved.split([tensor.numel() for tensor in group])
                for tensor, part in zip(group, parts, strict=True):
                    _write_back(tensor, part.view(tensor.shape))
        for single in self.singles:
            single.restore()

    def _take_back(self) -> None:
        """A clone that the model still holds gets memory of its own; then nothing shares a tensor's memory any more."""
        for tensor, own, _ in self.lent:
            tensor.data = own
        while self.lent:
            _, own, clone = self.lent.pop()
            if not is_sole_holder(clone):
                clone.data_ptr()
            del clone
            own.data_ptr()


def lendable_clone(tensor: Tensor) -> Tensor | None:
    """A clone to run with; None where something else holds the memory, which would not see what is written to it."""
    return shared_clone(tensor) if tensor.is_leaf and is_sole_holder(tensor) else None


class _Lent(NamedTuple):
    """A tensor, its own memory, and the clone that it runs with."""

    tensor: Tensor
    own: Tensor
    clone: Tensor


def _place(tensor: Tensor) -> tuple:
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in PLAIN_TYPES and tensor.layout == torch.strided and not tensor.is_quantized


class _Single:
    """A quantized or sparse tensor, or one of a type of its own."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor
        self.version = None if tensor.is_inference() else version_of(tensor)
        self.saved = tensor.detach().clone()

    def restore(self) -> None:
        if self.tensor.is_quantized:
            changed = not torch.equal(self.tensor.int_repr(), self.saved.int_repr())
        else:
            changed = self.version is None or version_of(self.tensor) != self.version
        if changed:
            with torch.no_grad():
                self.tensor.copy_(self.saved)


def _write_back(tensor: Tensor, before: Tensor) -> None:
    if not torch.equal(*_bits(tensor, before)):
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
        flat = flatten_dense_tensors(group)
        return flat.clone() if len(group) == 1 else flat  # a single tensor comes back as a view of itself


def _bits(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Memory of both as integers, so that equal means equal bits, also for not-a-number; long ones where they fit."""
    pair = one.detach(), other.detach()
    if one.is_complex():
        pair = torch.view_as_real(pair[0]), torch.view_as_real(pair[1])
    if all(map(_is_whole, pair)):
        return pair[0].view(-1).view(torch.int64), pair[1].view(-1).view(torch.int64)
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[pair[0].element_size()]
    return pair[0].view(kind), pair[1].view(kind)


def _is_whole(tensor: Tensor) -> bool:
    """Whether it is a row of whole words of eight bytes."""
    begins = tensor.storage_offset() * tensor.element_size()
    return tensor.is_contiguous() and tensor.dim() > 0 and tensor.nbytes % 8 == 0 and begins % 8 == 0


def _differ(one: Tensor, other: Tensor) -> Tensor | bool:
    if one.shape != other.shape:
        return True
    left, right = _bits(one, other)
    return (left != right).any()
