"""NNGP and NTK of a blueprint or a module between given inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.blueprints import MLP, Blueprint
from sigprop.distributions import build
from sigprop.distributions.model_laws import laws_of, places_of
from sigprop.errors import InputError, UnsupportedError, require
from sigprop.research.kernels import signal
from sigprop.research.kernels.signal import Readout, WideSignal
from sigprop.research.kernels.tensor import Laws, WideTensor
from sigprop.theory import activations

PARAMETRIZATIONS = ("ntk", "standard")


@dataclass(frozen=True)
class Kernels:
    """Kernels of an output between inputs (rows) and other inputs (columns), float64.

    nngp: the covariance of the outputs of random networks.
    ntk: the products of their gradients with respect to all trained parameters, summed.
    """

    nngp: Tensor
    ntk: Tensor


def kernels(
    network: Blueprint | nn.Module | Callable[[], nn.Module],
    inputs: Tensor,
    others: Tensor | None = None,
    *,
    first: tuple[float, float] | None = None,
    parametrization: str = "ntk",
) -> Kernels:
    """NNGP and NTK of a network whose hidden layers are infinitely wide, between inputs of shape (number, features).

    network: an `MLP` blueprint, a module made of linear layers, elementwise functions, norms and residual sums, or a
        function that builds one (whose laws are then known exactly, and not read off weights).
    others: the columns; the inputs themselves when None. Inputs have whatever variances they have.
    first: `sigma_w, sigma_b` of a blueprint's first layer, where it differs from the others.
    parametrization: `ntk`, weights of variance one scaled in the forward pass, as in neural-tangents; or `standard`,
        torch's own, where a layer's part grows with its width and the widths are the network's.
    """
    require(parametrization in PARAMETRIZATIONS, "parametrization", parametrization, " or ".join(PARAMETRIZATIONS))
    values, count = _stacked(inputs, others)
    start = WideSignal.of_values(values)
    standard = parametrization == "standard"
    if isinstance(network, Blueprint):
        found = _of_blueprint(network, start, first, standard)
    else:
        require(first is None, "first", first, "None for a module, which has a first layer of its own")
        found = _of_module(network if isinstance(network, nn.Module) else build(network), start, standard)
    rows, columns = slice(count), slice(count, None) if others is not None else slice(count)
    return Kernels(found.kernel[rows, columns], found.tangent_kernel[rows, columns])


def _stacked(inputs: Tensor, others: Tensor | None) -> tuple[Tensor, int]:
    parts = [inputs] if others is None else [inputs, others]
    for part in parts:
        shape = tuple(part.shape)
        require(len(shape) == 2 and min(shape) > 0, "inputs", shape, "a tensor of shape (number, features)")
        require(shape[1] == inputs.shape[1], "others", shape, f"{inputs.shape[1]} features")
        require(bool(torch.isfinite(part).all()), "inputs", "infinite or not a number", "finite numbers")
    return torch.cat([part.detach().double() for part in parts]), len(inputs)


def _of_blueprint(network: Blueprint, x: WideSignal, first: tuple[float, float] | None, standard: bool) -> WideSignal:
    if not isinstance(network, MLP) or network.norm_placement == "batch":
        raise UnsupportedError(
            f"kernels of the blueprint {network.name!r} are not followed: those of an MLP without batch norm are. "
            "Tangent kernels of a Transformer: sigprop.theory.tangent_kernel"
        )
    settings = (network.sigma_w, network.sigma_b, network.mu)
    if any(torch.as_tensor(value).numel() != 1 for value in settings):
        raise InputError("kernels: a blueprint with grids of settings; pass one setting at a time")
    sigma_w, sigma_b, skip = (float(value) for value in settings)
    function = activations.get(network.activation)

    def layer(weight: float, bias: float, fan_in: int) -> Readout:
        return Readout(weight**2, bias**2, (float(fan_in), 1.0) if standard else (weight**2, bias**2))

    features = x.values.shape[1] if x.values is not None else network.inputs
    h = signal.linear(x, layer(*(first or (sigma_w, sigma_b)), features))
    for _ in range(network.depth):
        y = _normalized(h) if network.norm_placement == "preactivation" else h
        y = signal.activation(y, function)
        y = _normalized(y) if network.norm_placement == "activation" else y
        y = signal.linear(y, layer(sigma_w, sigma_b, network.width))
        h = signal.added(y, signal.scaled(h, skip)) if skip else y
    return signal.linear(signal.activation(h, function), layer(sigma_w, sigma_b, network.width))


def _normalized(x: WideSignal) -> WideSignal:
    return signal.normalized(x, centred=True, eps=0.0, gain=False, shift=False)


def _of_module(model: Any, x: WideSignal, standard: bool) -> WideSignal:
    if not isinstance(model, nn.Module):
        raise InputError(
            f"kernels of {type(model).__name__}: needs a blueprint, an nn.Module, or a function building one"
        )
    names = {id(place.parameter): place.name for place in places_of(model)}
    found = model(WideTensor(x, Laws(laws_of(model), names, standard)))
    if not isinstance(found, WideTensor):
        raise UnsupportedError(f"kernels: the model returned {type(found).__name__}, not one tensor")
    return found.state
