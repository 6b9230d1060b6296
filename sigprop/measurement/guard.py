"""Leave a model as it was: parameters, buffers, gradients, attributes, train flags, and the process around it."""

from __future__ import annotations

import operator
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sigprop.compat import flatten_dense_tensors, is_sole_holder, own_buffers, own_parameters, shared_clone, version_of
from sigprop.isolation import Interrupts, undisturbed, without_accumulation_hooks

GROUP_SIZE = 1 << 26
SMALL = 1 << 14
PLAIN_TYPES = (Tensor, nn.Parameter, nn.Buffer)


class TensorValues:
    """Copies of tensors, to put back what a model has overwritten: values, shape and storage, bit for bit.

    A large tensor on a CPU lends its memory: while the model runs, it has that of a clone which shares its own until
    somebody writes, and is then moved elsewhere. What it had stays where it was, so nothing is copied nor compared.
    Where torch cannot do that, or anything else holds the memory, it is copied as all others are. Plain tensors are
    joined in groups, so that saving and checking cost few calls or kernels; others stay single. Nothing is changed
    before `lend`.
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


CONTAINERS = frozenset((dict, OrderedDict, defaultdict, list, set, deque))
COMMON_ATTRIBUTES = frozenset(vars(nn.Module()))


class ModuleState:
    """One module's attributes, and what the containers among them hold."""

    def __init__(self, module: nn.Module):
        self.module = module
        self.kind = type(module)
        self.attributes = dict(vars(module))
        containers = list(_containers(self.attributes.values(), set()))
        self.empty = [container for container in containers if not container]
        self.contents = [_Contents(container) for container in containers if container]

    def registered(self) -> Iterator[Tensor]:
        """Parameters and buffers."""
        for tensor in (*own_parameters(self.module).values(), *own_buffers(self.module).values()):
            if tensor is not None:
                yield tensor

    def unregistered(self) -> Iterator[Tensor]:
        """Tensors that the module holds as plain attributes."""
        for key, value in self.attributes.items():
            if key not in COMMON_ATTRIBUTES and isinstance(value, Tensor):
                yield value

    def restore(self) -> None:
        if type(self.module) is not self.kind:
            self.module.__class__ = self.kind
        current = vars(self.module)
        if not _same_items(current, self.attributes):
            current.clear()
            current.update(self.attributes)
        for container in self.empty:
            if container:
                container.clear()
        for contents in self.contents:
            contents.restore()


def _containers(values: Iterable[Any], seen: set[int]) -> Iterator[Any]:
    """Containers among the values, and those inside them."""
    for value in values:
        if type(value) in CONTAINERS and id(value) not in seen:
            seen.add(id(value))
            yield value
            if value:
                yield from _containers(value.values() if isinstance(value, dict) else value, seen)


class _Contents:
    """A container with a shallow copy of what it holds."""

    __slots__ = ("container", "held")

    def __init__(self, container: Any):
        self.container = container
        self.held = dict(container) if isinstance(container, dict) else list(container)

    def restore(self) -> None:
        if isinstance(self.container, dict):
            if not _same_items(self.container, self.held):
                self.container.clear()
                self.container.update(self.held)
        elif not _same(list(self.container), self.held):
            self.container.clear()
            add = self.container.update if isinstance(self.container, set) else self.container.extend
            add(self.held)


def _same_items(current: dict, saved: Any) -> bool:
    """The same keys in the same order, with the very same values."""
    return _same(list(current.values()), list(saved.values())) and list(current) == list(saved)


def _same(current: list, saved: Any) -> bool:
    return len(current) == len(saved) and all(map(operator.is_, current, saved))


@contextmanager
def untouched(modules: Iterable[nn.Module], batch_tensors: Iterable[Tensor] = ()) -> Iterator[Interrupts]:
    """Whatever happens inside, also an exception or Ctrl-C, modules and process come back bit for bit.

    Signals wait; let them through, with what this gives, once everything else is set up.
    """
    modules = list(modules)
    devices = {tensor.device for module in modules for tensor in _own_tensors(module)}
    devices |= {tensor.device for tensor in batch_tensors}
    with undisturbed(devices) as interrupts:
        states = [ModuleState(module) for module in modules]
        held = {id(tensor): tensor for state in states for tensor in (*state.registered(), *state.unregistered())}
        values = TensorValues(held.values())
        gradients = [(tensor, tensor.grad) for tensor in held.values() if tensor.requires_grad and tensor.is_leaf]
        try:
            values.lend()
            for tensor, _ in gradients:
                tensor.grad = None
            with without_accumulation_hooks(tensor for tensor, _ in gradients):
                yield interrupts
        finally:
            for state in states:
                state.restore()
            for tensor, gradient in gradients:
                tensor.grad = gradient
            values.restore()


def _own_tensors(module: nn.Module) -> Iterator[Tensor]:
    tensors = (*own_parameters(module).values(), *own_buffers(module).values())
    return (tensor for tensor in tensors if tensor is not None)
