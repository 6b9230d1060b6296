"""Stacked experts are followed as one: the same numbers as one by one, and as the real model's."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sigprop.capture import build, experts_as_one, predict
from sigprop.capture.replayed_heads import heads_of
from sigprop.capture.tracing import trace
from sigprop.measurement import measure
from sigprop.theory.ops.expert_sum import ExpertSum
from sigprop.theory.ops.residual import SharedResidual

X = torch.randn(24, 20, generator=torch.Generator().manual_seed(0))
TARGET = torch.randint(6, (24,), generator=torch.Generator().manual_seed(1))


def loss(out):
    return F.cross_entropy(out, TARGET)


class Experts(nn.Module):
    """As Hugging Face writes them."""

    def __init__(self, count=8, width=64, inner=48, mean=0.0):
        super().__init__()
        self.up = nn.Parameter(torch.empty(count, inner, width).normal_(mean, 1.4 / width**0.5))
        self.down = nn.Parameter(torch.empty(count, width, inner).normal_(0.0, 1.4 / inner**0.5))
        self.act = nn.GELU()

    def forward(self, hidden_states, top_k_index, top_k_weights):
        total = torch.zeros_like(hidden_states)
        for number in top_k_index.unique():
            tokens, place = torch.where(top_k_index == number)
            found = self.act(F.linear(hidden_states[tokens], self.up[number]))
            found = F.linear(found, self.down[number]) * top_k_weights[tokens, place, None]
            total.index_add_(0, tokens, found)
        return total


class Mixture(nn.Module):
    def __init__(self, chosen=2, width=64, **options):
        super().__init__()
        self.first, self.norm, self.readout = nn.Linear(20, width), nn.LayerNorm(width), nn.Linear(width, 6)
        self.router, self.experts, self.chosen = (
            nn.Linear(width, 8, bias=False),
            Experts(width=width, **options),
            chosen,
        )
        nn.init.normal_(self.router.weight, std=1.5 / width**0.5)

    def forward(self, x):
        x = self.first(x)
        inside = self.norm(x)
        shares, index = self.router(inside).softmax(-1).topk(self.chosen, -1)
        return self.readout(x + self.experts(inside, index, shares))


def operations(make):
    return {type(node.op) for node in trace(build(make), X).capture.graph.nodes}


@pytest.mark.parametrize("chosen", [1, 3])
def test_one_expert_tells_what_all_do(agreement, chosen):
    """Weights of experts and router, and every gradient, against real models. The first call of the activation is on
    the tokens of one expert, which are not all."""
    assert ExpertSum in operations(lambda: Mixture(chosen))
    agreement(lambda: Mixture(chosen, 192), X, loss, seeds=48, skip=("experts.act",), width=48)


def test_as_one_and_one_by_one(monkeypatch):
    """The same states; of the router's shares, which are drawn, within their errors. White noise starts the gradient:
    a cross entropy's is drawn."""
    made = predict(build(lambda: Mixture(2)), X, loss="noise")
    monkeypatch.setattr(experts_as_one, "number_of_experts", lambda module: 0)
    loop = predict(build(lambda: Mixture(2)), X, loss="noise")
    for rows, others, column in (
        (made.sites, loop.sites, "variance"),
        (made.sites, loop.sites, "grad_variance"),
        (made.parameters, loop.parameters, "grad_second_moment"),
    ):
        found = {row.name: getattr(row, column) for row in others}
        for row in rows:
            drawn = "router" in row.name or "act" in row.name
            error = math.log(getattr(row, column) / found[row.name])
            assert abs(error) < (0.2 if drawn else 0.06), (row.name, column, error)


def test_experts_with_a_mean_are_followed_one_by_one():
    """Their outputs have something in common."""
    assert ExpertSum not in operations(lambda: Mixture(2, mean=0.1))


def test_a_product_with_a_tensor_of_mean_zero_holds_nothing_of_the_other(monkeypatch):
    """So that the shares of a router are no part that sums of experts have in common: cost grew as their cube."""
    monkeypatch.setattr(experts_as_one, "number_of_experts", lambda module: 0)
    assert SharedResidual not in operations(lambda: Mixture(2))


class SharedKeys(nn.Module):
    """Keys written in two parts, one of them the same for all heads, as in multi-head latent attention."""

    def __init__(self, heads=32, size=8):
        super().__init__()
        self.heads, self.size = heads, size
        self.q, self.k, self.shared, self.v = (nn.Linear(20, n) for n in (2 * heads * size, heads * size, size, 64))
        self.readout = nn.Linear(64, 6)

    def forward(self, x):
        x = x[None]
        q = self.q(x).view(1, len(x[0]), self.heads, -1).transpose(1, 2)
        k = self.k(x).view(1, len(x[0]), self.heads, -1).transpose(1, 2)
        keys = k.new_empty(*k.shape[:-1], 2 * self.size)
        keys[..., : self.size].copy_(k)
        keys[..., self.size :].copy_(self.shared(x)[:, None].expand(-1, self.heads, -1, -1))
        v = self.v(x).view(1, len(x[0]), self.heads, -1).transpose(1, 2)
        found = F.scaled_dot_product_attention(q, keys, v)
        return self.readout(found.transpose(1, 2).flatten(2))[0]


class OneKey(nn.Module):
    """One head of keys for all heads of queries."""

    def __init__(self, heads=32, size=8):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = nn.Linear(20, heads * size), nn.Linear(20, size), nn.Linear(20, size)
        self.readout = nn.Linear(heads * size, 6)

    def forward(self, x):
        q = self.q(x[None]).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        found = F.scaled_dot_product_attention(q, self.k(x)[None, None], self.v(x)[None, None])
        return self.readout(found.transpose(1, 2).flatten(2))[0]


@pytest.mark.parametrize("loss", [loss, lambda out: out.square().sum()], ids=["cross entropy", "square"])
def test_gradients_of_a_key_and_a_value_that_all_heads_share(loss):
    """Heads that are not drawn send theirs too: keys had a fraction of it. What heads send along a value adds up."""
    found = {row.name: row.grad_second_moment for row in predict(build(OneKey), X, loss=loss).parameters}
    actual = {row.name: row for row in measure(None, X, loss, build=OneKey, seeds=96).parameters}
    for name in ("k.weight", "v.weight", "v.bias"):
        assert abs(math.log(found[name] / actual[name].grad_second_moment)) < 0.25, name


def test_keys_written_in_parts_are_put_side_by_side(agreement):
    """So that a few heads stand for all; what they share is drawn with these few, and hears all."""
    rows = agreement(
        SharedKeys,
        X,
        loss,
        seeds=64,
        skip=("q.weight", "k.weight", "q.bias", "k.bias", "shared.bias", "shared", "shared.weight"),
    )
    states = trace(build(SharedKeys), X).states
    attention = next(heads for node in states.nodes if (heads := heads_of(states.op(node))) is not None)
    assert attention.heads < 32
    predicted = next(row.grad_second_moment for row in rows.parameters if row.name == "shared.weight")
    actual = measure(None, X, loss, build=SharedKeys, seeds=48).parameters
    found = next(row.grad_second_moment for row in actual if row.name == "shared.weight")
    assert abs(math.log(predicted / found)) < 0.35
