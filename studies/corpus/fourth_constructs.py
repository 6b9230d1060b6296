"""A fourth set of constructs: every kind that had been wrong, written anew before any of them was predicted; all of it
is held out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
    rows,
    stack,
    tokens,
)

CASES: list[Case] = []
simple = registering(CASES, added=4)


# -- gates and batch statistics, at sizes where they count
def _excited(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    for f, norm, down, up in zip(m.convs, m.norms, m.downs, m.ups, strict=True):
        y = norm(f(x))
        gate = torch.sigmoid(up(F.relu(down(y.mean((-1, -2))))))
        x = F.relu(x + y * gate[..., None, None], inplace=True)
    return m.head(x.mean((-1, -2)))


def _excitations(norm: Any) -> dict[str, Any]:
    return {
        "stem": conv(3, 32),
        "convs": stack(3, lambda: conv(32, 32)),
        "norms": nn.ModuleList(norm(32) for _ in range(3)),
        "downs": stack(3, lambda: linear(32, 8)),
        "ups": stack(3, lambda: linear(8, 32)),
        "head": linear(32, 6),
    }


simple(
    "excitation under few statistics",
    "gates",
    lambda: _excitations(nn.BatchNorm2d),
    _excited,
    lambda: noise(2, 3, 2, 2),
)
simple(
    "excitation under groups",
    "gates",
    lambda: _excitations(lambda n: nn.GroupNorm(8, n)),
    _excited,
    lambda: noise(2, 3, 4, 4),
)
simple(
    "norm of a batch of six",
    "gates",
    lambda: {
        "layers": stack(4),
        "norms": nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(4)),
        "head": linear(out=8),
    },
    lambda m, x: m.head(_normed_rows(m, x)),
    lambda: noise(6, WIDTH),
)
simple(
    "gate of the whole sequence",
    "gates",
    lambda: {"layers": stack(), "gates": stack(), "head": linear(out=8)},
    lambda m, x: m.head(_gated_by_average(m, x)),
    tokens,
)
simple(
    "gate of a running maximum",
    "gates",
    lambda: {"f": linear(), "g": linear(), "head": linear(out=8)},
    lambda m, x: m.head(m.f(x) * torch.sigmoid(m.g(x).cummax(1).values)),
    tokens,
)
simple(
    "channel and pixel gates",
    "gates",
    lambda: {"a": conv(3, 24), "b": conv(24, 24), "p": nn.Conv2d(2, 1, 3, padding=1), "head": linear(24, 6)},
    lambda m, x: m.head(_attended_pixels(m, F.relu(m.a(x))).mean((-1, -2))),
    pixels,
)


def _normed_rows(m: Any, x: Tensor) -> Tensor:
    for f, norm in zip(m.layers, m.norms, strict=True):
        x = x + F.gelu(norm(f(x)))
    return x


def _gated_by_average(m: Any, x: Tensor) -> Tensor:
    for f, g in zip(m.layers, m.gates, strict=True):
        x = x + F.silu(f(x)) * torch.tanh(g(x.mean(1, keepdim=True)))
    return x


def _attended_pixels(m: Any, x: Tensor) -> Tensor:
    y = m.b(x)
    seen = torch.stack((y.mean(1), y.amax(1)), 1)
    return x + y * torch.sigmoid(m.p(seen))


# -- written in place, hooked, stopped
def _written(m: Any, x: Tensor) -> Tensor:
    for f in m.layers:
        y = f(x)
        F.leaky_relu(y, 0.2, inplace=True)
        x = y + x
    return m.head(x)


def _half_stopped(m: Any, x: Tensor) -> Tensor:
    for f in m.layers:
        y = torch.tanh(f(x))
        x = x + torch.where(torch.arange(WIDTH) % 2 == 0, y, y.detach())
    return m.head(x)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 2.0


simple("written in place", "stopped gradients", layers, _written)
simple("every other channel stopped", "stopped gradients", layers, _half_stopped)
simple("doubled gradient", "stopped gradients", layers, chain(lambda f, x: x + Doubled.apply(F.gelu(f(x)))))
simple(
    "target that follows",
    "stopped gradients",
    lambda: {"f": linear(), "g": linear(), "p": linear()},
    lambda m, x: (m.p(F.relu(m.f(x))) - F.relu(m.g(x)).detach()).square().mean(-1),
)

# -- one weight in several places
simple(
    "transposed on the way back",
    "shared weights",
    lambda: {"a": parameter(WIDTH, 64, std=0.14), "b": parameter(64, 32, std=0.12), "head": linear(out=8)},
    lambda m, x: m.head(torch.tanh(torch.tanh(torch.tanh(torch.tanh(x @ m.a) @ m.b) @ m.b.T) @ m.a.T)),
)
simple(
    "three steps of one block",
    "shared weights",
    lambda: {"n": nn.LayerNorm(WIDTH), "up": linear(out=96), "down": linear(96, WIDTH), "head": linear(out=8)},
    lambda m, x: m.head(_again(m, x, 3)),
)
simple(
    "shared queries, own values",
    "shared weights",
    lambda: {"q": linear(), "k": linear(), "values": stack(2), "head": linear(out=8)},
    lambda m, x: m.head(_twice_attended(m, x)),
    tokens,
)
simple(
    "siamese difference",
    "shared weights",
    lambda: {"f": linear(), "g": linear(), "head": linear(out=8)},
    lambda m, x: m.head((_two(m, x[:, 0]) - _two(m, x[:, 1])).abs()),
    lambda: noise(16, 2, WIDTH),
)


def _again(m: Any, x: Tensor, count: int) -> Tensor:
    for _ in range(count):
        x = x + m.down(F.gelu(m.up(m.n(x))))
    return x


def _twice_attended(m: Any, x: Tensor) -> Tensor:
    for value in m.values:
        x = x + (m.q(x) @ m.k(x).mT / 7).softmax(-1) @ value(x)
    return x


def _two(m: Any, x: Tensor) -> Tensor:
    return F.relu(m.g(F.relu(m.f(x))))


# -- what shares randomness
simple("branch and its square", "shared randomness", layers, chain(lambda f, x: x + (y := f(x)) + 0.3 * y.square()))
simple("product with the skip", "shared randomness", layers, chain(lambda f, x: x * (1 + 0.5 * torch.tanh(f(x)))))
simple(
    "cat of the running sum",
    "shared randomness",
    lambda: {"layers": nn.ModuleList(linear((n + 1) * WIDTH, WIDTH) for n in range(3)), "head": linear(out=8)},
    lambda m, x: m.head(_sums(m, x)),
)
simple(
    "sorted channels",
    "shared randomness",
    layers,
    chain(lambda f, x: x + F.relu(f(x.sort(-1).values))),
)


def _sums(m: Any, x: Tensor) -> Tensor:
    seen = [x]
    for f in m.layers:
        seen.append(seen[-1] + F.relu(f(torch.cat(seen, -1))))
    return seen[-1]


# -- attention
def _local(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    far = (torch.arange(12)[:, None] - torch.arange(12)).abs() > 2
    return (q @ k.mT / 3.5).masked_fill(far, -math.inf).softmax(-1) @ v


def _gated_linear(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    decay = 0.9 ** (torch.arange(12)[:, None] - torch.arange(12)).clamp_min(0)
    return (q @ k.mT * decay).tril() @ v / 12


for _name, _way in {
    "within two": _local,
    "decayed and linear": _gated_linear,
    "of normalized keys": lambda m, q, k, v: (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * 8).softmax(-1) @ v,
    "of distances": lambda m, q, k, v: (-torch.cdist(q, k).square() / 7).softmax(-1) @ v,
    "minus the mean": lambda m, q, k, v: ((q @ k.mT / 3.5).softmax(-1) - 1 / 12) @ v,
}.items():
    simple(f"attention {_name}", "attention", attention_parts, attended(_way), tokens)

# -- recurrent, state space
simple(
    "coupled gates",
    "recurrent",
    lambda: {"x": linear(out=2 * WIDTH), "h": linear(out=2 * WIDTH), "head": linear(out=8)},
    lambda m, x: m.head(_coupled(m, x)),
    lambda: noise(4, 8, WIDTH),
)
simple(
    "two layers of GRU and attention",
    "recurrent",
    lambda: {"r": nn.GRU(WIDTH, 32, 2, batch_first=True), "q": linear(32), "head": linear(32, 8)},
    lambda m, x: m.head((m.q(y := m.r(x)[0]) @ y.mT / 6).softmax(-1) @ y),
    lambda: noise(4, 8, WIDTH),
)
simple(
    "diagonal state",
    "state space",
    lambda: {"i": linear(), "a": nn.Parameter(torch.linspace(0.5, 3.0, WIDTH)), "o": linear(), "head": linear(out=8)},
    lambda m, x: m.head(x + m.o(_scanned(torch.sigmoid(m.a), m.i(x)))),
    tokens,
)


def _coupled(m: Any, x: Tensor) -> Tensor:
    h = x.new_zeros(len(x), WIDTH)
    for step in m.x(x).unbind(1):
        f, c = (step + m.h(h)).chunk(2, -1)
        h = torch.sigmoid(f) * h + (1 - torch.sigmoid(f)) * torch.tanh(c)
    return h


def _scanned(decay: Tensor, x: Tensor) -> Tensor:
    h, seen = torch.zeros_like(x[:, 0]), []
    for step in x.unbind(1):
        h = decay * h + step
        seen.append(h)
    return torch.stack(seen, 1)


# -- convolutions
simple(
    "volumes with norms of instances",
    "convolutional",
    lambda: {
        "a": nn.Conv3d(1, 16, 3, padding=1),
        "n": nn.InstanceNorm3d(16),
        "b": nn.Conv3d(16, 16, 3, stride=2),
        "head": linear(16, 6),
    },
    lambda m, x: m.head(F.gelu(m.b(F.gelu(m.n(m.a(x))))).mean((-1, -2, -3))),
    lambda: noise(2, 1, 6, 6, 6),
)
simple(
    "standardized and scaled",
    "convolutional",
    lambda: {
        "convs": stack(3, lambda: conv(24, 24)),
        "stem": conv(3, 24),
        "g": parameter(3, 24),
        "head": linear(24, 6),
    },
    lambda m, x: m.head(_standardized(m, m.stem(x)).mean((-1, -2))),
    pixels,
)
simple(
    "up and down again",
    "convolutional",
    lambda: {
        "d": nn.Conv2d(3, 24, 4, 2, 1),
        "u": nn.ConvTranspose2d(24, 16, 4, 2, 1),
        "n": nn.BatchNorm2d(24),
        "o": conv(19, 3),
    },
    lambda m, x: m.o(torch.cat((x, F.elu(m.u(F.elu(m.n(m.d(x)))))), 1)),
    pixels,
)


def _standardized(m: Any, x: Tensor) -> Tensor:
    for f, g in zip(m.convs, m.g, strict=True):
        w = f.weight - f.weight.mean((1, 2, 3), keepdim=True)
        w = w / (w.square().sum((1, 2, 3), keepdim=True).sqrt() + 1e-6)
        x = x + 0.3 * F.conv2d(F.relu(x), w * g[:, None, None, None], f.bias, padding=1)
    return x


# -- routing
simple(
    "three of eight experts",
    "routing",
    lambda: {"r": linear(out=8), "experts": stack(8), "head": linear(out=8)},
    lambda m, x: m.head(_routed(m, x)),
)
simple(
    "slots for tokens",
    "routing",
    lambda: {"phi": parameter(WIDTH, 6, std=0.2), "experts": stack(3), "head": linear(out=8)},
    lambda m, x: m.head(_slotted(m, x)),
    tokens,
)


def _routed(m: Any, x: Tensor) -> Tensor:
    weights, chosen = m.r(x).softmax(-1).topk(3)
    every = torch.stack([F.relu(expert(x)) for expert in m.experts], 1)
    return x + (weights[..., None] * every.gather(1, chosen[..., None].expand(-1, -1, WIDTH))).sum(1)


def _slotted(m: Any, x: Tensor) -> Tensor:
    scores = x @ m.phi
    inputs = scores.softmax(1).mT @ x
    outputs = torch.cat([F.gelu(f(part)) for f, part in zip(m.experts, inputs.chunk(3, 1), strict=True)], 1)
    return x + scores.softmax(-1) @ outputs


# -- how weights are drawn
def _spread(m: Any) -> None:
    with torch.no_grad():
        for number, f in enumerate(m.layers):
            f.weight.copy_(torch.linalg.qr(torch.randn(WIDTH, WIDTH))[0] * (1 + 0.2 * number))
            f.bias.uniform_(-0.5, 0.5)


def _sparse(m: Any) -> None:
    with torch.no_grad():
        for f in m.layers:
            f.weight.mul_(torch.rand_like(f.weight) < 0.2).mul_(5**0.5)


simple("drawn orthogonal and growing", "initialization", layers, chain(lambda f, x: torch.tanh(f(x))), prepare=_spread)
simple("drawn with a fifth left", "initialization", layers, chain(lambda f, x: x + F.relu(f(x))), prepare=_sparse)

# -- losses
LABELS = ids(8, 16, seed=5)
TARGETS = noise(16, 8, seed=5)
LOSSES = {
    "of two heads": lambda out: F.cross_entropy(out, LABELS) + 0.1 * out.square().mean(),
    "hinge of pairs": lambda out: F.relu(1 - (out[::2] - out[1::2])).mean(),
    "log cosh": lambda out: torch.log(torch.cosh(out - TARGETS)).mean(),
    "smooth": lambda out: F.smooth_l1_loss(out, TARGETS),
    "clipped to a ratio": lambda out: -torch.min(r := (out - TARGETS).exp().clamp(max=5), r.clamp(0.8, 1.2)).mean(),
}
for _name, _loss in LOSSES.items():
    simple(f"loss {_name}", "losses", layers, chain(lambda f, x: x + F.gelu(f(x))), rows, _loss)


def cases() -> Iterator[Case]:
    return iter(CASES)
