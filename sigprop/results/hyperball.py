r"""Training on the sphere: every matrix keeps the Frobenius norm that it starts with, and a step turns it by an angle.

    w <- r (w - lr r u / |u|) / |w - lr r u / |u||,   r = |w| at the first step

with `u` Adam's update (`AdamH`) or Muon's (`MuonH`, in `muon.py`). The moments that a plan sets then hold for the whole
run, up to what correlations learn, and weight decay has nothing to do. A matrix that starts at zero has no norm to
keep, and is refused. Reference: Wen et al. 2026, Hyperball; Ren et al. 2026, HyperP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from sigprop.errors import UnsupportedError


class AdamH(torch.optim.Optimizer):
    """Adam's update as an angle; `filters` as in `Muon`: weights of more than two dimensions are stacks of matrices."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "filters": 0})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            first, second = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state |= {"step": 0, "average": torch.zeros_like(weight), "squares": torch.zeros_like(weight)}
                state["step"] += 1
                state["average"].lerp_(weight.grad, 1 - first)
                state["squares"].lerp_(weight.grad.square(), 1 - second)
                size = (state["squares"] / (1 - second ** state["step"])).sqrt().add_(group["eps"])
                turn(weight, state["average"] / size, group["lr"], state, group["filters"])
        return loss


def turn(weight: Tensor, update: Tensor, angle: float, state: dict[str, Any], filters: int = 0) -> None:
    """Turn each matrix of a weight against an update, at the norm it had when it was first turned."""
    axes = tuple(range(weight.ndim)) if filters or weight.ndim < 3 else (-2, -1)

    def norm(values: Tensor) -> Tensor:
        return torch.linalg.vector_norm(values, dim=axes, keepdim=True, dtype=torch.float32)

    if "radius" not in state:
        state["radius"] = norm(weight)
        if not bool((state["radius"] > 0).all()):
            raise UnsupportedError(
                f"a matrix of shape {tuple(weight.shape)} starts at zero and has no norm to keep: start it with a size "
                "and close its branch by a gain, or train it with another optimizer"
            )
    length = norm(update)
    unit = update / length.clamp(min=torch.finfo(torch.float32).tiny)
    turned = weight - angle * state["radius"] * unit
    weight.copy_((turned * (state["radius"] / norm(turned))).to(weight.dtype))
