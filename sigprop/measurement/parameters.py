"""Moments of parameters and of their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor, nn

from sigprop.compat import accumulated_hooks, gradient_hooks, own_parameters, return_free_memory, set_accumulated_hooks
from sigprop.errors import SigpropError
from sigprop.measurement import stacked_moments
from sigprop.measurement.entry_sums import entry_squares, entry_sums
from sigprop.results import ParameterRow

POWER_STEPS = 200
LARGE = 1 << 18
"""Entries of a gradient that is let go as soon as it is summed: a call of Python costs nothing beside its sum."""
RETURNED = 1 << 26
"""Bytes of gradients after which freed memory is given back: what lies between live blocks would stay with us."""
PIECE = 1 << 24
ROW = 1 << 14


class Accumulated(SigpropError):
    """A gradient came in two parts, as reentrant checkpoints send it: squares of parts do not add up."""


@contextmanager
def large_gradients_let_go(modules: Mapping[str, nn.Module], kept: bool) -> Iterator[dict[Tensor, float]]:
    """Mean squares of large gradients on a CPU, which are taken and let go as they come, so that they are never all in
    memory; none where they are to be `kept`. Embeddings send theirs as the rows that were looked up."""
    found: dict[Tensor, float] = {}
    freed = 0

    def take(parameter: Tensor) -> None:
        nonlocal freed
        if parameter in found:
            raise Accumulated
        assert parameter.grad is not None
        gradient = parameter.grad.coalesce().values() if parameter.grad.is_sparse else parameter.grad
        found[parameter] = entry_squares(gradient) / parameter.numel()
        freed += gradient.nbytes
        parameter.grad = gradient = None
        if freed > RETURNED:
            return_free_memory()
            freed = 0

    large = [
        x for _, x in _named_parameters(modules) if x.numel() >= LARGE and x.device.type == "cpu" and x.requires_grad
    ]
    before = [accumulated_hooks(parameter) for parameter in large]
    embeddings = [] if kept else list(filter(_sends_rows, modules.values()))
    handles = [] if kept else [parameter.register_post_accumulate_grad_hook(take) for parameter in large]
    try:
        for item in embeddings:
            item.sparse = True
        yield found
    finally:
        for item in embeddings:
            item.sparse = False
        for handle in handles:
            handle.remove()
        for parameter, hooks in zip(large, before, strict=True):
            set_accumulated_hooks(parameter, hooks)


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
    tensors = [parameter.detach() for _, parameter in named]
    gradients = [parameter.grad for _, parameter in named]
    moments = _started_moments(tensors, [_dense(gradient) for gradient in gradients if gradient is not None])

    def rows() -> list[ParameterRow]:
        sums, squares = moments()
        later = iter(squares[len(tensors) :])
        found = []
        for (name, parameter), tensor, gradient, total, square in zip(
            named, tensors, gradients, sums, squares, strict=False
        ):
            count = tensor.numel()
            second = square / count
            variance = second - (total / count) ** 2
            row = ParameterRow(name, tuple(tensor.shape), extras={"second_moment": second})
            row.init_std = math.sqrt(variance) if not variance < 1e-15 * second else 0.0
            if gradient is not None:
                row.grad_second_moment = next(later) / count
            elif parameter in let_go:
                row.grad_second_moment = let_go[parameter]
            if spectral and tensor.dim() >= 2:
                row.extras["spectral_norm"] = spectral_norm(tensor)
            found.append(row)
        return found

    return rows


def _named_parameters(modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """Each parameter once, under its first name."""
    seen: set[int] = set()
    for prefix, module in modules.items():
        for name, parameter in own_parameters(module).items():
            if parameter is not None and id(parameter) not in seen and parameter.numel() and not parameter.is_meta:
                seen.add(id(parameter))
                yield f"{prefix}.{name}" if prefix else name, parameter


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _started_moments(
    values: list[Tensor], gradients: list[Tensor]
) -> Callable[[], tuple[Sequence[float], Sequence[float]]]:
    """Sums of the values and gradients, and sums of their squares; on a CPU the gradients' sums are left out."""
    if any(stacked_moments.pays_off(value.device) for value in values):
        return _started_stacked([*values, *gradients])
    found, squares = entry_sums(values), [square for _, square in entry_sums(gradients, squares_only=True)]
    return lambda: ([total for total, _ in found], [square for _, square in found] + squares)


def _started_stacked(tensors: list[Tensor]) -> Callable[[], tuple[Sequence[float], Sequence[float]]]:
    """In float64, with few kernels and one transfer per device."""
    places: dict[torch.device, list[int]] = {}
    for index, tensor in enumerate(tensors):
        places.setdefault(tensor.device, []).append(index)
    started = [(members, _row_sums([tensors[index] for index in members])) for members in places.values()]
    lengths = np.array([-(-tensor.numel() // ROW) for tensor in tensors])

    def finished() -> tuple[Sequence[float], Sequence[float]]:
        found = np.zeros((2, len(tensors)))
        for members, sums in started:
            starts = np.cumsum(lengths[members]) - lengths[members]
            found[:, members] = np.add.reduceat(sums.cpu().numpy(), starts, axis=1)
        return found[0].tolist(), found[1].tolist()

    return finished


def _row_sums(tensors: list[Tensor]) -> Tensor:
    """(2, rows): sums and sums of squares of runs of `ROW` entries; each tensor begins a row of its own."""
    sums, norms = [], []
    for rows in map(Tensor.double, _rows(tensors)):
        sums.append(rows.sum(1))
        norms.append(torch.linalg.vector_norm(rows, dim=1))
    return torch.stack((torch.cat(sums), torch.cat(norms).square_()))


def _rows(tensors: list[Tensor]) -> Iterator[Tensor]:
    """(rows, ROW), in order: pieces of large tensors, small ones joined; last rows are filled up with zeros."""
    joined: list[Tensor] = []
    fillings: dict[int, Tensor] = {}
    size = 0
    for flat in (piece for tensor in tensors for piece in _pieces(tensor)):
        if joined and (size > PIECE or flat.dtype != joined[0].dtype):
            yield torch.cat(joined).view(-1, ROW)
            joined, fillings, size = [], {}, 0
        count = flat.numel()
        joined.append(flat)
        size += count
        missing = -count % ROW
        if missing:
            if missing not in fillings:
                fillings[missing] = flat.new_zeros(missing)
            joined.append(fillings[missing])
    yield torch.cat(joined).view(-1, ROW)


def _pieces(tensor: Tensor) -> Sequence[Tensor]:
    flat = tensor.reshape(-1)
    return flat.split(PIECE) if flat.numel() > PIECE else (flat,)


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
