"""What repeated blocks share must not hide where one of them differs; what thinned heads share is counted in full."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sigprop.capture import build, predict, trace
from sigprop.capture.replayed_heads import heads_of
from sigprop.measurement import measure

WIDTH, TOKENS = 48, 12
IDS = torch.arange(TOKENS)[None] % 9
TARGETS = torch.arange(TOKENS) % 5


class Block(nn.Module):
    """Pre-LN attention and mlp; the activation is spelt out."""

    def __init__(self, heads: int = 4, dropout: float = 0.0, causal: bool = True):
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.norm, self.fused, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.fused(self.norm(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(1.5 * q, 1.5 * k, v, is_causal=self.causal)
        x = x + F.dropout(self.out(mixed.transpose(1, 2).flatten(2)), self.dropout, self.training)
        h = self.up(self.norm(x))
        return x + self.down(0.5 * h * (1.0 + torch.tanh(0.8 * (h + 0.04 * h**3))))


class Stack(nn.Module):
    def __init__(self, odd: dict):
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, WIDTH), nn.Linear(WIDTH, 5)
        self.blocks = nn.ModuleList([Block(), Block(), Block(**odd), Block()])
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0.0, module.in_features**-0.5 * (0.3 if module is self.head else 1.0))
                nn.init.zeros_(module.bias)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss(out):
    return F.cross_entropy(out.flatten(0, 1), TARGETS)


def variances(odd: dict) -> list[float]:
    rows = {row.name: row for row in predict(build(lambda: Stack(odd)), IDS, loss=loss).sites}
    return [rows[f"blocks.{number}"].variance for number in range(4)]


@pytest.mark.parametrize("odd", [{"heads": 12}, {"dropout": 0.3}, {"causal": False}], ids=lambda odd: next(iter(odd)))
def test_one_block_that_differs_is_seen_from_there_on(odd):
    plain, found = variances({}), variances(odd)
    assert found[:2] == plain[:2]
    assert all(abs(a / b - 1.0) > 1e-4 for a, b in zip(found[2:], plain[2:], strict=True))


def test_a_block_without_the_mask_of_the_others_is_predicted_as_measured():
    def factory():
        return Stack({"causal": False})

    predicted = predict(build(factory), IDS, loss=loss)
    compared = predicted.compare(measure(None, IDS, loss, build=factory, seeds=60))
    for column in ("variance", "grad_variance"):
        found = {item.name: item for item in compared.column(column) if item.name in ("blocks.1", "blocks.2")}
        assert len(found) == 2
        assert all(abs(item.error) < 4.5 * item.standard_error for item in found.values()), (column, found)


class SharedGain(nn.Module):
    """Queries of sixteen heads, times one gain that all of them share."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 64), nn.Linear(64, 5, bias=False)
        self.query, self.key, self.value = (nn.Linear(64, 128, bias=False) for _ in range(3))
        self.out = nn.Linear(128, 64, bias=False)
        self.gain = nn.Parameter(torch.ones(8))
        for module in (self.query, self.key, self.value, self.out, self.head):
            nn.init.normal_(module.weight, 0.0, module.in_features**-0.5)

    def forward(self, ids):
        x = self.embedding(ids)
        q, k, v = (layer(x).unflatten(-1, (16, 8)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        q = q * torch.rsqrt(q.square().mean(-1, keepdim=True) + 1e-6) * self.gain
        return self.head(x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))


def test_the_gain_of_heads_that_are_not_drawn_counts():
    found = trace(build(SharedGain), IDS)
    (op,) = filter(None, (heads_of(found.states.op(node)) for node in found.capture.graph.nodes))
    assert op.heads // op.joined < 16  # some heads are left out
    assert op.joined > 1  # and replicas are replayed at once
    rows = [predict(build(SharedGain), IDS, loss=loss, seed=seed).parameters for seed in range(8)]
    drawn = torch.tensor([row.grad_second_moment for found in rows for row in found if row.name == "gain"])
    actual = measure(None, IDS, loss, build=SharedGain, seeds=150)
    (measured,) = (row for row in actual.parameters if row.name == "gain")
    error = (measured.errors["grad_second_moment"] ** 2 + float(drawn.var()) / len(drawn)) ** 0.5
    assert abs(float(drawn.mean()) - measured.grad_second_moment) < 4.5 * error
