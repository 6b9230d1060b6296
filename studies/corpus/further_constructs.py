"""More constructs of every kind, added after the first corpus had been looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from studies.corpus.case import Case, ids, noise
from studies.corpus.constructs import (
    WIDTH,
    attended,
    attention_parts,
    chain,
    conv,
    layers,
    linear,
    parameter,
    pixels,
    registering,
    stack,
    tokens,
)

CASES: list[Case] = []
simple = registering(CASES, added=2)


# -- initialization
def _each(fill: Callable[[Tensor, int], Any]) -> Callable[[Any], None]:
    def prepare(model: Any) -> None:
        with torch.no_grad():
            for number, layer in enumerate(model.layers):
                fill(layer.weight, number)

    return prepare


FILLS: dict[str, Callable[[Tensor, int], Any]] = {
    "scaled by depth": lambda w, n: w.normal_(0, 0.3 / math.sqrt(n + 1)),
    "block diagonal": lambda w, n: w.copy_(torch.block_diag(*(torch.randn(12, 12) / 3 for _ in range(4)))),
    "signs": lambda w, n: w.copy_(torch.randn_like(w).sign() / 7),
    "heavy tails": lambda w, n: w.copy_(torch.randn_like(w).pow(3) * 0.05),
    "product of two": lambda w, n: w.copy_(torch.randn(WIDTH, WIDTH) @ torch.randn(WIDTH, WIDTH) / WIDTH),
    "skew-symmetric": lambda w, n: w.copy_((a := torch.randn(WIDTH, WIDTH) * 0.1) - a.T),
    "columns of different size": lambda w, n: w.copy_(torch.randn_like(w) * torch.linspace(0.02, 0.3, WIDTH)),
    "half zero": lambda w, n: w[: WIDTH // 2].zero_(),
    "same for all layers": lambda w, n: w.copy_(torch.randn(w.shape, generator=torch.Generator().manual_seed(5)) / 7),
}
for _name, _fill in FILLS.items():
    simple(f"drawn {_name}", "initialization", layers, chain(lambda f, x: x + F.gelu(f(x))), prepare=_each(_fill))


# -- what is not differentiated
class Reversed(torch.autograd.Function):
    """The gradient's sign turned, as for domain adaptation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return -0.5 * gradients[0]


simple("reversed gradient", "stopped gradients", layers, chain(lambda f, x: Reversed.apply(x) + F.relu(f(x))))
simple("clamped gradient", "stopped gradients", layers, chain(lambda f, x: f(x).clamp(-0.5, 0.5)))
simple(
    "checkpointed",
    "stopped gradients",
    layers,
    chain(lambda f, x: x + checkpoint(lambda y: F.silu(f(y)), x, use_reentrant=False)),
)
simple(
    "codebook",
    "stopped gradients",
    lambda: {"f": linear(), "codes": parameter(16, WIDTH), "head": linear(out=8)},
    lambda m, x: m.head((h := m.f(x)) + (m.codes[torch.cdist(h, m.codes).argmin(-1)] - h).detach()),
)
simple(
    "frozen first layer",
    "stopped gradients",
    layers,
    chain(lambda f, x: F.relu(f(x))),
    prepare=lambda m: m.layers[0].requires_grad_(False),
)

# -- weights used more than once
simple(
    "tied autoencoder",
    "shared weights",
    lambda: {"w": parameter(24, WIDTH, std=0.14), "b": linear(24)},
    lambda m, x: F.gelu(m.b(F.linear(x, m.w))) @ m.w,
)
simple(
    "two towers of one",
    "shared weights",
    lambda: {"f": linear(), "g": linear(out=16)},
    lambda m, x: m.g(F.relu(m.f(x))) * m.g(F.relu(m.f(x.roll(1, 0)))),
)
simple(
    "tied embedding",
    "shared weights",
    lambda: {"e": nn.Embedding(40, WIDTH), "f": linear(), "n": nn.LayerNorm(WIDTH)},
    lambda m, i: F.linear(m.n((x := m.e(i)) + F.gelu(m.f(x))), m.e.weight),
    lambda: ids(40, 2, 12),
)
simple(
    "equilibrium",
    "shared weights",
    lambda: {"f": linear(), "head": linear(out=8)},
    lambda m, x: m.head((lambda z: [z := torch.tanh(0.5 * m.f(z) + x) for _ in range(5)][-1])(torch.zeros_like(x))),
)
simple(
    "power of a matrix",
    "shared weights",
    lambda: {"w": parameter(WIDTH, WIDTH, std=0.14), "head": linear(out=8)},
    lambda m, x: m.head(x @ torch.linalg.matrix_power(m.w, 3)),
)

# -- shared randomness
simple(
    "gate from the skip",
    "shared randomness",
    layers,
    chain(lambda f, x: x + torch.sigmoid(x) * f(x)),
)
simple("squared branch", "shared randomness", layers, chain(lambda f, x: x + f(x).square() * 0.3))
simple("min and max", "shared randomness", layers, chain(lambda f, x: torch.maximum(f(x), x) - torch.minimum(f(x), x)))
simple("normalized sum", "shared randomness", layers, chain(lambda f, x: F.normalize(x + F.relu(f(x)), dim=-1) * 7))
simple(
    "branches averaged",
    "shared randomness",
    layers,
    lambda m, x: m.head(torch.stack([F.relu(f(x)) for f in m.layers]).mean(0) + x),
)
simple("rolled tokens", "shared randomness", layers, chain(lambda f, x: x + F.gelu(f(x - x.roll(1, 1)))), tokens)
simple(
    "reversible pair",
    "shared randomness",
    layers,
    lambda m, x: m.head(torch.cat((a := x[:, :24] + F.relu(m.layers[0](x)[:, :24]), x[:, 24:] + a), -1)),
)


# -- attention
def _windowed(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    step = torch.arange(q.shape[-2])
    near = (step[:, None] - step).abs() <= 2
    return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~near, -torch.inf).softmax(-1) @ v


def _hard(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    kept = scores >= scores.topk(3, -1).values[..., -1:]
    return scores.masked_fill(~kept, -torch.inf).softmax(-1) @ v


ATTENTIONS: dict[str, Callable[[Any, Tensor, Tensor, Tensor], Tensor]] = {
    "windowed": _windowed,
    "three best": _hard,
    "no softmax": lambda m, q, k, v: (q @ k.mT / math.sqrt(q.shape[-1] * q.shape[-2])) @ v,
    "by distance": lambda m, q, k, v: (-torch.cdist(q, k) / 2).softmax(-1) @ v,
    "over channels": lambda m, q, k, v: ((F.normalize(q, dim=-2).mT @ F.normalize(k, dim=-2)).softmax(-1) @ v.mT).mT,
    "entropic sink": lambda m, q, k, v: F.pad(q @ k.mT / 4, (0, 1)).softmax(-1)[..., :-1] @ v,
    "relu scores": lambda m, q, k, v: F.relu(q @ k.mT / 4) @ v / q.shape[-2],
}
for _name, _way in ATTENTIONS.items():
    simple(f"attention {_name}", "attention", attention_parts, attended(_way), tokens)

# -- recurrent and state space
simple(
    "projected LSTM",
    "recurrent",
    lambda: {"r": nn.LSTM(WIDTH, 32, proj_size=16, batch_first=True), "head": linear(16, 8)},
    lambda m, x: m.head(m.r(x)[0]),
    tokens,
)
simple(
    "last state of a GRU",
    "recurrent",
    lambda: {"r": nn.GRU(WIDTH, 24, 2, batch_first=True), "head": linear(24, 8)},
    lambda m, x: m.head(m.r(x)[1][-1]),
    tokens,
)
simple(
    "linear recurrence",
    "state space",
    lambda: {"a": nn.Parameter(torch.rand(WIDTH)), "f": linear(), "head": linear(out=8)},
    lambda m, x: m.head(
        (lambda s: torch.stack([s := torch.sigmoid(m.a) * s + m.f(x[:, t]) for t in range(12)], 1))(
            torch.zeros(2, WIDTH)
        )
    ),
    tokens,
)
simple(
    "delta rule",
    "state space",
    lambda: {"k": linear(), "v": linear(), "q": linear(), "head": linear(out=8)},
    lambda m, x: m.head(_delta(F.normalize(m.q(x), dim=-1), F.normalize(m.k(x), dim=-1), m.v(x))),
    tokens,
)


def _delta(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    memory, found = torch.zeros(len(q), WIDTH, WIDTH), []
    for t in range(q.shape[1]):
        key = k[:, t, :, None]
        memory = memory + 0.5 * (v[:, t, None] - key.mT @ memory) * key
        found.append((q[:, t, None] @ memory)[:, 0])
    return torch.stack(found, 1)


# -- convolutions
def _images(**parts: Callable[[], nn.Module]) -> Callable[[], dict[str, Any]]:
    return lambda: {name: make() for name, make in parts.items()}


simple(
    "dilated and grouped",
    "convolutional",
    _images(
        a=lambda: conv(3), b=lambda: nn.Conv2d(24, 24, 3, padding=2, dilation=2, groups=4), head=lambda: linear(24, 5)
    ),
    lambda m, x: m.head(F.silu(m.b(F.silu(m.a(x)))).mean((2, 3))),
    pixels,
)
simple(
    "spatial attention",
    "convolutional",
    _images(a=lambda: conv(3), s=lambda: conv(2, 1, 7), head=lambda: linear(24, 5)),
    lambda m, x: m.head(
        (
            (h := F.relu(m.a(x))) * torch.sigmoid(m.s(torch.cat((h.mean(1, keepdim=True), h.amax(1, keepdim=True)), 1)))
        ).mean((2, 3))
    ),
    pixels,
)
simple(
    "instance then batch norm",
    "convolutional",
    _images(
        a=lambda: conv(3),
        i=lambda: nn.InstanceNorm2d(24),
        b=lambda: conv(),
        n=lambda: nn.BatchNorm2d(24),
        head=lambda: linear(24, 5),
    ),
    lambda m, x: m.head(F.relu(m.n(m.b(F.relu(m.i(m.a(x)))))).mean((2, 3))),
    pixels,
)
simple(
    "global response norm",
    "convolutional",
    _images(a=lambda: conv(3), b=lambda: conv(), head=lambda: linear(24, 5)),
    lambda m, x: m.head(
        (
            (h := F.gelu(m.b(F.gelu(m.a(x)))))
            * (g := h.norm(dim=(2, 3), keepdim=True))
            / (g.mean(1, keepdim=True) + 1e-6)
        ).mean((2, 3))
    ),
    pixels,
)
simple(
    "volumes",
    "convolutional",
    lambda: {"a": nn.Conv3d(2, 12, 3, padding=1), "b": nn.Conv3d(12, 12, 3, padding=1), "head": linear(12, 5)},
    lambda m, x: m.head(F.relu(m.b(F.relu(m.a(x)))).mean((2, 3, 4))),
    lambda: noise(2, 2, 6, 6, 6),
)

# -- parametrized, tables, routing
simple(
    "weights with unit rows",
    "parametrized",
    layers,
    chain(lambda f, x: F.relu(F.linear(x, F.normalize(f.weight, dim=1) * 1.4, f.bias))),
)
simple(
    "orthogonal parametrization",
    "parametrized",
    lambda: {"layers": stack(3, lambda: nn.utils.parametrizations.orthogonal(linear())), "head": linear(out=8)},
    chain(lambda f, x: torch.tanh(f(x))),
)
simple(
    "learned temperature",
    "parametrized",
    lambda: {"t": nn.Parameter(torch.tensor(2.0)), "f": linear(), "head": linear(out=8)},
    lambda m, x: m.head(m.f(x).softmax(-1).pow(m.t).sqrt() * WIDTH),
)
simple(
    "spline edges",
    "parametrized",
    lambda: {"c": parameter(WIDTH, 6, 24, std=0.1), "head": linear(24, 8)},
    lambda m, x: m.head(torch.einsum("bik,iko->bo", torch.exp(-((x[..., None] - torch.linspace(-2, 2, 6)) ** 2)), m.c)),
)
simple(
    "fourier features",
    "tables",
    lambda: {"b": nn.Parameter(torch.randn(3, 24) * 2, requires_grad=False), "f": linear(), "head": linear(out=8)},
    lambda m, x: m.head(F.relu(m.f(torch.cat(((p := x @ m.b).sin(), p.cos()), -1)))),
    lambda: noise(32, 3),
)
simple(
    "relative positions",
    "tables",
    lambda: {"table": parameter(23, 4, std=0.5), **attention_parts()},
    attended(
        lambda m, q, k, v: (
            (q @ k.mT / 3.5 + m.table[torch.arange(12)[:, None] - torch.arange(12) + 11].permute(2, 0, 1)).softmax(-1)
            @ v
        )
    ),
    tokens,
)
simple(
    "two best experts",
    "routing",
    lambda: {"g": linear(out=6), "w": parameter(6, WIDTH, WIDTH, std=0.14), "head": linear(out=8)},
    lambda m, x: m.head(
        x
        + sum(
            s[:, None] * F.gelu(torch.einsum("bi,bij->bj", x, m.w[e]))
            for s, e in zip(*(part.unbind(-1) for part in m.g(x).softmax(-1).topk(2)), strict=True)
        )
    ),
)
simple(
    "actor and critic",
    "reinforcement",
    lambda: {"body": linear(12, 48), "more": linear(), "actor": linear(out=4), "critic": linear(out=1)},
    lambda m, x: (m.actor(h := torch.tanh(m.more(torch.tanh(m.body(x))))), m.critic(h)),
    lambda: noise(16, 12),
    lambda o: -(o[0].log_softmax(-1)[:, 0] * (1.0 - o[1][:, 0].detach())).mean() + 0.5 * (1.0 - o[1]).square().mean(),
)
simple(
    "dueling values",
    "reinforcement",
    lambda: {"body": linear(12, 48), "value": linear(out=1), "advantage": linear(out=4)},
    lambda m, x: m.value(h := F.relu(m.body(x))) + (a := m.advantage(h)) - a.mean(-1, keepdim=True),
    lambda: noise(16, 12),
)
simple(
    "physics residual",
    "diffusion",
    lambda: {"a": linear(2, 32), "b": linear(32), "c": linear(32, 1)},
    lambda m, x: m.c(torch.tanh(m.b(torch.tanh(m.a(x))))),
    lambda: noise(32, 2),
    lambda o: (o.square() - 0.25).square().mean(),
)
simple(
    "coupling flow",
    "diffusion",
    lambda: {"s": linear(24), "t": linear(24)},
    lambda m, x: torch.cat((x[:, :24], x[:, 24:] * torch.tanh(m.s(x[:, :24])).exp() + m.t(x[:, :24])), -1),
)
simple(
    "variational",
    "diffusion",
    lambda: {"e": linear(out=24), "d": linear(12)},
    lambda m, x: m.d((p := m.e(x))[:, :12] + p[:, 12:].exp() * torch.linspace(-1, 1, 12)),
)

# -- losses
LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "focal": lambda o: (
        (p := F.log_softmax(o, -1)[torch.arange(len(o)), torch.arange(len(o)) % 8]) * -(1 - p.exp()).pow(2)
    ).mean(),
    "triplet": lambda o: F.triplet_margin_loss(o, o.roll(1, 0), o.roll(2, 0)),
    "poisson": lambda o: F.poisson_nll_loss(o, torch.ones_like(o)),
    "dice": lambda o: (
        1 - 2 * (torch.sigmoid(o) * (noise(*o.shape) > 0)).sum() / (torch.sigmoid(o).sum() + o.numel() / 2)
    ),
    "log of sums": lambda o: o.logsumexp(-1).mean(),
    "ranking": lambda o: F.margin_ranking_loss(o[:, 0], o[:, 1], torch.ones(len(o)), margin=0.5),
    "gaussian likelihood": lambda o: F.gaussian_nll_loss(o[:, :4], torch.zeros(len(o), 4), F.softplus(o[:, 4:])),
    "decorrelation": lambda o: (torch.corrcoef(o.T) - torch.eye(8)).square().sum(),
    "ctc": lambda o: F.ctc_loss(
        o.log_softmax(-1)[:, None], torch.tensor([[1, 2, 3]]), torch.tensor([len(o)]), torch.tensor([3])
    ),
}
for _name, _loss in LOSSES.items():
    simple(f"loss {_name}", "losses", layers, chain(lambda f, x: F.relu(f(x))), loss=_loss)


def cases() -> Iterator[Case]:
    yield from CASES
