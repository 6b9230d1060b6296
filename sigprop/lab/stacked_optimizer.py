r"""Optimizers for stacks of networks: the entry rules of SGD and AdamW with one learning rate for every network.

    sgd     m <- mu m + g;                          w <- (1 - lr wd) w - lr m
    adamw   m <- b1 m + (1-b1) g, v <- b2 v + (1-b2) g^2
                                                    w <- (1 - lr wd) w - lr m^ / (sqrt(v^) + eps)

`lr` is a vector over networks times a factor of the parameter (a plan's) times the schedule's. Everything is a tensor
on the device, so that a step can be captured as a CUDA graph. AdamW is torch's own fused kernel, one call for the
parameters of a network that share their factors: as separate products it was a quarter of a step of small networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sigprop.compat import fused_adamw_
from sigprop.errors import UnknownNameError, require

KINDS = ("adamw", "sgd", "momentum")
Factors = tuple[float, float, float]


@dataclass(frozen=True)
class _Call:
    """What one network's parameters of the same factors need of the fused kernel."""

    network: int
    factors: Factors
    names: list[str]
    values: list[Tensor]
    first: list[Tensor]
    second: list[Tensor]


class StackedOptimizer:
    """`parameters[name]` is `[networks, ...]`; `factors[name]` are the multipliers of rate, decay and epsilon."""

    def __init__(
        self,
        kind: str,
        parameters: Mapping[str, Tensor],
        rates: Tensor,
        weight_decay: float = 0.0,
        factors: Mapping[str, Factors] | None = None,
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
        self.calls = self._calls() if kind == "adamw" else []

    def tensors(self) -> list[Tensor]:
        """All that a step changes."""
        return [*self.parameters.values(), *self.first.values(), *self.second.values(), self.count]

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], schedule: Tensor, shrink: Tensor | None = None) -> None:
        """Move all networks; `schedule` is a scalar tensor, `shrink` a factor of every network's gradient."""
        self.count += 1
        rates = self.rates * schedule
        if self.kind == "adamw":
            self._adamw(gradients, rates, shrink)
            return
        for name, value in self.parameters.items():
            rate_factor, decay_factor, _ = self.factors[name]
            rate = _along(rates * rate_factor, value)
            if self.decay * decay_factor:
                value.mul_(1.0 - rate * self.decay * decay_factor)
            gradient = gradients[name] if shrink is None else gradients[name] * _along(shrink, value)
            direction = self.first[name].mul_(0.9).add_(gradient) if self.kind == "momentum" else gradient
            value.addcmul_(rate, direction, value=-1.0)

    def _adamw(self, gradients: Mapping[str, Tensor], rates: Tensor, shrink: Tensor | None) -> None:
        laid_out = {name: _as(self.parameters[name], gradient) for name, gradient in gradients.items()}
        slices = {name: gradient.unbind() for name, gradient in laid_out.items()}
        divisors = None if shrink is None else shrink.reciprocal().float()
        for call in self.calls:
            rate_factor, decay_factor, epsilon_factor = call.factors
            fused_adamw_(
                call.values,
                [slices[name][call.network] for name in call.names],
                call.first,
                call.second,
                [],
                [self.count] * len(call.names),
                lr=rates[call.network] * rate_factor,
                beta1=self.betas[0],
                beta2=self.betas[1],
                weight_decay=self.decay * decay_factor,
                eps=self.epsilon * epsilon_factor,
                amsgrad=False,
                maximize=False,
                grad_scale=None if divisors is None else divisors[call.network],
            )

    def _calls(self) -> list[_Call]:
        together: dict[Factors, list[str]] = {}
        for name, factors in self.factors.items():
            together.setdefault(factors, []).append(name)
        stacks = ({name: value.detach() for name, value in self.parameters.items()}, self.first, self.second)
        return [
            _Call(number, factors, names, *([stack[name][number] for name in names] for stack in stacks))
            for factors, names in together.items()
            for number in range(len(self.rates))
        ]


def _along(values: Tensor, stack: Tensor) -> Tensor:
    """One number for every network, to be multiplied with its entries."""
    return values.reshape(-1, *[1] * (stack.dim() - 1))


def _as(value: Tensor, gradient: Tensor) -> Tensor:
    """A gradient in the memory layout of its parameter, which the fused kernel asks for."""
    if gradient.stride() == value.stride() and gradient.dtype == value.dtype:
        return gradient
    return torch.empty_like(value).copy_(gradient)
