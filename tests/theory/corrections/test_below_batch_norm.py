"""Weights below a norm over the batch: what is left of the gradient is not independent of them."""

from functools import partial

import pytest
import torch
from torch import nn

from sigprop.capture import build, predict
from sigprop.measurement import measure
from sigprop.theory import Dense, Gradient, Signal
from sigprop.theory.corrections import correcting
from sigprop.theory.ops.linear import Linear
from sigprop.theory.states import Directions

TOKENS, INPUTS, OUTPUTS, DRAWS = 12, 24, 64, 1500


def below(weights: torch.Tensor, x: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Energy of `W^T g` beside that of independent weights, `g` below the norm of each output over the batch."""
    y = (weights @ x).double().requires_grad_()
    unit = (y - y.mean(-1, keepdim=True)) / y.std(-1, correction=0, keepdim=True)
    above = torch.randn(unit.shape, generator=generator, dtype=torch.float64)
    (g,) = torch.autograd.grad((torch.relu(unit) * above).sum(), y)
    made = (weights.double().mT @ g).square().sum((1, 2))
    return made, g.square().sum((1, 2)) * INPUTS * weights.double().square().mean()


def test_a_linear_map_below_batch_norm():
    """Normal weights: `1 - 2 / fan_in` of the energy is left, whatever the kernel."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(INPUTS, TOKENS, generator=generator) + torch.randn(INPUTS, 1, generator=generator)
    weights = torch.randn(DRAWS, OUTPUTS, INPUTS, generator=generator) / INPUTS**0.5
    made, free = below(weights, x, generator)
    ratio = float(made.mean() / free.mean())
    error = float((made - ratio * free).std() / free.mean() / DRAWS**0.5)

    op, zeros = Linear(INPUTS, OUTPUTS, 1.0 / INPUTS), torch.zeros(TOKENS, dtype=torch.float64)
    signal = Signal(Dense(torch.eye(TOKENS, dtype=torch.float64)), zeros, INPUTS)
    gradient = Gradient(signal.kernel, Directions(channel=0.0))
    (found,) = op.backward(gradient, op.forward(signal), signal)
    assert float(found.energy()) == pytest.approx(OUTPUTS / INPUTS * (1.0 - 2.0 / INPUTS))
    assert abs(ratio - (1.0 - 2.0 / INPUTS)) < 4.0 * error + 1.0 / INPUTS**2
    assert abs(ratio - 1.0) > 8.0 * error


def test_without_fluctuating_kernels_nothing_is_taken_out():
    op, zeros = Linear(INPUTS, OUTPUTS, 1.0 / INPUTS), torch.zeros(TOKENS, dtype=torch.float64)
    signal = Signal(Dense(torch.eye(TOKENS, dtype=torch.float64)), zeros, INPUTS)
    with correcting(["finite_width"]):
        (found,) = op.backward(Gradient(signal.kernel, Directions(channel=0.0)), op.forward(signal), signal)
    assert float(found.energy()) == pytest.approx(OUTPUTS / INPUTS)


def stack(width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(width, width)]
    for _ in range(depth):
        layers += [nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, width)]
    return nn.Sequential(*layers)


def test_gradients_down_a_stack_with_batch_norm():
    """Sixteen examples through six layers of width 32: the gradient of the first was 40 % too large."""
    x, make = torch.randn(16, 32, generator=torch.Generator().manual_seed(3)), partial(stack, 32, 6)
    predicted, measured = predict(build(make), x), measure(None, x, build=make, seeds=120)
    (item,) = (
        item for item in predicted.compare(measured).differences if (item.name, item.column) == ("0", "grad_variance")
    )
    assert abs(item.error) < 4.0 * item.standard_error + 0.05
