"""What a forward pass may do to a module: rebind attributes, fill its containers, change its class or train flag."""

from __future__ import annotations

import operator
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from sigprop.compat import own_buffers, own_parameters

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
