"""Adjoints: for ops that are linear in the kernel, `sum G forward(K) = sum backward(G) K` for every K and G."""

import pytest
import torch

from sigprop.errors import InputError
from sigprop.theory import Dense, Gradient, Signal
from sigprop.theory.ops.channels_to_positions import ChannelsToPositions
from sigprop.theory.ops.convolution import Convolution
from sigprop.theory.ops.gather import Gather
from sigprop.theory.ops.modulate import Modulate
from sigprop.theory.ops.narrow import Narrow
from sigprop.theory.ops.positions_to_channels import PositionsToChannels
from sigprop.theory.ops.scale import Scale
from sigprop.theory.ops.scatter import Scatter
from sigprop.theory.ops.token_map import TokenMap
from sigprop.trace.rules import rule, rule_names

P = 6
OPS = {
    "slice": (Gather(torch.tensor([1, 3, 4])), 3, 1.0),
    "repeat": (Gather(torch.tensor([0, 1, 1, 5, 0, 0, 2])), 7, 1.0),
    "copies over channels": (Gather(torch.arange(P), copies=4.0, width=40), P, 4.0),
    "scatter": (Scatter(torch.tensor([0, 2, 2, 7, 1, 4]), 8), 8, 1.0),
    "pool": (TokenMap(torch.ones(2, P, dtype=torch.float64) / 3), 2, 1.0),
    "patches": (PositionsToChannels(torch.tensor([[0, 1], [2, 3], [4, 5]]), 20), 3, 2.0),
    "token outputs": (ChannelsToPositions(4), 24, 0.25),
    "scale": (Scale(0.3), P, 1.0),
    "mask": (Modulate(torch.eye(P, dtype=torch.float64), torch.ones(P, dtype=torch.float64)), P, 1.0),
    "channels": (Narrow(0.5, 5), P, 0.5),
    "convolution": (Convolution(6, 3, 0.2, rows=torch.tensor([[0, -1], [1, 3], [2, 4]])), 3, 1.0),
}


def kernel(size, seed):
    x = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Dense(x @ x.T)


@pytest.mark.parametrize("name", OPS)
def test_backward_is_the_adjoint(name):
    op, size, energy = OPS[name]
    x = Signal(kernel(P, 0), torch.zeros(P, dtype=torch.float64), 10)
    y = op.forward(x)
    assert len(y.mean) == size
    gradient = Gradient(kernel(size, 1))
    (back,) = op.backward(gradient, y, x)
    assert back is not None
    forward, backward = gradient.kernel.contract(y.kernel), back.kernel.contract(x.kernel)
    assert float(backward) == pytest.approx(float(forward) * energy, rel=1e-12)


def test_rules_refuse_duplicates():
    assert "linear" in rule_names()
    with pytest.raises(InputError, match="'linear' already has the rule"):
        rule("linear")(lambda: None)
