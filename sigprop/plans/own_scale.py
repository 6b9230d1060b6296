"""Few optimizer groups for many learning rates: a weight that carries a factor is stepped in the scale it had without.

A weight written as `p = s q` has a rate of its own, and torch runs one kernel for each group; `q` takes the same rate,
decay and epsilon as its neighbours (the table of `multipliers.py`, read backwards):

    adam, adamw, lion   lr = s lr_q      eps = eps_q / s     lr decay = lr_q decay_q  (not adam's, which is a gradient)
    sgd, momentum       lr = s^2 lr_q                        lr decay = lr_q decay_q

So groups that agree in `lr eps` and `lr decay` become one, which holds the factors in `own_scale`. On a CPU, where
kernels are not what a step waits for, each weight is stepped with its own settings instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor

from sigprop.compat import foreach_div_, foreach_mul, foreach_mul_
from sigprop.plans.matrix_optimizers import ByParameter

KEY = "own_scale"
POWERS = {"adamw": 1, "adam": 1, "lion": 1, "sign": 1, "sgd": 2, "momentum": 2}
"""By optimizer, the power of `s` in the rate."""
EXACT_ENOUGH = (torch.float32, torch.float64)
DIGITS = 12
Group = dict[str, Any]


def merged_groups(groups: list[Group], optimizer: str) -> list[Group]:
    """The groups with those that differ by a scale alone put together; as they are where that is not exact."""
    short = any(p.dtype not in EXACT_ENOUGH for group in groups for p in group["params"])
    added = optimizer == "adam" and any(group["weight_decay"] for group in groups)
    if optimizer not in POWERS or short or added:
        return groups
    grouped: dict[tuple[float, ...], list[Group]] = {}
    for group in groups:
        grouped.setdefault(_products(group), []).append(group)
    return [_merged(found, optimizer) if len(found) > 1 else found[0] for found in grouped.values()]


def _products(group: Group) -> tuple[float, ...]:
    """What a scale leaves as it is."""
    found = (group["lr"] * group["weight_decay"], group["lr"] * group.get("eps", 0.0))
    return tuple(float(f"{value:.{DIGITS}g}") for value in found)


def _merged(groups: list[Group], optimizer: str) -> Group:
    """One group at the settings of the largest, which needs no factors."""
    largest = max(groups, key=lambda group: sum(parameter.numel() for parameter in group["params"]))
    scales = [(group["lr"] / largest["lr"]) ** (1 / POWERS[optimizer]) for group in groups]
    return largest | {
        "params": [parameter for group in groups for parameter in group["params"]],
        "param_names": [name for group in groups for name in group["param_names"]],
        KEY: [scale for scale, group in zip(scales, groups, strict=True) for _ in group["params"]],
    }


class InOwnScale(torch.optim.Optimizer):
    """A step that honours `own_scale`, in front of any of torch's optimizers; gradients are left as they are."""

    POWER = 1

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        weights, scales = self._with_a_factor()
        if not any(weight.device.type != "cpu" for weight in weights):
            return self._one_by_one(loss)
        gradients = [cast("Tensor", weight.grad) for weight in weights]
        try:
            if weights:
                foreach_div_(weights, scales)
                for weight, scaled in zip(weights, foreach_mul(gradients, scales), strict=True):
                    weight.grad = scaled
            _unhooked(super().step)(self)
        finally:
            if weights:
                foreach_mul_(weights, scales)
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.grad = gradient
        return loss

    def _one_by_one(self, loss: Any) -> Any:
        """On a CPU, where weights are stepped one after another anyway, each takes its own settings: no pass more."""
        groups = self.param_groups
        try:
            self.param_groups = [part for group in groups for part in self._parts(group)]
            _unhooked(super().step)(self)
        finally:
            self.param_groups = groups
        return loss

    def _parts(self, group: Group) -> list[Group]:
        if not any(scale != 1.0 for scale in group.get(KEY, ())):
            return [group]
        found: dict[float, Group] = {}
        for weight, scale in zip(group["params"], group[KEY], strict=True):
            times = scale**self.POWER
            own = {"params": [], "lr": group["lr"] * times, "weight_decay": group["weight_decay"] / times}
            own |= {"eps": group["eps"] / scale} if "eps" in group else {}
            found.setdefault(scale, group | own)["params"].append(weight)
        return list(found.values())

    def _with_a_factor(self) -> tuple[list[Tensor], list[float]]:
        """Weights that have a gradient and a factor other than one, with the factors."""
        pairs = [
            pair
            for group in self.param_groups
            for pair in zip(group["params"], group.get(KEY, ()), strict=False)
            if pair[1] != 1.0 and pair[0].grad is not None
        ]
        return [weight for weight, _ in pairs], [scale for _, scale in pairs]


def _unhooked(step: Any) -> Callable[[torch.optim.Optimizer], Any]:
    """The method as a function, without the wrapper that would call the user's step hooks a second time."""
    function = step.__func__
    return function.__wrapped__ if getattr(function, "hooked", False) else function


class AdamW(InOwnScale, torch.optim.AdamW):
    pass


class Adam(InOwnScale, torch.optim.Adam):
    pass


class SGD(InOwnScale, torch.optim.SGD):
    POWER = 2


class PlainLion(ByParameter):
    r"""Lion, which torch does not ship: the sign of an interpolated gradient; with `betas=(0, 0)` sign descent.

        u = sign(b1 m + (1 - b1) g),   w <- (1 - lr decay) w - lr u,   m <- b2 m + (1 - b2) g

    Reference: Chen et al. 2023, Symbolic Discovery of Optimization Algorithms.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def _update(self, weight: Tensor, gradient: Tensor, group: Group) -> None:
        first, second = group["betas"]
        momentum = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
        update = momentum.lerp(gradient, 1 - first).sign_()
        weight.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=group["lr"])
        momentum.lerp_(gradient, 1 - second)


class Lion(InOwnScale, PlainLion):
    pass
