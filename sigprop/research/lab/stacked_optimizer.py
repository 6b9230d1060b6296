r"""Optimizers for stacks of networks: the entry rules of SGD and AdamW with one learning rate for every network.

    sgd     m <- mu m + g;                          w <- (1 - lr wd) w - lr m
    adamw   m <- b1 m + (1-b1) g, v <- b2 v + (1-b2) g^2
                                                    w <- (1 - lr wd) w - lr m^ / (sqrt(v^) + eps)

`lr` is a vector over networks times a factor of the parameter (a plan's) times the schedule's. Everything is a tensor
on the device, so that a step can be captured as a CUDA graph. AdamW is torch's own fused kernel, one call for the row
of a network's parameters that share their factors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sigprop.compat import fused_adamw_
from sigprop.errors import UnknownNameError, require
from sigprop.research.lab.rows import Rows

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
