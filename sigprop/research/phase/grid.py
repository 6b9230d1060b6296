"""MLPs at many settings at once: all points of a grid pass through the same random matrices as one product.

    h <- sigma_w W phi(h) + sigma_b b + mu h,    Var W = 1 / N, Var b = 1

Rows of the product are the grid points (and the samples of a batch), so a whole (sigma_w, sigma_b, mu) plane costs
one matrix product per layer, and neighbouring points share their noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from sigprop.errors import InputError, UnknownNameError, require

Function = Callable[[Tensor], Tensor]

FUNCTIONS: dict[str, Function] = {
    "elu": F.elu,
    "erf": torch.erf,
    "exp": torch.exp,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "hard_swish": F.hardswish,
    "identity": lambda x: x,
    "leaky_relu": F.leaky_relu,
    "mish": F.mish,
    "relu": F.relu,
    "relu_squared": lambda x: F.relu(x) ** 2,
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "sin": torch.sin,
    "softplus": F.softplus,
    "tanh": torch.tanh,
}
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
NORMS = ("none", "preactivation", "activation", "batch")


@dataclass(frozen=True)
class Network:
    """The shape of the measured MLPs. `batch` samples pass together; `stages` per block, with BatchNorm only.

    `precision` is that of the products on the way up; bfloat16 is faster where the machine has it, and its rounding
    (relative 2e-3 per entry, random) does not show in averages. States, norms and Jacobians stay in float32.
    """

    activation: str | Function = "relu"
    norm: str = "none"
    depth: int = 50
    width: int = 500
    inputs: int = 784
    batch: int = 1
    stages: int = 1
    precision: str = "float32"

    def __post_init__(self) -> None:
        require(self.norm in NORMS, "norm", self.norm, " or ".join(NORMS))
        require(self.depth >= 3, "depth", self.depth, "at least three layers, to have a penultimate block")
        for key in ("width", "inputs", "batch", "stages"):
            require(getattr(self, key) >= 1, key, getattr(self, key), "a positive whole number")
        require(self.norm != "batch" or self.batch >= 2, "batch", self.batch, "at least 2 samples with BatchNorm")
        require(self.norm == "batch" or self.stages == 1, "stages", self.stages, "1 unless the norm is 'batch'")
        require(self.precision in PRECISIONS, "precision", self.precision, " or ".join(PRECISIONS))
        if isinstance(self.activation, str) and self.activation not in FUNCTIONS:
            raise UnknownNameError("activation", self.activation, FUNCTIONS)

    @property
    def function(self) -> Function:
        return FUNCTIONS[self.activation] if isinstance(self.activation, str) else self.activation

    def settings(self) -> dict[str, Any]:
        named = self.activation if isinstance(self.activation, str) else getattr(self.activation, "name", "user")
        return {**self.__dict__, "activation": named}


@dataclass(frozen=True)
class Points:
    """Grid points as columns [P, 1, 1], ready to multiply states [P, batch, width]."""

    sigma_w: Tensor
    sigma_b: Tensor
    residual: Tensor

    @classmethod
    def of(cls, sigma_w: Tensor, sigma_b: Tensor, residual: Tensor, device: str | torch.device) -> Points:
        for key, value in (("sigma_w", sigma_w), ("sigma_b", sigma_b), ("residual", residual)):
            require(value.numel() > 0, key, tuple(value.shape), "at least one value")
            if not (torch.isfinite(value).all() and (value >= 0).all()):
                raise InputError(f"{key}: all values must be finite and not negative")
        columns = torch.broadcast_tensors(sigma_w, sigma_b, residual)
        return cls(*(c.flatten().to(device, torch.float32)[:, None, None] for c in columns))


@dataclass(frozen=True)
class LinearPoints:
    """x -> sigma_w W x + sigma_b b at every point."""

    weight: Tensor
    scale: Tensor
    bias: Tensor

    def product(self, x: Tensor) -> Tensor:
        return (x.to(self.weight.dtype) @ self.weight).float() * self.scale

    def __call__(self, x: Tensor) -> Tensor:
        return self.product(x) + self.bias


class Layers:
    """The random layers of one initialization, drawn one after another from one generator."""

    def __init__(self, network: Network, points: Points, seed: int):
        self.network, self.points = network, points
        self.device = points.sigma_w.device
        self.residual = bool((points.residual != 0).any())
        self.generator = Generator(self.device).manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, device=self.device)

    def signs(self, *shape: int) -> Tensor:
        return torch.randint(0, 2, shape, generator=self.generator, device=self.device).float() * 2 - 1

    def linear(self, fan_in: int, dtype: torch.dtype = torch.float32) -> LinearPoints:
        """sigma_w W x + sigma_b b with W and b drawn now, from inputs [batch, inputs] or states [P, batch, width]."""
        weight = self.normal(fan_in, self.network.width).div_(fan_in**0.5).to(dtype)
        return LinearPoints(weight, self.points.sigma_w, self.points.sigma_b * self.normal(self.network.width))

    def carry(self, h: Tensor, tangent: Tensor) -> tuple[Tensor, Tensor]:
        """One layer applied to states and to directions of change; the linear part needs no automatic derivative."""
        linear = self.linear(self.network.width)
        value, change = torch.func.jvp(self._activate, (h,), (tangent,))[:2]
        mu = self.points.residual
        return linear(value) + mu * h, linear.product(change) + mu * tangent

    def block(self, dtype: torch.dtype = torch.float32) -> Callable[[Tensor], Tensor]:
        """One layer (or one block of several BatchNorm stages), from states to states."""
        linears = [self.linear(self.network.width, dtype) for _ in range(self.network.stages)]

        def apply(h: Tensor) -> Tensor:
            x = h
            for linear in linears:
                x = linear(self._activate(x))
            return x + self.points.residual * h if self.residual else x

        return apply

    def _activate(self, h: Tensor) -> Tensor:
        norm, width = self.network.norm, self.network.width
        if norm == "preactivation":
            return self.network.function(F.layer_norm(h, (width,), eps=0.0))
        if norm == "activation":
            return F.layer_norm(self.network.function(h), (width,), eps=0.0)
        if norm == "batch":
            centred = h - h.mean(1, keepdim=True)
            return self.network.function(centred * torch.rsqrt(centred.square().mean(1, keepdim=True)))
        return self.network.function(h)
