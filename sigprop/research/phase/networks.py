"""Networks of a phase diagram: one for each cell of a grid of settings, run together."""

from __future__ import annotations

import json
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

from sigprop.errors import InputError, require
from sigprop.models.layers import Residual
from sigprop.research.phase.diagram import Axis, PhaseDiagram, plane_values
from sigprop.results.files import write_whole
from sigprop.theory.activations import get
from sigprop.theory.activations.quadrature import Function

NORMS = ("none", "preactivation", "activation", "batch")
_FAINT = 1e-20


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
        get(self.activation)

    def settings(self) -> dict[str, Any]:
        return {**self.__dict__, "activation": get(self.activation).name}


class MeasuredMLP(nn.Module):
    """A measured MLP. Norms have no epsilon, and signals that fade below 1e-20 are lifted back to it before they
    underflow: so close to zero every activation is homogeneous, and its slopes do not depend on the scale."""

    def __init__(self, shape: Network):
        super().__init__()
        self.input = nn.Linear(shape.inputs, shape.width)
        self.blocks = nn.ModuleList(MeasuredBlock(shape) for _ in range(shape.depth - 1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.input(x)
        for number, block in enumerate(self.blocks, 1):
            h = block(h)
            if number % 8 == 0:
                peak = h.abs().amax((-2, -1), keepdim=True)
                h = h * torch.where((peak > 0) & (peak < _FAINT), _FAINT / peak, 1.0)
        return h


class MeasuredBlock(nn.Module):
    """One layer, or several stages with BatchNorm, and a residual."""

    def __init__(self, shape: Network):
        super().__init__()
        self.norm, self.function = shape.norm, get(shape.activation)
        self.linears = nn.ModuleList(nn.Linear(shape.width, shape.width) for _ in range(shape.stages))
        self.residual = Residual()

    def forward(self, h: Tensor) -> Tensor:
        x = h
        for linear in self.linears:
            x = linear(self._activated(x))
        return self.residual(h, x)

    def _activated(self, h: Tensor) -> Tensor:
        if self.norm == "preactivation":
            return self.function(F.layer_norm(h, h.shape[-1:], eps=0.0))
        if self.norm == "activation":
            return F.layer_norm(self.function(h), h.shape[-1:], eps=0.0)
        if self.norm == "batch":
            centred = h - h.mean(-2, keepdim=True)
            return self.function(centred * torch.rsqrt(centred.square().mean(-2, keepdim=True)))
        return self.function(h)


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
    average = average_over(sample, initializations, tuple(grid[0].shape), record | axes, resume, progress)
    return PhaseDiagram.over(
        x, y, average.mean.tolist(), average.standard_error.tolist(), record | {"initializations": initializations}
    )


# -- running mean and standard error over initializations, saved so that a run can resume


@dataclass
class Average:
    """Welford's recursion over samples of one shape."""

    count: int
    mean: Tensor
    squares: Tensor

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> Average:
        return cls(0, torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64))

    def add(self, sample: Tensor) -> None:
        sample = sample.detach().to("cpu", torch.float64)
        self.count += 1
        shift = sample - self.mean
        self.mean = self.mean + shift / self.count
        self.squares = self.squares + shift * (sample - self.mean)

    @property
    def standard_error(self) -> Tensor:
        if self.count < 2:
            return torch.full_like(self.mean, torch.nan)
        return torch.sqrt(self.squares / (self.count - 1) / self.count)


def average_over(
    sample: Callable[[int], Tensor],
    count: int,
    shape: tuple[int, ...],
    settings: dict[str, Any],
    resume: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Average:
    """Average `sample(i)` for i < count; sample i depends on i alone, so a resumed run is the same run.

    With `resume`, the state is written to that file as it grows and read back if its settings agree.
    """
    average = _kept_average(Path(resume), settings, shape) if resume is not None else Average.of(shape)
    while average.count < count:
        average.add(sample(average.count))
        done = average.count
        if resume is not None:
            _keep_average(Path(resume), settings, average)
        if progress is not None:
            progress(done, count)
    return average


def _kept_average(path: Path, settings: dict[str, Any], shape: tuple[int, ...]) -> Average:
    if not path.exists():
        return Average.of(shape)
    try:
        state = json.loads(path.read_text())
        known, count = state["settings"], int(state["count"])
        mean, squares = (torch.tensor(state[key], dtype=torch.float64) for key in ("mean", "squares"))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} holds no run that could be continued: give another file, or remove it") from error
    if known != json.loads(json.dumps(settings)):
        raise InputError(f"{path} holds a run with other settings: give another file, or remove it")
    return Average(count, mean, squares)


def _keep_average(path: Path, settings: dict[str, Any], average: Average) -> None:
    state = {
        "settings": settings,
        "count": average.count,
        "mean": average.mean.tolist(),
        "squares": average.squares.tolist(),
    }
    write_whole(path, json.dumps(state))
