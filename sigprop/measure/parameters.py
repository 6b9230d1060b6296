"""Moments of parameters and of their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from sigprop.measure import together
from sigprop.measure.moments import Moments
from sigprop.results import ParameterRow

POWER_STEPS = 200
PIECE = 1 << 26


def parameter_rows(modules: Mapping[str, nn.Module], spectral: bool = False) -> list[ParameterRow]:
    """One row per parameter, from its value and its `.grad`."""
    named = list(_named_parameters(modules))
    values = _on_each_device([parameter.detach() for _, parameter in named], _sums_and_squares)
    gradients = iter(_on_each_device([_dense(p.grad) for _, p in named if p.grad is not None], _squares))
    rows = []
    for (name, parameter), (total, square) in zip(named, values, strict=True):
        second = square / parameter.numel()
        row = ParameterRow(name, tuple(parameter.shape), extras={"second_moment": second})
        variance = second - (total / parameter.numel()) ** 2
        row.init_std = math.sqrt(variance) if not variance < 1e-15 * second else 0.0
        if parameter.grad is not None:
            row.grad_second_moment = next(gradients) / parameter.numel()
        if spectral and parameter.dim() >= 2:
            row.extras["spectral_norm"] = spectral_norm(parameter)
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


def _on_each_device(tensors: Sequence[Tensor], reduce: Callable[[list[list[Tensor]]], Tensor]) -> list:
    """The rows that `reduce` gives for groups of like tensors, in the order of the tensors; one transfer per device."""
    kinds: dict[torch.device, dict[tuple, list[int]]] = {}
    for index, tensor in enumerate(tensors):
        groups = kinds.setdefault(tensor.device, {})
        groups.setdefault((tensor.dtype, tensor.shape), []).append(index)
    found: dict[int, object] = {}
    for groups in kinds.values():
        rows = reduce([[tensors[index] for index in group] for group in groups.values()]).tolist()
        found.update(zip(chain.from_iterable(groups.values()), rows, strict=True))
    return [found[index] for index in range(len(tensors))]


def _sums_and_squares(groups: list[list[Tensor]]) -> Tensor:
    """(tensors, 2) in float64."""
    if together.pays_off(groups[0][0].device):
        return torch.stack((torch.cat([_sums(group) for group in groups]), _squares(groups)), dim=1)
    moments = Moments()
    return torch.stack([moments.sums(tensor) for group in groups for tensor in group])


def _sums(group: list[Tensor]) -> Tensor:
    """Sums of tensors of one shape, in float64; a large one piece by piece."""
    if len(group) * group[0].numel() <= PIECE:
        return torch.stack(group).view(len(group), -1).sum(1, dtype=torch.float64)
    parts = [[part.sum(dtype=torch.float64) for part in tensor.flatten().split(PIECE)] for tensor in group]
    return torch.stack([torch.stack(part).sum() for part in parts])


def _squares(groups: list[list[Tensor]]) -> Tensor:
    """(tensors,): sums of squares in float64; on a GPU fused over all tensors."""
    tensors = [tensor for group in groups for tensor in group]
    if together.pays_off(tensors[0].device):
        norms = torch._foreach_norm(tensors, 2, dtype=torch.float64)  # pyright: ignore[reportPrivateImportUsage]
        return torch.stack(norms).square()
    moments = Moments()
    return torch.stack([moments.squares(tensor) for tensor in tensors])


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
