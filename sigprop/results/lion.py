r"""Lion, which torch does not ship: the sign of an interpolated gradient.

    u = sign(b1 m + (1 - b1) g),   w <- (1 - lr decay) w - lr u,   m <- b2 m + (1 - b2) g

With `betas=(0, 0)` it is sign descent. Reference: Chen et al. 2023, Symbolic Discovery of Optimization Algorithms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """Sign updates with decoupled weight decay."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                update = momentum.lerp(parameter.grad, 1 - first).sign_()
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=group["lr"])
                momentum.lerp_(parameter.grad, 1 - second)
        return loss
