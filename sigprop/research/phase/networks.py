"""Networks of a phase diagram: one for each cell of a grid of settings, run together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from sigprop.errors import InputError, UnknownNameError, require
from sigprop.measurement.statistics import average_over
from sigprop.research.phase.diagram import Axis, PhaseDiagram, plane_values

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
NORMS = ("none", "preactivation", "activation", "batch")


@dataclass(frozen=True)
class Network:
    """The shape of the measured MLPs. `batch` samples pass together; `stages` per block, with BatchNorm only."""

    activation: str | Function = "relu"
    norm: str = "none"
    depth: int = 50
    width: int = 500
    inputs: int = 784
    batch: int = 1
    stages: int = 1

    def __post_init__(self) -> None:
        require(self.norm in NORMS, "norm", self.norm, " or ".join(NORMS))
        require(self.depth >= 3, "depth", self.depth, "at least three layers, to have a penultimate block")
        for key in ("width", "inputs", "batch", "stages"):
            require(getattr(self, key) >= 1, key, getattr(self, key), "a positive whole number")
        require(self.norm != "batch" or self.batch >= 2, "batch", self.batch, "at least 2 samples with BatchNorm")
        require(self.norm == "batch" or self.stages == 1, "stages", self.stages, "1 unless the norm is 'batch'")
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

    def __call__(self, x: Tensor) -> Tensor:
        return (x @ self.weight) * self.scale + self.bias


class Layers:
    """The random layers of one initialization, initialized one after another from one generator."""

    def __init__(self, network: Network, points: Points, seed: int):
        self.network, self.points = network, points
        self.device = points.sigma_w.device
        self.residual = bool((points.residual != 0).any())
        self.generator = Generator(self.device).manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, device=self.device)

    def signs(self, *shape: int) -> Tensor:
        return torch.randint(0, 2, shape, generator=self.generator, device=self.device).float() * 2 - 1

    def linear(self, fan_in: int) -> LinearPoints:
        """sigma_w W x + sigma_b b with W and b sampled now, from inputs [batch, inputs] or states [P, batch, width]."""
        weight = self.normal(fan_in, self.network.width).div_(fan_in**0.5)
        return LinearPoints(weight, self.points.sigma_w, self.points.sigma_b * self.normal(self.network.width))

    def block(self) -> Callable[[Tensor], Tensor]:
        """One layer (or one block of several BatchNorm stages), from states to states."""
        linears = [self.linear(self.network.width) for _ in range(self.network.stages)]

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


class _Scaled(TorchFunctionMode):
    """Linear maps with W replaced by sigma_w W and b by sigma_b b."""

    def __init__(self, sigma_w: Tensor, sigma_b: Tensor):
        super().__init__()
        self.sigma_w, self.sigma_b = sigma_w, sigma_b

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in (F.linear, F.conv2d):
            return func(*args, **(kwargs or {}))
        x, weight, *rest = args
        kwargs = dict(kwargs or {})
        bias = rest.pop(0) if rest else kwargs.pop("bias", None)
        product = self.sigma_w * func(x, weight, None, *rest, **kwargs)
        if bias is None:
            return product
        return product + self.sigma_b * (bias if func is F.linear else bias[:, None, None])


class _Reached(Exception):
    """The block of interest was called; carries its inputs."""

    def __init__(self, inputs: tuple[Any, ...]):
        self.inputs = inputs


@contextmanager
def _skip_scale(junctions: list[nn.Module], value: Tensor) -> Iterator[None]:
    before = [junction.skip_scale for junction in junctions]
    for junction in junctions:
        junction.skip_scale = value
    try:
        yield
    finally:
        for junction, scale in zip(junctions, before, strict=True):
            junction.skip_scale = scale


def draw_(model: nn.Module, generator: Generator) -> None:
    """Weights of variance 1 / fan-in, biases and embeddings of variance 1; sigma_w and sigma_b scale them later."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            fan_in = module.weight[0].numel()
            nn.init.normal_(module.weight, 0.0, fan_in**-0.5, generator)
            if module.bias is not None:
                nn.init.normal_(module.bias, 0.0, 1.0, generator)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, 0.0, 1.0, generator)


def block_factor(
    model: nn.Module,
    block: nn.Module,
    batch: Tensor,
    sigma_w: Tensor,
    sigma_b: Tensor,
    residual: Tensor,
    probe: Callable[[Tensor], Tensor],
) -> Tensor:
    """chi_J of one block at one setting: |J^T v|^2 / entries for a random sign vector v."""
    junctions = [module for module in model.modules() if hasattr(module, "skip_scale")]

    def stop(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        raise _Reached(inputs)

    with _skip_scale(junctions, residual), _Scaled(sigma_w, sigma_b):
        handle = block.register_forward_pre_hook(stop)
        try:
            model(batch)
            raise InputError("the block did not run on this batch")
        except _Reached as reached:
            inputs = reached.inputs
        finally:
            handle.remove()
        output, pull = torch.func.vjp(lambda x: block(x, *inputs[1:]), inputs[0])[:2]
        return pull(probe(output))[0].square().sum() / output.numel()


def network_phase(
    build: Callable[[], nn.Module],
    block_of: Callable[[nn.Module], nn.Module],
    batch_of: Callable[[Generator], Tensor],
    x: Axis,
    y: Axis,
    fixed: dict[str, float] | None = None,
    *,
    initializations: int = 10,
    chunk: int = 64,
    seed: int = 0,
    device: str | torch.device = "cpu",
    settings: dict[str, Any] | None = None,
    resume: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PhaseDiagram:
    """chi_J of `block_of(model)` over two of sigma_w, sigma_b and residual; `fixed` sets the third.

    `batch_of` makes the input; `chunk` points are computed at once, as memory allows.
    """
    require(chunk >= 1, "chunk", chunk, "at least one point at a time")
    values = plane_values(x, y, fixed, {"sigma_w": 1.0, "sigma_b": 0.0, "residual": 1.0})
    require(initializations >= 1, "initializations", initializations, "at least 1")
    grid = torch.broadcast_tensors(*values.values())
    points = [value.flatten().to(device) for value in grid]
    model = torch.func.replace_all_batch_norm_modules_(build().to(device).requires_grad_(False))
    block = block_of(model)

    def sample(index: int) -> Tensor:
        generator = Generator(device).manual_seed(seed * 1_000_003 + index)
        draw_(model, generator)
        batch = batch_of(generator)
        signs: list[Tensor] = []

        def probe(output: Tensor) -> Tensor:
            if not signs:
                drawn = torch.randint(0, 2, output.shape, generator=generator, device=device)
                signs.append(drawn.float() * 2 - 1)
            return signs[0]

        def one(sigma_w: Tensor, sigma_b: Tensor, residual: Tensor) -> Tensor:
            return block_factor(model, block, batch, sigma_w, sigma_b, residual, probe)

        with sdpa_kernel(SDPBackend.MATH):
            return torch.func.vmap(one, chunk_size=chunk, randomness="same")(*points).reshape(grid[0].shape)

    record = {**(settings or {}), **(fixed or {}), "seed": seed, "source": "measure"}
    axes = {x[0]: list(x[1]), y[0]: list(y[1])}
    average = average_over(sample, initializations, tuple(grid[0].shape), record | axes, resume, progress, save_every=1)
    return PhaseDiagram.over(
        x, y, average.mean.tolist(), average.standard_error.tolist(), record | {"initializations": initializations}
    )
