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


@pytest.mark.parametrize("act", [nn.ReLU, nn.GELU, lambda: nn.PReLU(48)], ids=["relu", "gelu", "prelu"])
def test_biases_below_a_function_below_a_norm_over_the_batch(act):
    """The norm takes out a channel, with which its slopes have most in common: biases received 1.8 (ReLU) to 4 times
    (GELU) too much."""

    def make() -> nn.Module:
        layers = [(nn.Conv2d(inputs, 48, 1), act(), nn.BatchNorm2d(48)) for inputs in (8, 48)]
        return nn.Sequential(*(item for layer in layers for item in layer), nn.Conv2d(48, 5, 1)).train()

    x = torch.randn(4, 8, 6, 6, generator=torch.Generator().manual_seed(3))
    predicted, measured = predict(build(make), x, loss="noise"), measure(None, x, "noise", build=make, seeds=80)
    for name in ("0.bias", "3.bias"):
        row = measured.parameter(name)
        told, actual = predicted.parameter(name).grad_second_moment, row.grad_second_moment
        assert abs(told - actual) < 4.0 * row.errors["grad_second_moment"] + 0.05 * actual
