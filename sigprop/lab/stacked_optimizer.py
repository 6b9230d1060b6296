r"""Optimizers for stacks of networks: the entry rules of SGD and AdamW with one learning rate for every network.

    sgd     m <- mu m + g;                          w <- (1 - lr wd) w - lr m
    adamw   m <- b1 m + (1-b1) g, v <- b2 v + (1-b2) g^2
                                                    w <- (1 - lr wd) w - lr m^ / (sqrt(v^) + eps)

`lr` is a vector over networks times a factor of the parameter (a plan's) times the schedule's. Everything is a tensor
on the device, so that a step can be captured as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sigprop.errors import UnknownNameError, require

KINDS = ("adamw", "sgd", "momentum")


class StackedOptimizer:
    """`parameters[name]` is `[networks, ...]`; `factors[name]` are the multipliers of rate, decay and epsilon."""

    def __init__(
        self,
        kind: str,
        parameters: Mapping[str, Tensor],
        rates: Tensor,
        weight_decay: float = 0.0,
        factors: Mapping[str, tuple[float, float, float]] | None = None,
        betas: tuple[float, float] = (0.9, 0.95),
        epsilon: float = 1e-8,
    ):
        if kind not in KINDS:
            raise UnknownNameError("optimizer of stacked networks", kind, KINDS)
        require(bool((rates > 0).all()), "rates", rates.tolist(), "positive learning rates")
        self.kind, self.parameters, self.rates = kind, dict(parameters), rates
        self.decay, self.betas, self.epsilon = weight_decay, betas, epsilon
        self.factors = {name: (factors or {}).get(name, (1.0, 1.0, 1.0)) for name in parameters}
        self.first = {name: torch.zeros_like(value.detach()) for name, value in parameters.items() if kind != "sgd"}
        self.second = {name: torch.zeros_like(value) for name, value in self.first.items() if kind == "adamw"}
        self.count = torch.zeros((), device=rates.device)

    def tensors(self) -> list[Tensor]:
        """All that a step changes."""
        return [*self.parameters.values(), *self.first.values(), *self.second.values(), self.count]

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], schedule: Tensor) -> None:
        """Move all networks; `schedule` is a scalar tensor."""
        self.count += 1
        rates = self.rates * schedule
        for name, value in self.parameters.items():
            rate_factor, decay_factor, epsilon_factor = self.factors[name]
            rate = (rates * rate_factor).reshape(-1, *[1] * (value.dim() - 1))
            if self.decay * decay_factor:
                value.mul_(1.0 - rate * self.decay * decay_factor)
            value.addcmul_(rate, self._direction(name, gradients[name], self.epsilon * epsilon_factor), value=-1.0)

    def _direction(self, name: str, gradient: Tensor, epsilon: float) -> Tensor:
        if self.kind == "sgd":
            return gradient
        if self.kind == "momentum":
            return self.first[name].mul_(0.9).add_(gradient)
        beta1, beta2 = self.betas
        first = self.first[name].lerp_(gradient, 1.0 - beta1)
        second = self.second[name].mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        root = (second / (1.0 - beta2**self.count)).sqrt_().add_(epsilon)
        return first / (1.0 - beta1**self.count) / root
