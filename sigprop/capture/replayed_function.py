"""Any function of its sources, replayed: draws for `Sampled`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from sigprop.capture.ensemble import (
    APART,
    Ensemble,
    Joint,
    chosen_alike,
    fewest_entries,
    joint_of,
    parts_of_sources,
    records_between,
    sites_between,
)
from sigprop.capture.record import LONG_TAILS, ONE_NUMBER, Field, Weight
from sigprop.capture.replay import Replay, Reverse
from sigprop.graph.evaluate import Evaluation
from sigprop.graph.graph import Node

ENTRIES, MOST = 2048, 64
"""Entries of the result that are drawn at least, in no more replicas than this."""
LARGEST = 1 << 23
MANY_ENTRIES, CHEAP = 16384, 1 << 19
"""Entries that are drawn where all replicas together hold no more than `CHEAP` numbers."""
MANY = 2048
"""Replicas that are never exceeded: of one number they tell the mean square to 3 %."""
MOST_REPLAYED = 10**9
"""Calls that are drawn for one model, at most."""

TAILS = "a gradient through a norm over {} numbers has a long tail"
FOURIER = "channels of a Fourier transform are taken as independent"


class ReplayedFunction:
    """What leads from sources to a target, called again on drawn sources."""

    def __init__(self, target: Field, seed: int):
        self.target, self.seed = target, seed
        self.states: Evaluation | None = None
        parts = parts_of_sources(target)
        self.through = chosen_alike(target, parts)
        self.parts = parts_of_sources(target, self.through) if self.through else parts
        self.channels = target.layout.channels
        self.fewest = min((part.layout.channels for part in self._drawn), default=0)
        self.received: Reverse | None = None
        self.joint: Joint | None = None

    def join(self, sources: list[Field], node: Node, states: Evaluation) -> None:
        """Draw sources from one node, in which they stand one after another."""
        self.joint = joint_of(states, sources, node)

    @property
    def nodes(self) -> list[Node]:
        """What is drawn from."""
        if self.joint is None:
            return [source.node for source in self.parts]
        return [*(source.node for source in self.parts if source not in self.joint.spans), self.joint.node]

    @property
    def reaches(self) -> int | None:
        """Of how many nodes it is a function; weights stand between it and those behind sources that it replays."""
        again = self.through and self.joint is None
        return len({item.field for item in self.target.sources} - self.through) if again else None

    @property
    def _drawn(self) -> list[Field]:
        return [part for parts in self.parts.values() for part in parts]

    @property
    def sites_between(self) -> list[Field]:
        """Sites that a replay passes."""
        return sites_between(self.target, self.parts)

    def bound(self, states: Evaluation) -> ReplayedFunction:
        if states is self.states:
            return self
        made = copy(self)
        made.states, made.received = states, None
        return made

    @property
    def replicas(self) -> int:
        size = sum(math.prod(source.shape) for source in self.parts) + math.prod(self.target.shape)
        channels = max(1, min([self.channels, *(part.layout.channels for part in self._drawn)]))
        few = min(MOST, math.ceil(ENTRIES / channels), LARGEST // size)
        return max(2, few, min(math.ceil(MANY_ENTRIES / channels), CHEAP // size, MANY))

    @property
    def fewest_entries(self) -> float:
        return fewest_entries(self.target, self.parts)

    @property
    def calls(self) -> int:
        """How many functions one pass over all replicas calls."""
        return self.replicas * (len(records_between(self.target, self.parts)) + 1)

    @property
    def doubts(self) -> dict[str, str]:
        between, root, found = records_between(self.target, self.parts), self.target.root, {}
        if any(isinstance(record, Field) and _transforms_channels(record) for record in between):
            found["signal"] = FOURIER
        norm = self.target if self.target.is_drawn else root
        if norm is not None and 0 < norm.of_few <= LONG_TAILS:
            found["gradient"] = TAILS.format(norm.of_few)
        if any(isinstance(item, Weight) and math.prod(item.shape) == 1 for item in between):
            found["parameters"] = ONE_NUMBER
        return found

    def rows(self) -> Iterator[Tensor]:
        for replay in self._replays():
            yield self.target.layout.to_rows(replay(self.target))

    def backward(self) -> Iterator[DrawnFunction]:
        self.received = Reverse(self.parts, self.sites_between, self.joint, couples=True)
        for replay in self._replays(gradients=True):
            yield DrawnFunction(self, replay, replay(self.target))

    def scale_received(self, factor: float) -> None:
        assert self.received is not None
        self.received.scale(factor / self.replicas)

    def _replays(self, gradients: bool = False) -> Iterator[Replay]:
        assert self.states is not None
        seed = self.seed * APART
        ensemble = Ensemble(self.states, self.replicas, torch.Generator().manual_seed(seed))
        for replica in range(self.replicas):
            generator = torch.Generator().manual_seed(seed + replica + 1)
            yield Replay(self.states, generator, gradients, ensemble, replica, self._drawn, self.joint, self.through)


def _transforms_channels(made: Field) -> bool:
    """Whether a Fourier transform made a tensor along dimensions of channels: of positions each channel has its own."""
    call = made.call
    if call is None or "fft" not in call.name:
        return False
    last = (-2, -1) if call.name.endswith("fft2") else None if call.name.endswith("fftn") else -1
    dim = call.kwargs.get("dim", call.args[2] if len(call.args) > 2 else last)
    places = range(len(made.shape)) if dim is None else (dim,) if isinstance(dim, int) else dim
    given = made.fields[0].layout.dims if made.fields else ()
    return any(not axis.is_position for place in places for axis in given[place])


@dataclass
class DrawnFunction:
    """One replay and the result that it gives."""

    function: ReplayedFunction
    replay: Replay
    result: Tensor

    @property
    def rows(self) -> Tensor:
        return self.function.target.layout.to_rows(self.result.detach())

    @property
    def generator(self) -> torch.Generator:
        return self.replay.generator

    @property
    def has_sources(self) -> bool:
        return self.result.requires_grad

    def send(self, gradient: Tensor) -> None:
        assert self.function.received is not None
        self.function.received.add(self.replay, self.result, self.function.target.layout.from_rows(gradient))
