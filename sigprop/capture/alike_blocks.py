"""Runs of blocks that are alike: children of one list with the same parts, settings and laws of their parameters.

What only counts blocks (`layer_idx`) may differ. A block that reads such a number while it runs is not like the others,
so the number is watched.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.capture.skeleton import Distribution, law_of

SHORTEST = 40
"""Blocks of a run that is worth it."""
SURE = 5.0
"""Standard errors within which two laws that were read off numbers are one."""
PLAIN = (bool, int, float, str, type(None), torch.dtype)


@dataclass(frozen=True)
class AlikeBlocks:
    """Consecutive children of a list, from `first` on; `name` is that of the list."""

    name: str
    first: int
    blocks: tuple[nn.Module, ...]

    def block_name(self, number: int) -> str:
        inside = str(self.first + number)
        return f"{self.name}.{inside}" if self.name else inside


def runs_of_alike_blocks(model: nn.Module) -> list[AlikeBlocks]:
    """Runs of at least `SHORTEST` blocks in the lists of a model."""
    found = []
    for name, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) >= SHORTEST:
            found += [run for run in _runs(name, list(module)) if len(run.blocks) >= SHORTEST]
    return found


def _runs(name: str, blocks: list[nn.Module]) -> Iterator[AlikeBlocks]:
    first, described = 0, [_Description(block, place) for place, block in enumerate(blocks)]
    for place in range(1, len(blocks) + 1):
        if place == len(blocks) or not described[place].is_like(described[first]):
            yield AlikeBlocks(name, first, tuple(blocks[first:place]))
            first = place


class _Description:
    """What a block is made of. Whole numbers are told as they are and as their distance from the block's place."""

    def __init__(self, block: nn.Module, place: int):
        self.settings: list[Any] = []
        self.numbers: list[tuple[int, int]] = []
        self.laws: list[Distribution] = []
        self.buffers: list[Tensor] = []
        for name, module in block.named_modules():
            self.settings += [name, type(module)]
            for key, value in vars(module).items():
                if not key.startswith("_"):
                    self._add(key, value, place)
            for key, parameter in module.named_parameters(recurse=False):
                self.settings.append((key, tuple(parameter.shape), parameter.dtype, parameter.requires_grad))
                if parameter.is_meta:
                    self.laws.append(law_of(parameter))
                else:
                    self.buffers.append(parameter)
            for key, buffer in module.named_buffers(recurse=False):
                self.settings.append((key, tuple(buffer.shape), buffer.dtype))
                self.buffers.append(buffer)

    def _add(self, key: str, value: Any, place: int) -> None:
        if isinstance(value, int) and not isinstance(value, bool):
            self.settings.append(key)
            self.numbers.append((value, value - place))
        elif isinstance(value, PLAIN) or (isinstance(value, tuple) and all(isinstance(item, PLAIN) for item in value)):
            self.settings.append((key, value))
        elif isinstance(value, Tensor):
            self.settings.append(key)
            self.buffers.append(value)
        else:
            self.settings.append((key, id(value)))

    def is_like(self, other: _Description) -> bool:
        if self.settings != other.settings:
            return False
        numbers = zip(self.numbers, other.numbers, strict=True)
        same = all(
            value == other_value or offset == other_offset for (value, offset), (other_value, other_offset) in numbers
        )
        return same and all(map(_one_law, self.laws, other.laws)) and all(map(_equal, self.buffers, other.buffers))


def _one_law(one: Distribution, other: Distribution) -> bool:
    if one is other:
        return True
    error = SURE * math.hypot(one.uncertainty, other.uncertainty) + 1e-6
    spread = math.sqrt(max(one.variance, other.variance))
    return (
        one.kind == other.kind
        and abs(one.variance - other.variance) <= error * max(one.variance, other.variance)
        and abs(one.mean - other.mean) <= error * spread + 1e-9 * abs(one.mean)
    )


def _equal(one: Tensor, other: Tensor) -> bool:
    if one is other or (one.is_meta and other.is_meta):
        return True
    return one.shape == other.shape and one.device == other.device and torch.equal(one, other)


class WatchedNumber(int):
    """A whole number that tells when it is used for anything but to be handed on."""

    used: bool = False


def _watching(name: str) -> Any:
    plain = getattr(int, name)

    def method(self: WatchedNumber, *args: Any) -> Any:
        self.used = True
        return plain(self, *args)

    return method


_COMPARED = ("lt", "le", "gt", "ge", "eq", "ne", "hash", "bool", "int", "float", "index")
_COMPUTED = ("add", "sub", "mul", "mod", "floordiv", "truediv", "pow", "and", "or")
for _name in (*_COMPARED, *_COMPUTED, *(f"r{name}" for name in _COMPUTED), "neg"):
    setattr(WatchedNumber, f"__{_name}__", _watching(f"__{_name}__"))


def counting_numbers(run: AlikeBlocks) -> list[tuple[str, str]]:
    """Which whole numbers of the blocks differ: the name of the part inside the block and of its attribute."""
    first, second = (dict(block.named_modules()) for block in run.blocks[:2])
    return [
        (name, key)
        for name, module in first.items()
        for key, value in vars(module).items()
        if type(value) is int and not key.startswith("_") and vars(second[name])[key] != value
    ]
