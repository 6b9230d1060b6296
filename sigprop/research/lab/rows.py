"""Parameters of stacked networks that are treated alike, in one tensor with a row for each network.

What is done to all of them (rounding, norms, an optimizer's update) is then one operation on whole rows. Tensor by
tensor it was thousands of small kernels a step, which took longer than the networks themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNED = 8
"""A parameter begins at a multiple of so many entries: fast products read 16 bytes at a time."""
Factors = tuple[float, float, float]


@dataclass(frozen=True)
class Kind:
    """What parameters of one tensor share: `factors` of rate, decay and epsilon, and whether products are rounded."""

    factors: Factors
    dtype: torch.dtype
    is_rounded: bool = False


@dataclass(frozen=True)
class _Place:
    start: int
    size: int
    shape: tuple[int, ...]
    by_columns: bool

    @property
    def gap(self) -> int:
        """Entries up to the next parameter; they are zero and stay so."""
        return -self.size % ALIGNED


class Rows:
    """`values` is `[networks, entries]`. A weight `by_columns` lies as the gradient of a linear layer comes."""

    def __init__(self, kind: Kind, stacks: Mapping[str, Tensor], by_columns: Iterable[str] = ()):
        self.kind, self.places, start = kind, {}, 0
        turned = set(by_columns)
        for name, stack in stacks.items():
            self.places[name] = _Place(start, stack[0].numel(), tuple(stack.shape), name in turned)
            start += self.places[name].size + self.places[name].gap
        self.values = self.gathered(stacks)

    def gathered(self, stacks: Mapping[str, Tensor]) -> Tensor:
        """Stacks of all parameters in the layout of `values`."""
        first = next(iter(self.places))
        zeros = stacks[first].new_zeros(len(stacks[first]), ALIGNED)
        parts = []
        for name, place in self.places.items():
            stack = stacks[name].detach()
            parts.append((stack.mT if place.by_columns else stack).reshape(len(stack), -1))
            parts += [zeros[:, : place.gap]] if place.gap else []
        return torch.cat(parts, dim=1)

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """The parameters in a tensor of the layout of `values`."""
        return {name: _view(rows, place) for name, place in self.places.items()}


def _view(rows: Tensor, place: _Place) -> Tensor:
    part = rows[:, place.start : place.start + place.size]
    networks, *shape = place.shape
    return part.view(networks, *shape[::-1]).mT if place.by_columns else part.view(place.shape)
