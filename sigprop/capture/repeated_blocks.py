"""Deep models: of a run of alike blocks a part is followed, dense at both ends, and the rest is jumped over.

A block that is skipped hands on a tensor that only the next block of the run may read. Whatever shows that blocks are
not alike, or that the tensors between them are read by others, raises `Uneven`, and the model is traced whole.

Runs of blocks that are alike: children of one list with the same parts, settings and laws of their parameters.

What only counts blocks (`layer_idx`) may differ. A block that reads such a number while it runs is not like the others,
so the number is watched.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.capture.capture import Capture
from sigprop.capture.jump import FollowedBlock, Jump
from sigprop.capture.record import Field, Skipped, Uneven, leaves, mapped
from sigprop.distributions import Distribution, law_of
from sigprop.graph.graph import Node, record_of

SHORTEST = 40
"""Blocks of a run that is worth it."""
SURE = 5.0
"""Standard errors within which two laws that were read off numbers are one."""


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
    first, described = 0, list(map(_described, blocks))
    for place in range(1, len(blocks) + 1):
        if place == len(blocks) or not _are_alike(described[first], described[place], place - first):
            yield AlikeBlocks(name, first, tuple(blocks[first:place]))
            first = place


def _described(block: nn.Module) -> list[Any]:
    """What a block is made of: settings of its parts, numbers that they hold, laws of their parameters."""
    found: list[Any] = []
    for name, module in block.named_modules():
        found += [name, type(module)]
        found += [item for key, value in vars(module).items() if not key.startswith("_") for item in (key, value)]
        for key, item in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            held = law_of(item) if isinstance(item, nn.Parameter) and item.is_meta else item
            found += [key, tuple(item.shape), item.dtype, item.requires_grad, held]
    return found


def _are_alike(one: list[Any], other: list[Any], apart: int) -> bool:
    """Whether two blocks are made of the same; whole numbers may count the blocks, of which one is so many further."""
    return len(one) == len(other) and all(_is_like(*pair, apart) for pair in zip(one, other, strict=True))


def _is_like(one: Any, other: Any, apart: int) -> bool:
    if isinstance(one, Distribution) and isinstance(other, Distribution):
        return _one_law(one, other)
    if isinstance(one, int) and not isinstance(one, bool) and type(one) is type(other):
        return other in (one, one + apart)
    if isinstance(one, Tensor) and isinstance(other, Tensor) and one.is_meta and other.is_meta:
        return True
    return one is other or (not isinstance(one, (list, dict)) and _same(one, other))


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


FROM_BOTTOM, FROM_TOP = 0.2, 0.4
"""Distance to the next followed block at most, as a share of the blocks below, and of those above."""


def followed_numbers(count: int) -> list[int]:
    """Which of so many blocks are followed: the first and the last, and between them fewer the further from both."""
    found, number = [], 0
    while number < count:
        found.append(number)
        number += max(1, min(int(FROM_BOTTOM * number), int(FROM_TOP * (count - 1 - number))))
    return found


@contextmanager
def jumped_over(capture: Capture) -> Iterator[list[RunOfBlocks]]:
    """Inside, the captured model runs only a part of each run of alike blocks."""
    runs = [RunOfBlocks(capture, found) for found in runs_of_alike_blocks(capture.model)]
    with ExitStack() as after:
        for run in runs:
            found = run.alike
            for number, block in enumerate(found.blocks):
                if "forward" not in vars(block):
                    block.forward = partial(run.called, number, block.forward)
                    after.callback(block.__dict__.pop, "forward")
            after.enter_context(run.watching_numbers())
        yield runs


class RunOfBlocks:
    """A run while the model runs: which blocks are followed, and what they did."""

    def __init__(self, capture: Capture, alike: AlikeBlocks):
        self.alike = alike
        self.numbers = followed_numbers(len(alike.blocks))
        self._capture = capture
        self._followed: list[FollowedBlock] = []
        self._jumps: list[Jump] = []
        self._watched: list[WatchedNumber] = []
        self._settings: Any = None
        self._output: Any = None
        self._next = self._attentions = 0

    @property
    def skipped(self) -> list[int]:
        return sorted(set(range(len(self.alike.blocks))) - set(self.numbers))

    def skipped_before(self, number: int) -> range:
        """Those between a followed block and the one followed before it."""
        place = self.numbers.index(number)
        return range(self.numbers[place - 1] + 1, number) if place else range(0)

    def neighbours(self, number: int) -> tuple[int, int]:
        """The followed blocks about one that was not."""
        place = bisect(self.numbers, number)
        return self.numbers[place - 1], self.numbers[place]

    @contextmanager
    def watching_numbers(self) -> Iterator[None]:
        """Numbers that count the blocks are replaced by ones that tell whether they are used."""
        with ExitStack() as after:
            for number in self.numbers:
                inside = dict(self.alike.blocks[number].named_modules())
                for name, key in counting_numbers(self.alike):
                    value = getattr(inside[name], key)
                    self._watched.append(WatchedNumber(value))
                    after.callback(setattr, inside[name], key, value)
                    setattr(inside[name], key, self._watched[-1])
            yield

    def called(self, number: int, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A block of the run, called by the model."""
        if number != self._next:
            raise Uneven(f"{self.alike.block_name(number)} is not called after the block before it")
        self._next += 1
        streams = [item for item in leaves((args, kwargs)) if isinstance(item, Tensor) and record_of(item) is not None]
        if len(streams) != 1:
            raise Uneven(f"{self.alike.block_name(number)} reads {len(streams)} traced tensors")
        self._require_same_settings(mapped((args, kwargs), lambda item: None if item is streams[0] else item))
        if number not in self.numbers:
            self._capture.attentions += self._attentions
            return mapped(self._output, lambda item: self._skipped(item) if item is self._stream else item)
        return self._follow(number, own, streams[0], args, kwargs)

    def _require_same_settings(self, settings: Any) -> None:
        if self._settings is None:
            self._settings = settings
        elif not _same(self._settings, settings):
            raise Uneven(f"blocks of {self.alike.name} are not called with the same arguments")

    def _skipped(self, like: Tensor) -> Tensor:
        made = torch.empty(like.shape, dtype=like.dtype, device="meta")
        self._capture.attach(made, Skipped(tuple(like.shape)))
        return made

    def _follow(self, number: int, own: Callable[..., Any], stream: Tensor, args: tuple, kwargs: dict) -> Any:
        if isinstance(record_of(stream), Skipped):
            landed = self._landed(number)
            args, kwargs = mapped((args, kwargs), lambda item: landed if item is stream else item)
            stream = landed
        before, attentions = record_of(stream), self._capture.attentions
        output = own(*args, **kwargs)
        self._attentions = self._capture.attentions - attentions
        made = [item for item in leaves(output) if isinstance(item, Tensor)]
        after = record_of(made[0]) if len(made) == 1 else None
        if not (isinstance(before, Field) and isinstance(after, Field) and before.shape == after.shape):
            raise Uneven(f"{self.alike.block_name(number)} does not map a stream to a stream")
        if any(item.used for item in self._watched):
            raise Uneven(f"{self.alike.block_name(number)} reads its own number")
        self._output, self._stream = output, made[0]
        self._add(number, before.node, after.node)
        return output

    def _add(self, number: int, entered: Node, left: Node) -> None:
        followed = FollowedBlock(number, entered, left)
        for jump in self._jumps[-3:]:
            jump.above.append(followed)
            jump.require_straight(self._capture.states, followed)
        self._followed.append(followed)

    def _landed(self, number: int) -> Tensor:
        """The stream before a block that is followed again."""
        source = record_of(self._stream)
        assert isinstance(source, Field)
        jump = Jump((self._followed[-2], self._followed[-1]), number)
        self._jumps.append(jump)
        node = self._capture.apply(jump, source.node)
        landed = torch.empty(source.shape, dtype=source.dtype, device="meta")
        self._capture.attach(landed, Field(source.layout, lambda _: node, inputs=(source,)))
        return landed


def _same(one: Any, other: Any) -> bool:
    """Whether two arguments say the same; of what is unknown only itself does."""
    if one is other:
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return not one.is_meta and not other.is_meta and one.shape == other.shape and torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return isinstance(one, (bool, int, float, str)) and one == other
