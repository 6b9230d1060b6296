"""Moments of parameters and of their gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate

import torch
from torch import Tensor, nn

from sigprop.measure.guard import grouped, joined
from sigprop.measure.moments import Moments
from sigprop.results import ParameterRow

POWER_STEPS = 200


def parameter_rows(model: nn.Module, spectral: bool = False) -> list[ParameterRow]:
    """One row per parameter, from its value and its `.grad`."""
    named = [(name, p) for name, p in model.named_parameters() if p.numel() and p.device.type != "meta"]
    values = _moments([p.detach() for _, p in named])
    gradients = _moments([_dense(p.grad) for _, p in named if p.grad is not None])
    rows = []
    for (name, parameter), (mean, second) in zip(named, values, strict=True):
        row = ParameterRow(name, tuple(parameter.shape), extras={"second_moment": second})
        variance = second - mean**2
        row.init_std = math.sqrt(variance) if not variance < 1e-15 * second else 0.0
        if parameter.grad is not None:
            row.grad_second_moment = next(gradients)[1]
        if spectral and parameter.dim() >= 2:
            row.extras["spectral_norm"] = spectral_norm(parameter)
        rows.append(row)
    return rows


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _moments(tensors: list[Tensor]) -> Iterator[tuple[float, float]]:
    """Mean and mean square of each tensor; one transfer from each device."""
    found: dict[int, tuple[float, float]] = {}
    for device in {tensor.device for tensor in tensors}:
        here = [index for index, tensor in enumerate(tensors) if tensor.device == device]
        sizes = [tensors[index].numel() for index in here]
        table = _sums([tensors[index] for index in here]).tolist()
        for index, size, (total, square) in zip(here, sizes, table, strict=True):
            found[index] = (total / size, square / size)
    return iter([found[index] for index in range(len(tensors))])


def _sums(tensors: list[Tensor]) -> Tensor:
    """(tensors, 2): sum and sum of squares in float64; fused over tensors on a GPU, blocks on a CPU."""
    if tensors[0].device.type == "cpu":
        moments = Moments()
        return torch.stack([moments.sums(tensor) for tensor in tensors])
    norms = torch.stack(torch._foreach_norm(tensors, 2, dtype=torch.float64))  # pyright: ignore[reportPrivateImportUsage]
    order = {id(tensor): index for index, tensor in enumerate(tensors)}
    totals = torch.empty_like(norms)
    for group in grouped(tensors):
        running = torch.nn.functional.pad(joined(group).cumsum(0, dtype=torch.float64), (1, 0))
        ends = [0, *accumulate(tensor.numel() for tensor in group)]
        places = [order[id(tensor)] for tensor in group]
        totals[places] = running[ends].diff()
    return torch.stack((totals, norms.square()), dim=1)


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
