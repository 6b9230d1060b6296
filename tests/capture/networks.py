"""Small networks of many kinds, each with a batch and a loss: what holds for every graph is tried on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sigprop.models import build as reference

IDS = torch.randint(40, (2, 8), generator=torch.Generator().manual_seed(0))
ROWS = torch.randn(8, 24, generator=torch.Generator().manual_seed(1))
TOKENS = torch.randn(2, 6, 24, generator=torch.Generator().manual_seed(2))
PIXELS = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))


class Network(nn.Module):
    """Parts, and what is done with them."""

    def __init__(self, run: Callable[..., Any], **parts: nn.Module | nn.Parameter):
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any) -> Any:
        return self.run(self, *inputs)


def next_token(output: Tensor) -> Tensor:
    return F.cross_entropy(output[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())


def transformer(**settings: Any) -> Callable[[], nn.Module]:
    known = {"width": 32, "depth": 2, "heads": 4, "vocabulary": 40, "norm_placement": "pre"}
    return lambda: reference("transformer", **(known | settings))


def tied() -> nn.Module:
    def run(m: Any, ids: Tensor) -> Tensor:
        x = m.table(ids)
        return F.linear(m.norm(x + m.out(F.relu(m.into(x)))), m.table.weight)

    table = nn.Embedding(40, 64, padding_idx=3)
    return Network(run, table=table, into=nn.Linear(64, 64), out=nn.Linear(64, 64), norm=nn.LayerNorm(64))


def two_lookups() -> nn.Module:
    def run(m: Any, ids: Tensor) -> Tensor:
        x = m.table(ids) + 0.5 * m.table(ids.roll(1, 1))
        return m.head(torch.cat((x, m.table(ids)), 1))

    return Network(run, table=nn.Embedding(40, 32), head=nn.Linear(32, 40))


def same_layer_twice() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.first(x)
        for _ in range(2):
            x = x + m.layer(x)
        return m.head(x + m.first.weight.mean())

    return Network(run, first=nn.Linear(24, 32), layer=nn.Linear(32, 32), head=nn.Linear(32, 10))


def injected() -> nn.Module:
    """A tensor that is added again, and stacked with what it is part of."""

    def run(m: Any, x: Tensor) -> Tensor:
        x = m.first(x)
        y = m.one(torch.tanh(x)) + x
        z = m.two(torch.tanh(y)) + y + x
        return m.head(torch.stack((z, y), 1).flatten(1))

    return Network(run, first=nn.Linear(24, 32), one=nn.Linear(32, 32), two=nn.Linear(32, 32), head=nn.Linear(64, 10))


def mixture() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.first(x)
        shares, index = m.router(x).softmax(-1).topk(2, -1)
        weight = torch.zeros(len(x), 3).scatter(1, index, shares)
        return m.head(x + sum(weight[:, n : n + 1] * expert(x) for n, expert in enumerate(m.experts)))

    experts = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
    return Network(run, first=nn.Linear(24, 32), router=nn.Linear(32, 3), experts=experts, head=nn.Linear(32, 10))


def normed_heads() -> nn.Module:
    """Attention of heads that are normalized, with gains like Gemma's."""

    def run(m: Any, x: Tensor) -> Tensor:
        x = m.first(x)
        q, k, v = (item.unflatten(-1, (4, 8)).transpose(1, 2) for item in m.maps(m.norm(x)).chunk(3, -1))
        q, k = (item * torch.rsqrt(item.square().mean(-1, keepdim=True) + 1e-6) * (1.0 + m.gain) for item in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return m.head(x + m.out(y))

    return Network(
        run, first=nn.Linear(24, 32), maps=nn.Linear(32, 96), out=nn.Linear(32, 32), norm=nn.RMSNorm(32),
        gain=nn.Parameter(torch.zeros(8)), head=nn.Linear(32, 10),
    )  # fmt: skip


def images() -> nn.Module:
    """Standardized and depthwise convolutions, batch and group norms, biases with a mean."""
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=16, padding=1),
        nn.GELU(), nn.Conv2d(16, 16, 1), nn.GroupNorm(1, 16), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 5),
    )  # fmt: skip
    for module in net:
        if isinstance(module, nn.Conv2d):
            nn.init.uniform_(module.bias, 0.2, 0.4)
    return net


def reparametrized() -> nn.Module:
    """Weights made of parameters, weights with a mean, orthogonal ones, a table of numbers."""

    def run(m: Any, x: Tensor) -> Tensor:
        x = m.first(x)
        x = x + F.linear(F.relu(x * (1.0 + m.gain)), m.second.weight.exp() - 1.0, m.second.bias)
        return m.head(torch.tanh(m.third(x)))

    made = Network(
        run, first=nn.utils.parametrizations.weight_norm(nn.Linear(24, 32)), second=nn.Linear(32, 32),
        third=nn.Linear(32, 32), head=nn.Linear(32, 10), gain=nn.Parameter(torch.zeros(32)),
    )  # fmt: skip
    nn.init.orthogonal_(made.third.weight)
    nn.init.normal_(made.head.weight, 0.1, 0.2)
    nn.init.constant_(made.second.bias, 0.5)
    return made


def recurrent() -> nn.Module:
    return Network(lambda m, x: m.head(m.cell(x)[0]), cell=nn.GRU(24, 16, batch_first=True), head=nn.Linear(16, 4))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Any, Any]] = {
    "pre-LN": (transformer(), IDS, next_token),
    "post-LN, noise": (transformer(norm_placement="post"), IDS, None),
    "tied head, padding": (tied, IDS, next_token),
    "two lookups": (two_lookups, IDS, None),
    "one layer twice": (same_layer_twice, ROWS, None),
    "injected": (injected, ROWS, None),
    "mixture": (mixture, ROWS, None),
    "normed heads": (normed_heads, TOKENS, None),
    "images": (images, PIXELS, None),
    "reparametrized": (reparametrized, ROWS, None),
    "recurrent": (recurrent, TOKENS, None),
    "mixer": (lambda: reference("mixer", depth=1, width=32, image=8, patch=4), PIXELS, None),
    "resnet": (lambda: reference("resnet", depth=1, width=8), PIXELS, None),
}
"""Name: a function that builds it, a batch, and what is differentiated."""
