"""Moments of parameters and of their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sigprop.measure.moments import Moments
from sigprop.results import ParameterRow

POWER_STEPS = 200


def parameter_rows(model: nn.Module, spectral: bool = False) -> list[ParameterRow]:
    """One row per parameter, from its value and its `.grad`; transferred from the device once."""
    named = [(name, p) for name, p in model.named_parameters() if p.numel() and p.device.type != "meta"]
    if not named:
        return []
    moments = Moments()
    values = _reduced([p for _, p in named], moments.signal)
    gradients = _reduced([p.grad for _, p in named], moments.gradient)
    rows = []
    for (name, parameter), value, gradient in zip(named, values, gradients, strict=True):
        mean, variance, _ = value
        row = ParameterRow(name, tuple(parameter.shape), init_std=math.sqrt(variance))
        row.extras["second_moment"] = variance + mean**2
        row.grad_second_moment = gradient[1]
        if spectral and parameter.dim() >= 2:
            row.extras["spectral_norm"] = spectral_norm(parameter)
        rows.append(row)
    return rows


def _reduced(tensors: list[Tensor | None], reduce: Callable[[Tensor], Tensor]) -> list[list[float]]:
    missing = torch.full((1, 3), math.nan, dtype=torch.float64)
    found = []
    for tensor in tensors:
        if tensor is None:
            found.append(missing)
            continue
        dense = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
        found.append(reduce(dense.reshape(-1, 1, dense.shape[-1] if dense.dim() else 1)))
    device = next((item.device for item in found if item is not missing), missing.device)
    return torch.cat([item.to(device) for item in found]).tolist()


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
