r"""Kernels of infinitely wide networks between given inputs, NNGP and NTK, read from an evaluation of their graph.

The inputs are the positions of the graph. Without corrections for finite width the kernel of the output is the NNGP.
The NTK is what a gradient that is the same at all inputs meets in every weight, not summed over pairs of inputs:

    linear    fan_out G (s K + b), with K the kernel of its input, s = fan_in Var W, b = Var bias
    norm      width G (K + 1), with K the normalized kernel: its gain and its shift

This is the NTK parametrization (weights and biases of variance one, scaled in the forward pass); in the standard one a
linear layer has `fan_out G (fan_in K + 1)`. References: Lee et al. 2018; Jacot et al. 2018; Novak et al. 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.blueprints import MLP, Blueprint
from sigprop.blueprints.base import Tape
from sigprop.capture import trace
from sigprop.distributions import build
from sigprop.errors import InputError, UnsupportedError, require
from sigprop.graph import Evaluation, Graph, Node, Start, evaluate
from sigprop.isolation import undisturbed
from sigprop.theory import Dense, Gradient, Signal, Status
from sigprop.theory.corrections import correcting
from sigprop.theory.ops.activation import Activation
from sigprop.theory.ops.base import Op
from sigprop.theory.ops.dropout import Dropout
from sigprop.theory.ops.layer_norm import LayerNorm, RMSNorm
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.residual import BranchOrigin, Residual
from sigprop.theory.ops.scale import Scale
from sigprop.theory.ops.sources import GivenSignal

PARAMETRIZATIONS = ("ntk", "standard")
FOLLOWED = (GivenSignal, Linear, Activation, LayerNorm, RMSNorm, Residual, Scale, BranchOrigin)
"""Ops that act on every input by itself; of what is derived from them nothing is known here."""


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
        function that builds one (whose distributions are then known exactly, and not read off weights).
    others: the columns; the inputs themselves when None. Inputs have whatever variances they have.
    first: `sigma_w, sigma_b` of a blueprint's first layer, where it differs from the others.
    parametrization: `ntk`, weights of variance one scaled in the forward pass, as in neural-tangents; or `standard`,
        torch's own, where a layer's part grows with its width and the widths are the network's.
    """
    require(parametrization in PARAMETRIZATIONS, "parametrization", parametrization, " or ".join(PARAMETRIZATIONS))
    values, count = _stacked(inputs, others)
    with undisturbed() as interrupts, correcting(()), interrupts.let_through():
        if isinstance(network, Blueprint):
            states, output = _of_blueprint(network, values, first)
        else:
            require(first is None, "first", first, "None for a module, which has a first layer of its own")
            states, output = _of_module(network, values)
        nngp = states.signal(output).kernel.values
        ntk = _tangent_kernel(states, output, standard=parametrization == "standard")
    rows, columns = slice(count), slice(count, None) if others is not None else slice(count)
    return Kernels(nngp[rows, columns], ntk[rows, columns])


def tangent_parts(
    network: nn.Module | Callable[[], nn.Module], batch: Any, *, parametrization: str = "ntk", networks: int = 16
) -> dict[str, float]:
    """Each parameter's part of the tangent kernel of an output with itself, averaged over positions and outputs.

    For any module that `predict` follows, Transformers among them (Dinan, Yaida, Zhang 2023, eqs. (1.117) to (1.190)):
    the squared norm of the gradient of one output, times the variance of the parameter in the `ntk` parametrization.
    Functions without a closed form, as attention, are sampled `networks` times.
    """
    require(parametrization in PARAMETRIZATIONS, "parametrization", parametrization, " or ".join(PARAMETRIZATIONS))
    model = network if isinstance(network, nn.Module) else build(network)
    parts: dict[str, float] = {}
    for seed in range(networks):
        with undisturbed() as interrupts, correcting(()), interrupts.let_through():
            found = trace(model, batch, seed=seed)
            found.states.backward(found.differentiate("noise")[0])
        outputs = math.prod(found.predictions[0].shape) * networks
        for name, energy in found.states.energy.items():
            variance = found.weights[name].distribution.variance or 1.0
            factor = variance if parametrization == "ntk" else 1.0
            parts[name] = parts.get(name, 0.0) + factor * energy / outputs
    return parts


def _stacked(inputs: Tensor, others: Tensor | None) -> tuple[Tensor, int]:
    parts = [inputs] if others is None else [inputs, others]
    for part in parts:
        shape = tuple(part.shape)
        require(len(shape) == 2 and min(shape) > 0, "inputs", shape, "a tensor of shape (number, features)")
        require(shape[1] == inputs.shape[1], "others", shape, f"{inputs.shape[1]} features")
        require(bool(torch.isfinite(part).all()), "inputs", "infinite or not a number", "finite numbers")
    return torch.cat([part.detach().double() for part in parts]), len(inputs)


def _of_blueprint(network: Blueprint, values: Tensor, first: tuple[float, float] | None) -> tuple[Evaluation, Node]:
    """The blueprint's graph with the given inputs in place of its own."""
    if not isinstance(network, MLP) or network.norm_placement == "batch":
        raise UnsupportedError(
            f"kernels of the blueprint {network.name!r} are not followed: those of an MLP without batch norm are. "
            "Of a Transformer as a module, sigprop.research.kernels.tangent_parts has the tangent kernel by parameter"
        )
    if any(torch.as_tensor(value).numel() != 1 for value in (network.sigma_w, network.sigma_b, network.mu)):
        raise InputError("kernels: a blueprint with grids of settings; pass one setting at a time")
    tape, features = Tape(), values.shape[1]
    output = network.forward(tape)
    given, entry = tape.graph.nodes[:2]
    signal = Signal(Dense(values @ values.T / features), values.mean(1), features)
    weight, bias = (float(value) ** 2 for value in first or (network.sigma_w, network.sigma_b))
    ops: dict[Node, Op] = {
        given: GivenSignal(signal),
        entry: Linear(features, network.width, weight / features, bias, "embedding"),
    }
    return evaluate(tape.graph, ops=ops), output


def _of_module(network: Any, values: Tensor) -> tuple[Evaluation, Node]:
    model = network if isinstance(network, nn.Module) else build(network)
    if not isinstance(model, nn.Module):
        raise InputError(
            f"kernels of {type(model).__name__}: needs a blueprint, an nn.Module, or a function building one"
        )
    found = trace(model, values)
    if found.signal is None:
        raise UnsupportedError(f"kernels: the model returned {type(found.output).__name__}, not one tensor")
    output = found.signal.node
    _require_followed(found.states, found.capture.graph, output)
    return found.states, output


def _require_followed(states: Evaluation, graph: Graph, output: Node) -> None:
    """Refuse what has no kernel of infinite width, by name."""
    used: set[str] = set()
    for node in graph.nodes:
        op, evidence = states.op(node), states.signal(node).evidence
        for weight, _ in node.weights.values():
            if weight.name in used:
                raise UnsupportedError(f"{weight.name} is used twice: kernels of shared weights are not followed")
            used |= {weight.name} - {""}
        if isinstance(op, Dropout):
            raise UnsupportedError("dropout in training mode has no kernel here: call .eval() first")
        if type(op) not in FOLLOWED:
            raise UnsupportedError(
                f"kernels of infinite width do not follow: {getattr(op, 'reason', type(op).__name__)}. They follow "
                "linear layers, elementwise functions of what is Gaussian, sums, numbers as factors, LayerNorm, RMSNorm"
            )
        if evidence.status == Status.ASSUMED or (isinstance(op, Linear) and op.mean):
            reason = evidence.reason or f"weights with a mean ({', '.join(w.name for w, _ in node.weights.values())})"
            raise UnsupportedError(f"kernels of infinite width do not follow this: {reason}")
        if isinstance(op, LayerNorm) and (op.gain_second_moment, op.bias_second_moment) != (1.0, 0.0):
            raise UnsupportedError(f"{type(op).__name__}: its gain and shift must be one and zero")


def _tangent_kernel(states: Evaluation, output: Node, standard: bool) -> Tensor:
    """The products of gradients of one output, from what every weight meets."""
    signal = states.signal(output)
    total = torch.zeros_like(signal.kernel.values)
    one = Gradient(Dense(torch.full_like(total, 1.0 / signal.width)))
    states.backward(Start([(output, one)]))
    for node, gradient in states.gradients.items():
        level = gradient.kernel.values * states.signal(node).width
        for kernel in _met(states, node, standard):
            total = total + level * kernel
    return total


def _met(states: Evaluation, node: Node, standard: bool) -> Iterator[Tensor]:
    """For each trained parameter of a node what a gradient meets in it, over pairs of inputs."""
    op = states.op(node)
    weights = node.weights.items()
    trained = {name for name, (weight, _) in weights if weight.requires_grad} if weights else {"weight", "bias"}
    one = torch.ones((), dtype=torch.float64)
    if isinstance(op, Linear):
        if "weight" in trained:
            factor = op.fan_in if standard else op.fan_in * op.variance
            yield factor * states.signal(node.inputs[0]).kernel.values
        if "bias" in trained and op.bias_variance is not None:
            yield one if standard else one * op.bias_variance
    elif isinstance(op, LayerNorm) and node.weights:
        if "weight" in trained:
            yield states.signal(node).kernel.values
        if "bias" in trained:
            yield one
