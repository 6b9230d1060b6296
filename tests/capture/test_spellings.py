"""One function written in several ways: the same prediction in every row."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sigprop.capture import build, predict

WIDTH, TOKENS = 48, 6
IDS = torch.tensor([[3, 1, 4, 1, 5, 9]])
TARGETS = torch.tensor([2, 7, 1, 8, 2, 8])


class Net(nn.Module):
    """An embedding, a norm, the part in question, a readout."""

    def __init__(self, part: Callable[[Tensor, Net], Tensor]):
        super().__init__()
        self.table, self.norm, self.head = (
            nn.Embedding(16, WIDTH),
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 10, bias=False),
        )
        self.weight = nn.Parameter(torch.empty(WIDTH, WIDTH))
        nn.init.normal_(self.table.weight)
        nn.init.normal_(self.weight, std=1.3 / WIDTH**0.5)
        nn.init.normal_(self.head.weight, std=WIDTH**-0.5)
        self.part = part

    def forward(self, ids: Tensor) -> Tensor:
        y = self.head(self.part(self.norm(self.table(ids)), self))
        return y if y.dim() == 3 else y[:, None].expand(-1, TOKENS, -1)


def loss(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), TARGETS)


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def by_heads(x: Tensor) -> Tensor:
    """Each of four heads normalized by itself, the norm spelt out."""
    heads = x.unflatten(-1, (4, -1)).transpose(1, 2).transpose(1, 2)
    centred = heads - heads.mean(-1, keepdim=True)
    return (centred * torch.rsqrt(heads.var(-1, keepdim=True, unbiased=False) + 1e-5)).flatten(-2)


def swapped(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x.transpose(1, 2)).transpose(1, 2)


SPELLINGS: dict[str, dict[str, Callable[[Tensor, Net], Tensor]]] = {
    "linear map under GELU": {
        "linear": lambda x, m: F.gelu(F.linear(x, m.weight)),
        "matmul": lambda x, m: F.gelu(x @ m.weight.T),
        "einsum": lambda x, m: F.gelu(torch.einsum("btc,oc->bto", x, m.weight)),
        "conv1d": lambda x, m: F.gelu(swapped(lambda y: F.conv1d(y, m.weight[:, :, None]))(x)),
        "conv2d": lambda x, m: F.gelu(
            F.conv2d(x.transpose(1, 2)[..., None], m.weight[:, :, None, None])[..., 0].transpose(1, 2)
        ),
    },
    "activation": {
        "gelu": lambda x, m: F.gelu(F.linear(x, m.weight)),
        "spelt out": lambda x, m: gelu(F.linear(x, m.weight)),
    },
    "rectifier": {
        "relu": lambda x, m: torch.relu(F.linear(x, m.weight)),
        "clamp": lambda x, m: F.linear(x, m.weight).clamp(min=0.0),
        "threshold": lambda x, m: F.threshold(F.linear(x, m.weight), 0.0, 0.0),
        "leaky": lambda x, m: F.leaky_relu(F.linear(x, m.weight), 0.0),
    },
    "number": {
        "times": lambda x, m: F.gelu(F.linear(x, m.weight)) * 0.5,
        "before": lambda x, m: 0.5 * F.gelu(F.linear(x, m.weight)),
        "divided": lambda x, m: F.gelu(F.linear(x, m.weight)) / 2.0,
        "mul": lambda x, m: torch.mul(F.gelu(F.linear(x, m.weight)), 0.5),
        "halves": lambda x, m: F.gelu(F.linear(x, m.weight)).div(4.0).mul(2.0),
    },
    "sum": {
        "plus": lambda x, m: x + F.gelu(F.linear(x, m.weight)),
        "add": lambda x, m: torch.add(x, F.gelu(F.linear(x, m.weight))),
        "in place": lambda x, m: F.gelu(F.linear(x, m.weight)).add_(x),
        "minus minus": lambda x, m: x - (-F.gelu(F.linear(x, m.weight))),
    },
    "order of positions": {
        "as it is": lambda x, m: F.gelu(F.linear(x, m.weight)),
        "flipped twice": lambda x, m: F.gelu(F.linear(x.flip(1), m.weight)).flip(1),
        "index": lambda x, m: F.gelu(F.linear(x[:, torch.arange(TOKENS)], m.weight)),
        "index_select": lambda x, m: F.gelu(F.linear(x.index_select(1, torch.arange(TOKENS)), m.weight)),
        "in halves": lambda x, m: torch.cat(F.gelu(F.linear(x, m.weight)).split(3, 1), 1),
    },
    "norm of heads": {
        "module": lambda x, m: F.layer_norm(F.linear(x, m.weight).unflatten(-1, (4, -1)), (WIDTH // 4,)).flatten(-2),
        "spelt out": lambda x, m: by_heads(F.linear(x, m.weight)),
    },
    "copies": {
        "expanded": lambda x, m: F.linear(x, m.weight)[..., :1].expand(-1, -1, WIDTH),
        "times ones": lambda x, m: F.linear(x, m.weight)[..., :1] * torch.ones(WIDTH),
        "plus zeros": lambda x, m: torch.zeros(TOKENS, WIDTH) + F.linear(x, m.weight)[..., :1],
        "less zeros": lambda x, m: F.linear(x, m.weight)[..., :1] - torch.zeros(WIDTH),
        "by twos": lambda x, m: 2.0 * F.linear(x, m.weight)[..., :1] / torch.full((WIDTH,), 2.0),
    },
    "average over positions": {
        "mean": lambda x, m: F.gelu(F.linear(x, m.weight)).mean(1),
        "numpy's name": lambda x, m: F.gelu(F.linear(x, m.weight)).mean(axis=1),
        "sum": lambda x, m: F.gelu(F.linear(x, m.weight)).sum(1) / TOKENS,
        "pool": lambda x, m: F.adaptive_avg_pool1d(F.gelu(F.linear(x, m.weight)).transpose(1, 2), 1)[..., 0],
        "window": lambda x, m: F.avg_pool1d(F.gelu(F.linear(x, m.weight)).transpose(1, 2), TOKENS)[..., 0],
    },
}
for _name in ("mean", "sum", "var", "amax"):
    SPELLINGS[f"{_name} over channels"] = {
        "dim": lambda x, m, name=_name: x + getattr(F.linear(x, m.weight), name)(dim=-1, keepdim=True),
        "axis": lambda x, m, name=_name: x + getattr(F.linear(x, m.weight), name)(axis=-1, keepdims=True),
    }
SPELLINGS["a new dimension"] = {
    "dim": lambda x, m: F.linear(x, m.weight).unsqueeze(dim=1).squeeze(dim=1),
    "axis": lambda x, m: F.linear(x, m.weight).unsqueeze(axis=1).squeeze(axis=1),
}
CASES = [(group, name) for group, found in SPELLINGS.items() for name in list(found)[1:]]


def rows(part: Callable[[Tensor, Net], Tensor]) -> dict[str, float]:
    found = predict(Net(part), IDS, loss=loss)
    shown = ("table", "norm", "head")
    sites = {
        f"{r.name} {n}": v
        for r in found.sites
        if r.name in shown
        for n, v in (("variance", r.variance), ("gradient", r.grad_variance), ("pairs", r.grad_token_correlation))
    }
    return sites | {r.name: r.grad_second_moment for r in found.parameters if r.grad_second_moment is not None}


@pytest.mark.parametrize(("group", "name"), CASES)
def test_every_spelling_has_the_same_rows(group, name):
    torch.manual_seed(0)
    first = rows(next(iter(SPELLINGS[group].values())))
    torch.manual_seed(0)
    assert rows(SPELLINGS[group][name]) == pytest.approx(first, rel=1e-6, nan_ok=True)


class Sized(nn.Module):
    """A function that is drawn, and is given a size."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(8, 8)

    def forward(self, x):
        y = self.map(x)
        return (
            (torch.fft.irfft(torch.fft.rfft(y)).reshape(y.shape) * y.roll(1, -1)).reshape(torch.Size((6, 8))).square()
        )


def test_sizes_that_a_drawn_function_is_given():
    """A fault for a while: a size is a tuple that nothing is put into."""
    assert predict(build(Sized), torch.randn(2, 3, 8)).parameters[0].grad_second_moment > 0.0
