"""Moments of parameters and of their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from sigprop.compat import accumulated_hooks, gradient_hooks, own_parameters, return_free_memory, set_accumulated_hooks
from sigprop.errors import SigpropError
from sigprop.results import ParameterRow

POWER_STEPS = 200
LARGE = 1 << 18
"""Entries of a gradient that is let go as soon as it is summed: a call of Python costs nothing beside its sum."""
RETURNED, RETURNS = 1 << 26, 8
"""Bytes of gradients after which freed memory is given back, so many times at most: what lies between live blocks would
stay with us, and the system fills anew what it gives again."""


PIECE = 1 << 18
"""Entries that are converted to float64 at once."""


class Accumulated(SigpropError):
    """A gradient came in two parts, as reentrant checkpoints send it: squares of parts do not add up."""


@contextmanager
def large_gradients_let_go(modules: Mapping[str, nn.Module], kept: bool) -> Iterator[dict[Tensor, float]]:
    """Mean squares of large gradients on a CPU, which are taken and let go as they come, so that they are never all in
    memory; none where they are to be `kept`. Embeddings send theirs as the rows that were looked up."""
    found: dict[Tensor, float] = {}

    def take(parameter: Tensor, gradient: Tensor) -> None:
        if parameter in found:
            raise Accumulated
        found[parameter] = float(square_of(gradient)) / parameter.numel()

    large = [
        x for _, x in _named_parameters(modules) if x.numel() >= LARGE and x.device.type == "cpu" and x.requires_grad
    ]
    with embeddings_send_rows([] if kept else modules.values()), taken_as_they_come([] if kept else large, take):
        yield found


@contextmanager
def taken_as_they_come(parameters: Iterable[Tensor], take: Callable[[Tensor, Tensor], None]) -> Iterator[None]:
    """Call a function with every parameter that has got its gradient, which is let go then."""
    parameters, freed = list(parameters), 0
    returned = max(RETURNED, sum(parameter.nbytes for parameter in parameters) // RETURNS)

    def taken(parameter: Tensor) -> None:
        nonlocal freed
        assert parameter.grad is not None
        take(parameter, parameter.grad)
        parameter.grad = None
        freed += parameter.nbytes
        if freed > returned:
            return_free_memory()
            freed = 0

    before = [accumulated_hooks(parameter) for parameter in parameters]
    handles = [parameter.register_post_accumulate_grad_hook(taken) for parameter in parameters]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for parameter, hooks in zip(parameters, before, strict=True):
            set_accumulated_hooks(parameter, hooks)


@contextmanager
def embeddings_send_rows(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Gradients of large tables are those rows that were looked up."""
    embeddings = list(filter(_sends_rows, modules))
    try:
        for item in embeddings:
            item.sparse = True
        yield
    finally:
        for item in embeddings:
            item.sparse = False


def _sends_rows(module: nn.Module) -> TypeGuard[nn.Embedding]:
    """An embedding whose gradient nobody else sees, in a type whose sums do not depend on how they are formed."""
    if type(module) is not nn.Embedding or module.sparse or module.scale_grad_by_freq:
        return False
    weight = module.weight
    plain = type(weight) is nn.Parameter and weight.dtype == torch.float32 and weight.device.type == "cpu"
    return plain and weight.numel() >= LARGE and not gradient_hooks(weight) and not accumulated_hooks(weight)


def started_parameter_rows(
    modules: Mapping[str, nn.Module], spectral: bool, let_go: Mapping[Tensor, float]
) -> Callable[[], list[ParameterRow]]:
    """Start the sums over all parameters and their `.grad`; what comes back waits for them and makes the rows. `let_go`
    are mean squares of gradients that are there no more."""
    named = list(_named_parameters(modules))
    sums = [total_and_square_of(parameter) for _, parameter in named]
    squares = [square_of(parameter.grad) for _, parameter in named if parameter.grad is not None]

    def rows() -> list[ParameterRow]:
        gradients = iter(fetched(squares))
        found = []
        for (name, parameter), (total, square) in zip(named, fetched(sums), strict=True):
            count = parameter.numel()
            second = square / count
            variance = second - (total / count) ** 2
            row = ParameterRow(name, tuple(parameter.shape), extras={"second_moment": second})
            row.init_std = math.sqrt(variance) if not variance < 1e-15 * second else 0.0
            if parameter.grad is not None:
                row.grad_second_moment = next(gradients) / count
            elif parameter in let_go:
                row.grad_second_moment = let_go[parameter]
            if spectral and parameter.dim() >= 2:
                row.extras["spectral_norm"] = spectral_norm(parameter)
            found.append(row)
        return found

    return rows


def total_of(x: Tensor) -> Tensor:
    """Sum of all entries in float64, on the tensor's device."""
    return _added(x, Tensor.sum)


def square_of(x: Tensor) -> Tensor:
    """Sum of squares of all entries in float64, on the tensor's device."""
    return _added(x, lambda piece: torch.linalg.vector_norm(piece).square())


def total_and_square_of(x: Tensor) -> Tensor:
    """Both sums of one conversion, as two numbers."""
    return _added(x, lambda piece: torch.stack([piece.sum(), torch.linalg.vector_norm(piece).square()]))


def _added(x: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    x = x.detach().coalesce().values() if x.is_sparse else x.detach()
    start = torch.zeros((), dtype=torch.float64, device=x.device)
    return sum((reduce(piece.double()) for piece in x.reshape(-1).split(PIECE)), start)


def fetched(numbers: list[Tensor]) -> list[Any]:
    """Numbers, or rows of them, on the host, with one transfer from each device."""
    found: list[Any] = [None] * len(numbers)
    for device in {number.device for number in numbers}:
        here = [place for place, number in enumerate(numbers) if number.device == device]
        for place, value in zip(here, torch.stack([numbers[place] for place in here]).tolist(), strict=True):
            found[place] = value
    return found


def _named_parameters(modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """Each parameter once, under its first name."""
    seen: set[int] = set()
    for prefix, module in modules.items():
        for name, parameter in own_parameters(module).items():
            if parameter is not None and id(parameter) not in seen and parameter.numel() and not parameter.is_meta:
                seen.add(id(parameter))
                yield f"{prefix}.{name}" if prefix else name, parameter


def spectral_norm(weight: Tensor) -> float:
    """Largest singular value of a matrix (a convolution is flattened to outputs x rest), in float64."""
    matrix = weight.detach().double().flatten(1)
    if min(matrix.shape) <= 512:
        return float(torch.linalg.matrix_norm(matrix, 2))
    generator = torch.Generator(matrix.device).manual_seed(0)
    vector = torch.randn(matrix.shape[1], dtype=torch.float64, device=matrix.device, generator=generator)
    for _ in range(POWER_STEPS):
        vector = torch.nn.functional.normalize(matrix.mT @ (matrix @ vector), dim=0)
    return float(torch.linalg.vector_norm(matrix @ vector))
