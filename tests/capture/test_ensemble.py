"""Kernels of finite width drawn together, and what of a source a replay draws."""

import sys

import pytest
import torch
from torch import nn

from sigprop.capture import trace
from sigprop.capture.ensemble import Ensemble, channel_noise, fewest_balanced
from sigprop.capture.replayed_heads import FEWEST, HEADS, NARROW, ReplayedHeads, heads_of
from sigprop.errors import UnsupportedError
from sigprop.graph.evaluate import Evaluation
from sigprop.graph.graph import Graph, Node
from sigprop.theory import Dense, Gradient, Signal
from sigprop.theory.drawing import root_of
from sigprop.theory.ops.sources import GivenSignal
from sigprop.theory.states import Fluctuation

POSITIONS = 6
MODULE = sys.modules[ReplayedHeads.__module__]


def gram(noise):
    return noise @ noise.mT


@pytest.mark.parametrize(("width", "replicas"), [(40, 1), (5, 1), (5, 2), (400, 2), (300, 3)])
def test_the_kernel_of_drawn_channels_has_the_moments_of_that_many(width, replicas):
    """`E W = 1`, `Var W_tt = 2/d`, `Var W_tt' = 1/d`, balanced (to first order in 1/d) or not."""
    generator = torch.Generator().manual_seed(width)
    count = 2000
    drawn = torch.stack([gram(channel_noise(POSITIONS, width, replicas, generator)[0]) for _ in range(count)])
    eye = torch.eye(POSITIONS, dtype=torch.float64)
    assert ((drawn.mean(0) - eye) / (drawn.std(0) / count**0.5)).abs().max() < 4.5
    second = (drawn - eye).square()
    assert ((second.mean(0) - (1.0 + eye) / width) / (second.std(0) / count**0.5)).abs().max() < 4.5


def test_balanced_replicas_have_no_common_fluctuation():
    noise = channel_noise(POSITIONS, 40, 2, torch.Generator().manual_seed(0))
    torch.testing.assert_close(gram(noise).mean(0), torch.eye(POSITIONS))
    torch.testing.assert_close(noise[..., -1].mean(0), torch.zeros(POSITIONS))


def test_too_few_channels_are_not_balanced():
    assert fewest_balanced(POSITIONS, 4) == 4
    noise = channel_noise(POSITIONS, 4, 3, torch.Generator().manual_seed(0))
    assert (gram(noise).mean(0) - torch.eye(POSITIONS)).abs().max() > 0.05


def test_a_normalized_signal_keeps_its_norm_in_every_replica():
    kernel = torch.tensor([[1.0, 0.3], [0.3, 1.0]], dtype=torch.float64)
    node = Node(GivenSignal(Signal(Dense(kernel), torch.zeros(2, dtype=torch.float64), 10, Fluctuation(norm=0.0))))
    for root in Ensemble(Evaluation(Graph()), 2, torch.Generator().manual_seed(0)).drawn(node):
        torch.testing.assert_close((root @ root.T).diagonal(), torch.ones(2))


class FusedAttention(nn.Module):
    """Two heads from one projection; `overlapping` takes keys from channels that queries use too."""

    def __init__(self, overlapping: bool):
        super().__init__()
        self.inside, self.overlapping = nn.Linear(16, 48), overlapping

    def forward(self, x):
        fused = self.inside(x)
        start = 8 if self.overlapping else 16
        parts = fused[..., :16], fused[..., start : start + 16], fused[..., 32:]
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in parts)
        return nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("overlapping", [False, True])
def test_slices_are_drawn_apart_where_they_are_disjoint(overlapping):
    found = trace(FusedAttention(overlapping), torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(0)))
    (op,) = filter(None, (heads_of(node.op) for node in found.capture.graph.nodes))
    (parts,) = op.parts.values()
    assert sorted(part.layout.channels for part in parts) == ([48] if overlapping else [16, 16])


def test_a_kernel_that_is_not_finite_is_refused_in_words():
    with pytest.raises(UnsupportedError, match="not finite"):
        root_of(torch.tensor([[1.0, float("nan")], [float("nan"), 1.0]], dtype=torch.float64))


def heads_backward(total: int) -> tuple[int, float]:
    """Heads that a narrow attention draws backward in a model of so many, and the error of its weight gradients."""
    found = trace(FusedAttention(False), torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(0)))
    node = next(node for node in found.capture.graph.nodes if heads_of(node.op) is not None)
    op = found.states.op(node)
    heads = heads_of(op)
    assert heads is not None
    heads.total = lambda: total
    op.parameters(Gradient(Dense(torch.eye(5, dtype=torch.float64))), *map(found.states.signal, node.inputs))
    assert heads.received is not None
    (energies,) = (torch.cat(items) for items in heads.received._energies)
    return heads.replicas * heads.heads // heads.joined, float(energies.std() / energies.mean() / len(energies) ** 0.5)


def test_heads_are_drawn_until_weight_gradients_are_steady(monkeypatch):
    steady = 0.2
    monkeypatch.setattr(MODULE, "STEADY", steady)
    heads, error = heads_backward(1)
    assert FEWEST < heads < NARROW * HEADS
    assert error <= steady
    assert heads_backward(1000)[0] < heads
    monkeypatch.setattr(MODULE, "STEADY", 0.0)
    assert heads_backward(1)[0] >= NARROW * HEADS
