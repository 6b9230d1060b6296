"""Parameters of many networks in one tensor: rows of an optimizer, moved together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sigprop.compat import fused_adamw_
from sigprop.errors import UnknownNameError, require

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


KINDS = ("adamw", "sgd", "momentum")


class StackedOptimizer:
    """Moves the `values` of rows, given gradients in the same layout."""

    def __init__(
        self,
        kind: str,
        rows: Sequence[Rows],
        rates: Tensor,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.95),
        epsilon: float = 1e-8,
    ):
        if kind not in KINDS:
            raise UnknownNameError("optimizer of stacked networks", kind, KINDS)
        require(bool((rates > 0).all()), "rates", rates.tolist(), "positive learning rates")
        self.kind, self.rows, self.rates = kind, list(rows), rates
        self.decay, self.betas, self.epsilon = weight_decay, betas, epsilon
        self.first = [torch.zeros_like(each.values) for each in self.rows if kind != "sgd"]
        self.second = [torch.zeros_like(each.values) for each in self.rows if kind == "adamw"]
        self.count = torch.zeros((), device=rates.device)

    def tensors(self) -> list[Tensor]:
        """All that a step changes."""
        return [*(each.values for each in self.rows), *self.first, *self.second, self.count]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], schedule: Tensor, shrink: Tensor | None = None) -> None:
        """Move all networks; `schedule` is a scalar tensor, `shrink` a factor of every network's gradient."""
        self.count += 1
        move = self._adamw if self.kind == "adamw" else self._descend
        for number, gradient in enumerate(gradients):
            move(number, gradient, self.rates * schedule, shrink)

    def _descend(self, number: int, gradient: Tensor, rates: Tensor, shrink: Tensor | None) -> None:
        values, (rate_factor, decay_factor, _) = self.rows[number].values, self.rows[number].kind.factors
        rate = (rates * rate_factor).unsqueeze(1)
        if self.decay * decay_factor:
            values.mul_(1.0 - rate * self.decay * decay_factor)
        direction = gradient if shrink is None else gradient * shrink.unsqueeze(1)
        if self.kind == "momentum":
            direction = self.first[number].mul_(0.9).add_(direction)
        values.addcmul_(rate.to(values.dtype), direction, value=-1.0)

    def _adamw(self, number: int, gradient: Tensor, rates: Tensor, shrink: Tensor | None) -> None:
        rate_factor, decay_factor, epsilon_factor = self.rows[number].kind.factors
        divisors = None if shrink is None else shrink.reciprocal().float()
        for network, rate in enumerate(rates * rate_factor):
            fused_adamw_(
                [self.rows[number].values[network]],
                [gradient[network]],
                [self.first[number][network]],
                [self.second[number][network]],
                [],
                [self.count],
                lr=rate,
                beta1=self.betas[0],
                beta2=self.betas[1],
                weight_decay=self.decay * decay_factor,
                eps=self.epsilon * epsilon_factor,
                amsgrad=False,
                maximize=False,
                grad_scale=None if divisors is None else divisors[network],
            )
