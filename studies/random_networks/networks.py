"""Random networks made of ordinary parts, each the same whenever its number is asked for.

`network(number)` gives a function that builds the model, a batch and a loss. A network is a list of steps over
(sequences, tokens, channels), drawn from everything that people write: norms, attentions in several spellings, gates,
convolutions, recurrences, shared and transposed weights, detached branches, experts, and every idiom of initialization.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ACTIVATIONS: list[Callable[[Tensor], Tensor]] = [
    F.relu,
    F.gelu,
    torch.tanh,
    F.silu,
    F.leaky_relu,
    torch.sin,
    F.softplus,
]


class Step(nn.Module):
    """One part of a network: its modules, and a function of them and of the signal."""

    def __init__(self, width: int, draw: random.Random):
        super().__init__()
        self.width = width
        self.act = draw.choice(ACTIVATIONS)
        self.build(draw)

    def build(self, draw: random.Random) -> None:
        self.f = nn.Linear(self.width, self.width, bias=draw.random() < 0.7)


class Dense(Step):
    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.f(x))


class Residual(Step):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.act(self.f(x))


class PreNorm(Step):
    def build(self, draw: random.Random) -> None:
        super().build(draw)
        self.norm = nn.LayerNorm(self.width) if draw.random() < 0.6 else nn.RMSNorm(self.width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.act(self.f(self.norm(x)))


class PostNorm(PreNorm):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.act(self.f(x)))


class NormByHand(Step):
    def forward(self, x: Tensor) -> Tensor:
        return self.f(x / x.square().mean(-1, keepdim=True).add(1e-6).sqrt())


class ChannelNorm(Step):
    def build(self, draw: random.Random) -> None:
        self.f = nn.Linear(self.width, self.width)
        self.norm = draw.choice([nn.BatchNorm1d, lambda n: nn.GroupNorm(4, n), nn.InstanceNorm1d])(self.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.f(x).transpose(1, 2)).transpose(1, 2))


class Attention(Step):
    def build(self, draw: random.Random) -> None:
        self.q, self.k, self.v, self.f = (nn.Linear(self.width, self.width) for _ in range(4))
        self.causal, self.spelling = draw.random() < 0.5, draw.choice(["fused", "softmax", "linear", "tied"])

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (2, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        if self.spelling == "fused":
            found = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        elif self.spelling == "linear":
            q, k = F.elu(q) + 1, F.elu(k) + 1
            found = q @ (k.mT @ v) / (q @ k.sum(-2)[..., None])
        else:
            k = q if self.spelling == "tied" else k
            found = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
        return x + self.f(found.transpose(1, 2).flatten(2))


class Gated(Step):
    def build(self, draw: random.Random) -> None:
        self.f = nn.Linear(self.width, 2 * self.width)
        self.way = draw.choice(["glu", "swiglu", "highway"])

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "glu":
            return F.glu(self.f(x), -1)
        a, b = self.f(x).chunk(2, -1)
        return F.silu(a) * b if self.way == "swiglu" else (g := torch.sigmoid(a)) * self.act(b) + (1 - g) * x


class Twice(Step):
    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.f(self.act(self.f(x))))


class ThereAndBack(Step):
    def forward(self, x: Tensor) -> Tensor:
        return self.act(x @ self.f.weight) @ self.f.weight.T


class Detached(Step):
    def forward(self, x: Tensor) -> Tensor:
        return self.f(x) + self.act(x).detach()


class Difference(Step):
    def forward(self, x: Tensor) -> Tensor:
        return (x + self.f(x)) - F.relu(x)


class Joined(Step):
    def build(self, draw: random.Random) -> None:
        self.f, self.g = nn.Linear(self.width, self.width), nn.Linear(2 * self.width, self.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.g(torch.cat((x, self.act(self.f(x)) + x), -1))


class Shift(Step):
    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.f(x + F.pad(x, (0, 0, 1, -1))))


class Pooled(Step):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.f(x.mean(1, keepdim=True))


class Convolution(Step):
    def build(self, draw: random.Random) -> None:
        self.f = nn.Conv1d(self.width, self.width, 3, padding=1, groups=draw.choice([1, 1, self.width]))

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.f(x.transpose(1, 2))).transpose(1, 2)


class Recurrent(Step):
    def build(self, draw: random.Random) -> None:
        self.f = draw.choice([nn.LSTM, nn.GRU, nn.RNN])(self.width, self.width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.f(x)[0]


class Experts(Step):
    def build(self, draw: random.Random) -> None:
        self.router, self.experts = (
            nn.Linear(self.width, 3),
            nn.ModuleList(nn.Linear(self.width, self.width) for _ in range(3)),
        )

    def forward(self, x: Tensor) -> Tensor:
        share = self.router(x).softmax(-1)
        return x + sum(share[..., n : n + 1] * self.act(f(x)) for n, f in enumerate(self.experts))


class Excited(Step):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.f(x.mean(1, keepdim=True)))


class Scaled(Step):
    def build(self, draw: random.Random) -> None:
        super().build(draw)
        self.gain = nn.Parameter(torch.full((self.width,), draw.choice([0.1, 1.0, 3.0])))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain * self.f(x)


STEPS: list[type[Step]] = [
    Dense,
    Residual,
    PreNorm,
    PostNorm,
    NormByHand,
    ChannelNorm,
    Attention,
    Gated,
    Twice,
    ThereAndBack,
    Detached,
    Difference,
    Joined,
    Shift,
    Pooled,
    Convolution,
    Recurrent,
    Experts,
    Excited,
    Scaled,
]
INITS: list[Callable[[Tensor], Any]] = [
    lambda w: None,
    lambda w: None,
    lambda w: w.data.normal_(0.0, 1 / math.sqrt(w.shape[-1])),
    lambda w: setattr(w, "data", torch.randn_like(w) / math.sqrt(w.shape[-1])),
    lambda w: w.data.mul_(1.5),
    lambda w: nn.init.orthogonal_(w),
    lambda w: nn.init.xavier_uniform_(w.data),
    lambda w: nn.init.trunc_normal_(w, std=0.2, a=-0.2, b=0.2),
    lambda w: nn.init.eye_(w),
    lambda w: nn.init.sparse_(w, 0.5, std=0.3),
]
LOSSES: list[Any] = [
    "noise",
    "noise",
    lambda o: F.mse_loss(o, torch.ones_like(o)),
    lambda o: F.cross_entropy(o.flatten(0, 1), torch.arange(o.shape[0] * o.shape[1]) % 6),
    lambda o: o.square().sum(),
]


class RandomNetwork(nn.Module):
    def __init__(self, number: int):
        super().__init__()
        draw = random.Random(number)
        width = draw.choice([16, 24, 48])
        self.first = nn.Linear(10, width)
        self.steps = nn.Sequential(*(draw.choice(STEPS)(width, draw) for _ in range(draw.randint(2, 4))))
        self.head = nn.Linear(width, 6)
        fill = draw.choice(INITS)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                fill(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.steps(self.first(x)))


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    batch: Tensor
    loss: Any
    as_module: bool


def network(number: int) -> Case:
    draw = random.Random(f"batch {number}")
    shape = (draw.choice([1, 3]), draw.choice([4, 8]), 10)
    batch = torch.randn(shape, generator=torch.Generator().manual_seed(number))
    return Case(lambda: RandomNetwork(number), batch, draw.choice(LOSSES), draw.random() < 0.3)
