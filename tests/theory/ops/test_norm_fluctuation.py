"""How much squared norms vary behind functions that are nearly constant, and behind shares that sum to one."""

from dataclasses import replace

import pytest
import torch

from sigprop.theory import activations
from sigprop.theory.ops.activation import Activation
from sigprop.theory.ops.expert_sum import ExpertSum
from sigprop.theory.ops.product import Product
from sigprop.theory.states import Fluctuation, exchangeable_signal


def test_relu_adds_three():
    x = exchangeable_signal(1.0, 0.3, tokens=8, width=64)
    assert float(Activation(activations.get("relu")).forward(x).fluctuation.norm) == pytest.approx(5.0, rel=1e-3)


def test_a_gate_that_is_nearly_open_hardly_varies():
    """Five, as behind a ReLU, made the gradient of an attention with sinks twelve times too large."""
    x = exchangeable_signal(3.6, 0.3, mean=3.5, tokens=8, width=64)
    made = Activation(activations.get("sigmoid")).forward(x)
    drawn = torch.sigmoid(3.5 + 3.6**0.5 * torch.randn(1 << 20, generator=torch.Generator().manual_seed(0)).double())
    truth = float((drawn**4).mean() / (drawn**2).mean() ** 2 - 1.0)
    assert float(made.fluctuation.norm) == pytest.approx(truth, rel=0.02)


def test_shares_that_sum_to_one_vary_together():
    """Taken as independent they made Mixtral's first gradient a quarter too large."""
    expert = exchangeable_signal(1.0, 0.3, tokens=8, width=256).dense()
    shares = exchangeable_signal(0.1, 0.3, tokens=8, width=4).dense()
    shares = type(shares)(shares.kernel, shares.mean, shares.width, Fluctuation(norm=0.08))
    assert float(ExpertSum(2).forward(expert, shares).fluctuation.norm) == pytest.approx(2.0 + 256 * 0.08 / 4)


def scattered(norm: float, width: int, networks: int) -> torch.Tensor:
    """Channels of many networks, Gaussian with a variance that scatters so that squared norms vary by `norm`."""
    generator = torch.Generator().manual_seed(1)
    spread = ((norm - 2.0) / width) ** 0.5
    variance = 1.0 + spread * torch.randn(networks, 1, generator=generator).double().clamp(-3.0, 3.0)
    return variance.sqrt() * torch.randn(networks, width, generator=generator).double()


@pytest.mark.parametrize("name", ["gelu", "tanh", "sigmoid", "silu"])
def test_what_an_activation_keeps_of_a_varying_input_is_how_much_it_follows_it(name):
    width, beyond, function = 64, 3.0, activations.get(name)
    x = exchangeable_signal(1.0, 0.3, tokens=8, width=width)
    found, truth = [], []
    for norm in (2.0, 2.0 + beyond):
        varied = replace(x, fluctuation=Fluctuation(norm=norm))
        found.append(float(Activation(function).forward(varied).fluctuation.norm))
        norms = function(scattered(norm, width, 30_000)).square().mean(1)
        truth.append(width * float(norms.var() / norms.mean() ** 2))
    assert found[1] - found[0] == pytest.approx(truth[1] - truth[0], abs=0.15 * beyond)


def test_a_gate_of_few_channels_that_is_nearly_constant_does_not_vary():
    """Taken to vary with its input it made the gradients below AXK2's norms a third too large."""
    few = exchangeable_signal(2e-4, 0.1, tokens=8, width=256)
    gate = Activation(activations.get("sigmoid")).forward(replace(few, fluctuation=Fluctuation(norm=80.0)))
    assert float(gate.fluctuation.norm) < 0.1
    normed = replace(exchangeable_signal(1.0, 0.1, tokens=8, width=256), fluctuation=Fluctuation(norm=0.0))
    assert float(Product().forward(normed, gate).fluctuation.norm) < 0.2
