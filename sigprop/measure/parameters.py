"""Moments of parameters and of their gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sigprop.measure import together
from sigprop.measure.moments import Moments
from sigprop.results import ParameterRow

POWER_STEPS = 200
PIECE = 1 << 24
ROW = 1 << 14


def parameter_rows(modules: Mapping[str, nn.Module], spectral: bool = False) -> list[ParameterRow]:
    """One row per parameter, from its value and its `.grad`."""
    named = list(_named_parameters(modules))
    tensors = [parameter.detach() for _, parameter in named]
    gradients = [parameter.grad for _, parameter in named]
    sums, squares = _moments(tensors, [_dense(gradient) for gradient in gradients if gradient is not None])
    later = iter(squares[len(tensors) :])
    rows = []
    for (name, _), tensor, gradient, total, square in zip(named, tensors, gradients, sums, squares, strict=False):
        count = tensor.numel()
        second = square / count
        variance = second - (total / count) ** 2
        row = ParameterRow(name, tuple(tensor.shape), extras={"second_moment": second})
        row.init_std = math.sqrt(variance) if not variance < 1e-15 * second else 0.0
        if gradient is not None:
            row.grad_second_moment = next(later) / count
        if spectral and tensor.dim() >= 2:
            row.extras["spectral_norm"] = spectral_norm(tensor)
        rows.append(row)
    return rows


def _named_parameters(modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """Each parameter once, under its first name."""
    seen: set[int] = set()
    for prefix, module in modules.items():
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in seen and parameter.numel() and not parameter.is_meta:
                seen.add(id(parameter))
                yield f"{prefix}.{name}" if prefix else name, parameter


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _moments(values: list[Tensor], gradients: list[Tensor]) -> tuple[list[float], list[float]]:
    """Sums of the values, and sums of squares of the values and then of the gradients."""
    if any(together.pays_off(tensor.device) for tensor in values[:1]):
        sums, squares = _together([*values, *gradients]).T.tolist()
        return sums[: len(values)], squares
    moments = Moments()
    found = [moments.sums(value).tolist() for value in values]
    squares = [moments.squares(gradient).item() for gradient in gradients]
    return [total for total, _ in found], [square for _, square in found] + squares


def _together(tensors: list[Tensor]) -> np.ndarray:
    """(tensors, 2): sums and sums of squares in float64, with few kernels and one transfer per device."""
    found = np.zeros((len(tensors), 2))
    places: dict[torch.device, list[int]] = {}
    for index, tensor in enumerate(tensors):
        places.setdefault(tensor.device, []).append(index)
    for members in places.values():
        here = [tensors[index] for index in members]
        lengths = [-(-tensor.numel() // ROW) for tensor in here]
        found[members] = np.add.reduceat(_row_sums(here), np.cumsum([0, *lengths[:-1]]), axis=0)
    return found


def _row_sums(tensors: list[Tensor]) -> np.ndarray:
    """(rows, 2): sums and sums of squares of runs of `ROW` entries; each tensor begins a row of its own."""
    sums, norms = [], []
    for rows in map(Tensor.double, _rows(tensors)):
        sums.append(rows.sum(1))
        norms.append(torch.linalg.vector_norm(rows, dim=1))
    found = torch.stack((torch.cat(sums), torch.cat(norms)), dim=1).cpu().numpy()
    found[:, 1] **= 2
    return found


def _rows(tensors: list[Tensor]) -> Iterator[Tensor]:
    """(rows, ROW), in order: pieces of large tensors, small ones joined; last rows are filled up with zeros."""
    joined: list[Tensor] = []
    fillings: dict[int, Tensor] = {}
    size = 0
    for flat in (piece for tensor in tensors for piece in _pieces(tensor)):
        if joined and (size > PIECE or flat.dtype != joined[0].dtype):
            yield torch.cat(joined).view(-1, ROW)
            joined, fillings, size = [], {}, 0
        joined.append(flat)
        size += len(flat)
        missing = -len(flat) % ROW
        if missing:
            if missing not in fillings:
                fillings[missing] = flat.new_zeros(missing)
            joined.append(fillings[missing])
    yield torch.cat(joined).view(-1, ROW)


def _pieces(tensor: Tensor) -> Sequence[Tensor]:
    flat = tensor.reshape(-1)
    return flat.split(PIECE) if len(flat) > PIECE else (flat,)


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
