"""How much squared norms vary behind functions that are nearly constant, and behind shares that sum to one."""

import pytest
import torch

from sigprop.theory import activations
from sigprop.theory.ops.activation import Activation
from sigprop.theory.ops.expert_sum import ExpertSum
from sigprop.theory.parts import Fluctuation
from sigprop.theory.states import exchangeable_signal


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
