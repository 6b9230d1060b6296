"""Optimizers for matrices: Muon for weights of more than two dimensions, and training on the sphere.

A convolution is one matrix, outputs by all that a filter reads (or one for each of its groups); any other weight
(stacked experts) is a stack of matrices along its first dimensions. Two dimensions train as with `torch.optim.Muon`.

On the sphere every matrix keeps the Frobenius norm that it starts with, and a step turns it by an angle:

    w <- r (w - lr r u / |u|) / |w - lr r u / |u||,   r = |w| at the first step

with `u` Adam's update (`AdamH`) or Muon's (`MuonH`). References: Jordan et al. 2024, Muon (convolutions flattened); Liu
et al. 2025, Muon is Scalable (experts one by one); Wen et al. 2026, Hyperball; Ren et al. 2026, HyperP.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.errors import UnsupportedError
from sigprop.plans.multipliers import RMS_OF_ADAM, muon_scale


class ByParameter(torch.optim.Optimizer):
    """An optimizer that says what becomes of one parameter with a gradient."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, weight.grad, group)
        return loss

    def _update(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError


class AdamH(ByParameter):
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

    def _update(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        (first, second), state = group["betas"], self.state[weight]
        if not state:
            state |= {"step": 0, "average": torch.zeros_like(weight), "squares": torch.zeros_like(weight)}
        state["step"] += 1
        state["average"].lerp_(gradient, 1 - first)
        state["squares"].lerp_(gradient.square(), 1 - second)
        size = (state["squares"] / (1 - second ** state["step"])).sqrt().add_(group["eps"])
        turn(weight, state["average"] / size, group["lr"], state, group["filters"])


def turn(weight: Tensor, update: Tensor, angle: float, state: dict[str, Any], filters: int = 0) -> None:
    """Turn each matrix of a weight against an update, at the norm it had when it was first turned."""
    axes = tuple(range(weight.ndim)) if filters or weight.ndim < 3 else (-2, -1)

    def norm(values: Tensor) -> Tensor:  # torch 2.9 multiplies a sharded `vector_norm` before it is reduced
        return values.float().square().sum(axes, keepdim=True).sqrt()

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


CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
SMALLEST = 1e-7


def matrix_shape(shape: tuple[int, ...], owner: nn.Module | None = None) -> tuple[int, int]:
    """Rows and columns of the matrix, or of each matrix of a stack, as stored; `owner` is the module of the weight."""
    if len(shape) < 2:
        return (shape[0] if shape else 1), 1
    groups = groups_of(owner)
    return (shape[0] // groups, math.prod(shape[1:])) if groups else (shape[-2], shape[-1])


def groups_of(owner: nn.Module | None) -> int:
    """In how many matrices a convolution falls apart; 0 for any other module."""
    return owner.groups if isinstance(owner, CONVOLUTIONS) else 0


class Muon(ByParameter):
    """`filters` is a convolution's number of groups; with 0 a weight is a stack of its last two dimensions."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        eps: float = SMALLEST,
        adjust_lr_fn: str = "original",
    ):
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "eps": eps, "filters": 0}
        super().__init__(params, {**defaults, "adjust_lr_fn": adjust_lr_fn})

    def _update(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        step = self._direction(weight, gradient, group)
        size = matrix_sizes(weight, group["filters"])[1:]
        as_adam = group["adjust_lr_fn"] == "match_rms_adamw"
        rate = group["lr"] * (RMS_OF_ADAM * muon_scale("rms", *size) if as_adam else muon_scale("shape", *size))
        weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(step.to(weight.dtype), alpha=-rate)

    def _direction(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        """The orthogonal factor of the averaged gradient, in the weight's shape."""
        state = self.state[weight]
        average = state.setdefault("momentum_buffer", torch.zeros_like(gradient))
        average.lerp_(gradient, 1 - group["momentum"])
        update = gradient.lerp(average, group["momentum"])
        matrices = update.reshape(matrix_sizes(weight, group["filters"]))
        return self._evened(weight, orthogonal(matrices, group["eps"]), group).reshape(weight.shape)

    def _evened(self, weight: Tensor, matrices: Tensor, group: dict[str, Any]) -> Tensor:
        return matrices


class NorMuon(Muon):
    r"""Muon whose rows have one size: each divided by the root of a running mean of its squares, the norm kept.

    Reference: Li et al. 2025, NorMuon.
    """

    SECOND = 0.95

    def _evened(self, weight: Tensor, matrices: Tensor, group: dict[str, Any]) -> Tensor:
        matrices = matrices.float()
        squares = matrices.square().mean(-1, keepdim=True)
        state = self.state[weight]
        running = state["rows"] = state["rows"].lerp(squares, 1 - self.SECOND) if "rows" in state else squares
        evened = matrices / running.sqrt().clamp(min=group["eps"])
        return evened * (matrices.norm(dim=(-2, -1), keepdim=True) / evened.norm(dim=(-2, -1), keepdim=True))


class MuonH(Muon):
    """Muon that turns a matrix by the angle `lr` and keeps its norm (`hyperball.py`)."""

    def _update(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        turn(weight, self._direction(weight, gradient, group), group["lr"], self.state[weight], group["filters"])


def matrix_sizes(weight: Tensor, filters: int) -> tuple[int, int, int]:
    """(matrices, rows, columns) of a weight: a convolution's groups, else a stack of its last two dimensions."""
    rows = len(weight) // filters if filters else weight.shape[-2]
    columns = math.prod(weight.shape[1:]) if filters else weight.shape[-1]
    return weight.numel() // (rows * columns), rows, columns


def orthogonal(matrices: Tensor, smallest: float = SMALLEST) -> Tensor:
    """An approximate orthogonal factor of each matrix of a stack, in bfloat16."""
    first, second, third = COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    found = matrices.bfloat16()
    found = found.mT if tall else found
    found = found / found.norm(dim=(-2, -1), keepdim=True).clamp(min=smallest)
    for _ in range(ITERATIONS):
        gram = found @ found.mT
        found = torch.baddbmm(found, torch.baddbmm(gram, gram, gram, beta=second, alpha=third), found, beta=first)
    return found.mT if tall else found
