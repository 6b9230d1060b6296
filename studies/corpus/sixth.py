"""The sixth set: 100 small models, each a whole network, written and listed before any of them was predicted.

The first part is our own code in the manner of public repositories, the second 43 families of `transformers` at two
layers. `studies.corpus.fresh` predicts each once.
"""

# ruff: noqa: E501

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import spectral_norm as old_spectral_norm
from torch.nn.utils.parametrizations import weight_norm

from studies.corpus.case import Case, ids, noise

D = 48
EDGES = ids(20, 2, 60, seed=8)


class Net(nn.Module):
    """Named parts and what the forward pass does with them."""

    def __init__(self, run: Callable[..., Tensor], **parts: nn.Module | nn.Parameter):
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.run(self, *inputs)


def conv(a: int, b: int, size: int = 3, **settings: Any) -> nn.Conv2d:
    return nn.Conv2d(a, b, size, padding=settings.pop("padding", size // 2), **settings)


def block(a: int, b: int, **settings: Any) -> nn.Sequential:
    return nn.Sequential(conv(a, b, bias=False, **settings), nn.BatchNorm2d(b), nn.ReLU())


def mlp(*sizes: int, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


def many(count: int, make: Callable[[], nn.Module]) -> nn.ModuleList:
    return nn.ModuleList(make() for _ in range(count))


def biased(layer: Any, value: float) -> Any:
    nn.init.constant_(layer.bias, value)
    return layer


# -- images


def detector() -> nn.Module:
    towers = {"cls": nn.Sequential(conv(32, 32), nn.ReLU(), conv(32, 32), nn.ReLU()), "stem": block(3, 32, stride=2)}
    return Net(lambda m, x: m.scores(m.cls(m.stem(x))), scores=biased(conv(32, 9), -4.6), **towers)


def pyramid() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        low = m.low(x)
        high = m.high(low)
        both = m.side(low) + F.interpolate(m.top(high), scale_factor=2, mode="nearest")
        return m.out(both)

    parts = {"low": block(3, 32, stride=2), "high": block(32, 48, stride=2), "out": conv(24, 24)}
    return Net(run, side=conv(32, 24, 1), top=conv(48, 24, 1), **parts)


def unet() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        one = m.one(x)
        two = m.two(F.max_pool2d(one, 2))
        return m.out(m.last(torch.cat([m.up(two), one], 1)))

    parts = {"one": block(3, 16), "two": block(16, 32), "last": block(32, 16), "out": conv(16, 4, 1)}
    return Net(run, up=nn.ConvTranspose2d(32, 16, 2, stride=2), **parts)


def generator() -> nn.Module:
    layers = [nn.ConvTranspose2d(D, 64, 4, 1, 0), nn.BatchNorm2d(64), nn.ReLU()]
    layers += [nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1)]
    return nn.Sequential(*layers, nn.Tanh())


def discriminator() -> nn.Module:
    layers = [nn.Sequential(old_spectral_norm(conv(a, b, 4, stride=2, padding=1)), nn.LeakyReLU(0.2)) for a, b in ((3, 32), (32, 64))]  # fmt: skip
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 1))


def super_resolution() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        start = x = m.head(x)
        for each in m.body:
            x = x + 0.1 * each(x)
        return m.tail(F.pixel_shuffle(m.up(x + start), 2))

    body = many(3, lambda: nn.Sequential(conv(32, 32), nn.ReLU(), conv(32, 32)))
    return Net(run, head=conv(3, 32), body=body, up=conv(32, 128), tail=conv(32, 3))


def excited() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.stem(x)
        weight = m.gate(x.mean((2, 3)))[..., None, None].sigmoid()
        return m.head((x + m.body(x) * weight).mean((2, 3)))

    return Net(run, stem=block(3, 48), body=block(48, 48), gate=mlp(48, 12, 48), head=nn.Linear(48, 10))


def attended() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.stem(x)
        both = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        return m.head((x * m.where(both).sigmoid()).mean((2, 3)))

    return Net(run, stem=block(3, 32), where=conv(2, 1, 7), head=nn.Linear(32, 10))


def convnext() -> nn.Module:
    class Block(nn.Module):
        def __init__(self, width: int = 40):
            super().__init__()
            self.depth, self.norm = conv(width, width, 7, groups=width), nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.gamma = nn.Parameter(0.1 * torch.ones(width))

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(self.depth(x).permute(0, 2, 3, 1))
            return x + (self.gamma * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)

    return nn.Sequential(conv(3, 40, 4, stride=4, padding=0), Block(), Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 10))  # fmt: skip


def rep_vgg() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.stem(x)
        for one, three, same in zip(m.ones, m.threes, m.sames, strict=True):
            x = F.relu(one(x) + three(x) + same(x))
        return m.head(x.mean((2, 3)))

    def normed(size: int) -> nn.Module:
        return nn.Sequential(conv(32, 32, size, bias=False), nn.BatchNorm2d(32))

    parts = {"ones": many(2, lambda: normed(1)), "threes": many(2, lambda: normed(3)), "head": nn.Linear(32, 10)}
    return Net(run, stem=block(3, 32), sames=many(2, lambda: nn.BatchNorm2d(32)), **parts)


def res2net() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.stem(x)
        pieces, made = x.chunk(4, 1), []
        for number, piece in enumerate(pieces):
            made.append(piece if number == 0 else m.convs[number - 1](piece + made[-1] if number > 1 else piece))
        return m.out(torch.cat(made, 1) + x)

    return Net(run, stem=block(3, 64), convs=many(3, lambda: block(16, 16)), out=conv(64, 8, 1))


def dense_net() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.stem(x)
        for each in m.layers:
            x = torch.cat([x, each(x)], 1)
        return m.head(x.mean((2, 3)))

    layers = nn.ModuleList(
        nn.Sequential(nn.BatchNorm2d(24 + 12 * n), nn.ReLU(), conv(24 + 12 * n, 12)) for n in range(4)
    )
    return Net(run, stem=conv(3, 24), layers=layers, head=nn.Linear(72, 10))


def inception() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.stem(x)
        return m.out(torch.cat([m.one(x), m.three(x), m.five(x), m.pool(F.avg_pool2d(x, 3, 1, 1))], 1))

    parts = {"one": block(32, 16), "three": block(32, 16), "pool": conv(32, 16, 1), "out": conv(64, 8, 1)}
    return Net(run, stem=block(3, 32), five=nn.Sequential(conv(32, 16, 5), nn.ReLU()), **parts)


def transformer_of_space() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        theta = m.where(x.flatten(1)).view(-1, 2, 3)
        return m.out(F.grid_sample(m.stem(x), F.affine_grid(theta, [*x.shape[:1], 32, 16, 16], align_corners=False), align_corners=False))  # fmt: skip

    last = nn.Linear(32, 6)
    nn.init.normal_(last.weight, std=0.01)
    last.bias.data.copy_(torch.tensor([1.0, 0, 0, 0, 1, 0]))
    return Net(run, stem=block(3, 32), where=nn.Sequential(nn.Linear(768, 32), nn.ReLU(), last), out=conv(32, 8))


def mobile() -> nn.Module:
    def each(a: int, b: int) -> nn.Module:
        return nn.Sequential(conv(a, a, groups=a, bias=False), nn.BatchNorm2d(a), nn.ReLU6(), conv(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.Hardswish())  # fmt: skip

    return nn.Sequential(block(3, 16, stride=2), each(16, 32), each(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))  # fmt: skip


def group_normed() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.stem(x)
        for norm, body in zip(m.norms, m.bodies, strict=True):
            x = x + body(F.silu(norm(x)))
        return m.out(x)

    return Net(run, stem=conv(3, 64), norms=many(3, lambda: nn.GroupNorm(2, 64)), bodies=many(3, lambda: conv(64, 64)), out=conv(64, 3))  # fmt: skip


def color_classifier() -> nn.Module:
    return nn.Sequential(conv(3, 32, 5, stride=2), nn.InstanceNorm2d(32), nn.ELU(), conv(32, 64, stride=2), nn.InstanceNorm2d(64), nn.ELU(), nn.Flatten(), nn.Linear(1024, 10))  # fmt: skip


def patch_mixer() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.patch(x).flatten(2).transpose(1, 2)
        for one, two, tokens, channels in zip(m.one, m.two, m.tokens, m.channels, strict=True):
            x = x + tokens(one(x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(two(x))
        return m.head(x.mean(1))

    gelu = partial(mlp, act=nn.GELU)
    parts = {"tokens": many(2, lambda: gelu(16, 32, 16)), "channels": many(2, lambda: gelu(D, 96, D))}
    norms = {name: many(2, lambda: nn.LayerNorm(D)) for name in ("one", "two")}
    return Net(run, patch=conv(3, D, 4, stride=4, padding=0), head=nn.Linear(D, 10), **parts, **norms)


# -- sequences


class Attention(nn.Module):
    """`kind`: plain, rotary, alibi, cosine, sigmoid, linear, multi-query."""

    def __init__(self, kind: str = "plain", width: int = D, heads: int = 4):
        super().__init__()
        self.kind, self.heads, small = kind, heads, width // heads
        shared = kind == "multi-query"
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = (nn.Linear(width, small if shared else width, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (-1, D // self.heads)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        size = x.shape[1]
        if self.kind == "rotary":
            angles = torch.arange(size)[:, None] * 100.0 ** -(torch.arange(6) / 6)
            cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
            q, k = (t * cos + torch.cat([-t[..., 6:], t[..., :6]], -1) * sin for t in (q, k))
        if self.kind == "cosine":
            q, k = 10.0 * F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        if self.kind == "linear":
            q, k = F.elu(q) + 1, F.elu(k) + 1
            y = (q @ (k.transpose(-1, -2) @ v)) / (q @ k.sum(-2, keepdim=True).transpose(-1, -2))
        else:
            scores = q @ k.transpose(-1, -2) / (1.0 if self.kind == "cosine" else q.shape[-1] ** 0.5)
            if self.kind == "alibi":
                distance = torch.arange(size)[:, None] - torch.arange(size)
                scores = scores - distance.abs() * 2.0 ** -torch.arange(1, self.heads + 1)[:, None, None]
            forbidden = torch.full((size, size), -torch.inf).triu(1)
            y = (
                (scores - math.log(size)).sigmoid() if self.kind == "sigmoid" else (scores + forbidden).softmax(-1)
            ) @ v
        return self.out(y.transpose(1, 2).flatten(2))


def stack(attention: Callable[[], nn.Module], depth: int = 3, run: Any = None, **parts: Any) -> nn.Module:
    def plain(m: Any, tokens: Tensor) -> Tensor:
        x = m.table(tokens)
        for n1, a, n2, f in zip(m.n1, m.attentions, m.n2, m.feeds, strict=True):
            x = x + a(n1(x))
            x = x + f(n2(x))
        return m.head(m.last(x))

    norms = {"n1": many(depth, lambda: nn.LayerNorm(D)), "n2": many(depth, lambda: nn.LayerNorm(D))}
    parts = {"last": nn.LayerNorm(D), "feeds": many(depth, lambda: mlp(D, 96, D, act=nn.GELU)), **norms, **parts}
    return Net(
        run or plain, table=nn.Embedding(100, D), attentions=many(depth, attention), head=nn.Linear(D, 100), **parts
    )


def u_stack() -> nn.Module:
    def run(m: Any, tokens: Tensor) -> Tensor:
        x, kept = m.table(tokens), []
        for number in range(4):
            x = x + kept.pop() if number > 1 else x
            x = x + m.attentions[number](m.n1[number](x))
            x = x + m.feeds[number](m.n2[number](x))
            kept.append(x) if number < 2 else None
        return m.head(m.last(x))

    return stack(Attention, 4, run)


def looped() -> nn.Module:
    def run(m: Any, tokens: Tensor) -> Tensor:
        x = start = m.table(tokens)
        for _ in range(4):
            x = x + start
            x = x + m.attentions[0](m.n1[0](x))
            x = x + m.feeds[0](m.n2[0](x))
        return m.head(m.last(x))

    return stack(Attention, 1, run)


def averaged() -> nn.Module:
    def run(m: Any, tokens: Tensor) -> Tensor:
        seen = [m.table(tokens)]
        for number in range(3):
            x = torch.stack(seen).mean(0)
            x = x + m.attentions[number](m.n1[number](x))
            seen.append(x + m.feeds[number](m.n2[number](x)))
        return m.head(m.last(seen[-1]))

    return stack(Attention, 3, run)


def hyper() -> nn.Module:
    def run(m: Any, tokens: Tensor) -> Tensor:
        streams = m.table(tokens)[..., None, :].expand(-1, -1, 3, -1)
        for number in range(2):
            mixed = m.mixes[number]
            x = (streams * m.reads[number][:, None]).sum(-2)
            made = m.feeds[number](m.n2[number](x))
            streams = torch.einsum("ij,btjd->btid", mixed, streams) + m.writes[number][:, None] * made[..., None, :]
        return m.head(m.last(streams.mean(-2)))

    mixes = nn.ParameterList(nn.Parameter(torch.eye(3) * 0.8 + 0.2 / 3) for _ in range(2))
    reads = nn.ParameterList(nn.Parameter(torch.ones(3) / 3) for _ in range(2))
    writes = nn.ParameterList(nn.Parameter(torch.ones(3)) for _ in range(2))
    return stack(Attention, 2, run, mixes=mixes, reads=reads, writes=writes)


def experts() -> nn.Module:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.experts = nn.Linear(D, 4, bias=False), many(4, lambda: mlp(D, 64, D, act=nn.SiLU))

        def forward(self, x: Tensor) -> Tensor:
            weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                share = (weights * (chosen == number)).sum(-1, keepdim=True)
                out = out + share * expert(x)
            return out

    return stack(Attention, 2, None, feeds=many(2, Mixture))


def soft_experts() -> nn.Module:
    class Soft(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.experts = nn.Linear(D, 3), many(3, lambda: nn.Linear(D, D))

        def forward(self, x: Tensor) -> Tensor:
            return (torch.stack([e(x) for e in self.experts], -1) * self.gate(x).softmax(-1)[..., None, :]).sum(-1)

    return stack(Attention, 2, None, feeds=many(2, Soft))


def recurrent(kind: Callable[..., nn.Module], **settings: Any) -> nn.Module:
    size = D * (2 if settings.get("bidirectional") else 1)
    run = lambda m, tokens: m.head(m.cells(m.table(tokens))[0])  # noqa: E731
    return Net(
        run, table=nn.Embedding(100, D), cells=kind(D, D, batch_first=True, **settings), head=nn.Linear(size, 100)
    )


def wave_net() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x, skips = m.first(x), 0.0
        for number, (both, out) in enumerate(zip(m.both, m.outs, strict=True)):
            a, b = both(F.pad(x, (2**number, 0))).chunk(2, 1)
            y = out(torch.tanh(a) * torch.sigmoid(b))
            skips, x = skips + y, x + y
        return m.head(F.relu(skips))

    both = nn.ModuleList(nn.Conv1d(32, 64, 2, dilation=2**n) for n in range(4))
    return Net(run, first=nn.Conv1d(4, 32, 1), both=both, outs=many(4, lambda: nn.Conv1d(32, 32, 1)), head=nn.Conv1d(32, 8, 1))  # fmt: skip


def temporal() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.first(x)
        for number, layer in enumerate(m.layers):
            x = F.relu(x + F.relu(layer(F.pad(x, (2 * 2**number, 0)))))
        return m.head(x[..., -1])

    layers = nn.ModuleList(weight_norm(nn.Conv1d(32, 32, 3, dilation=2**n)) for n in range(3))
    return Net(run, first=nn.Conv1d(4, 32, 1), layers=layers, head=nn.Linear(32, 5))


def fourier() -> nn.Module:
    class Mix(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real

    return stack(Mix, 2)


def filtered() -> nn.Module:
    class Filter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(0.02 * torch.randn(9, D, 2))

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.irfft(torch.fft.rfft(x, dim=1, norm="ortho") * torch.view_as_complex(self.weight), n=16, dim=1, norm="ortho")  # fmt: skip

    return stack(Filter, 2)


def gated_mlp() -> nn.Module:
    class Spatial(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.norm, self.down = nn.Linear(D, 96), nn.LayerNorm(48), nn.Linear(48, D)
            self.mix = biased(nn.Linear(16, 16), 1.0)
            nn.init.normal_(self.mix.weight, std=1e-3)

        def forward(self, x: Tensor) -> Tensor:
            u, v = F.gelu(self.up(x)).chunk(2, -1)
            return self.down(u * self.mix(self.norm(v).transpose(1, 2)).transpose(1, 2))

    return stack(Spatial, 3)


def shifted() -> nn.Module:
    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Parameter(torch.rand(D))
            self.key, self.receive, self.value = (nn.Linear(D, D, bias=False) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            before = F.pad(x, (0, 0, 1, -1))
            mixed = x * self.mix + before * (1 - self.mix)
            return self.receive(mixed).sigmoid() * self.value(F.relu(self.key(mixed)).square())

    return stack(Shift, 3)


def retention() -> nn.Module:
    class Retain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts, self.norm = many(4, lambda: nn.Linear(D, D, bias=False)), nn.GroupNorm(1, D)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v, g = (part(x) for part in self.parts)
            t = torch.arange(x.shape[1])
            decay = torch.where(t[:, None] >= t, 0.9 ** (t[:, None] - t).clamp(min=0), 0.0)
            y = (q @ k.transpose(1, 2) * D**-0.5 * decay) @ v
            return F.silu(g) * self.norm(y.flatten(0, 1)).view_as(y)

    return stack(Retain, 2)


def scanned() -> nn.Module:
    class Scan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.value, self.out = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)

        def forward(self, x: Tensor) -> Tensor:
            keep, new, state, seen = self.gate(x).sigmoid(), self.value(x), torch.zeros_like(x[:, 0]), []
            for t in range(x.shape[1]):
                state = keep[:, t] * state + (1 - keep[:, t]) * new[:, t]
                seen.append(state)
            return self.out(torch.stack(seen, 1))

    return stack(Scan, 1)


def latent() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        latents, data = m.latents.expand(len(x), -1, -1), m.data(x)
        latents = latents + m.cross(m.one(latents), data, data, need_weights=False)[0]
        latents = latents + m.own(m.two(latents), m.two(latents), m.two(latents), need_weights=False)[0]
        return m.head(latents.mean(1))

    parts = {name: nn.MultiheadAttention(D, 4, batch_first=True) for name in ("cross", "own")}
    return Net(run, latents=nn.Parameter(torch.randn(6, D) * 0.5), data=nn.Linear(8, D), one=nn.LayerNorm(D), two=nn.LayerNorm(D), head=nn.Linear(D, 5), **parts)  # fmt: skip


def encoder_decoder() -> nn.Module:
    made = nn.Transformer(D, 4, 1, 1, 96, 0.0, batch_first=True)
    return Net(lambda m, x: m.head(m.both(m.data(x), m.data(x.flip(1)))), both=made, data=nn.Linear(8, D), head=nn.Linear(D, 5))  # fmt: skip


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(D, 4, 96, 0.0, activation="gelu", batch_first=True, norm_first=True)
    return Net(lambda m, x: m.head(m.layers(m.data(x))), layers=nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), data=nn.Linear(8, D), head=nn.Linear(D, 5))  # fmt: skip


# -- tables, graphs, and others


def crossed() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        start, y = x, x
        for cross in m.crosses:
            y = start * cross(y) + y
        return m.head(torch.cat([y, m.deep(x)], -1))

    return Net(run, crosses=many(3, lambda: nn.Linear(32, 32)), deep=mlp(32, 64, 64), head=nn.Linear(96, 1))


def factorized() -> nn.Module:
    def run(m: Any, tokens: Tensor) -> Tensor:
        rows = m.table(tokens)
        pairs = 0.5 * (rows.sum(1).square() - rows.square().sum(1)).sum(-1, keepdim=True)
        return m.first(tokens).sum(1) + pairs + m.deep(rows.flatten(1))

    return Net(run, table=nn.Embedding(100, 8), first=nn.Embedding(100, 1), deep=mlp(128, 64, 1))


def highway() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.first(x)
        for gate, body in zip(m.gates, m.bodies, strict=True):
            share = gate(x).sigmoid()
            x = share * F.relu(body(x)) + (1 - share) * x
        return m.head(x)

    gates = many(4, lambda: biased(nn.Linear(D, D), -2.0))
    return Net(run, first=nn.Linear(32, D), gates=gates, bodies=many(4, lambda: nn.Linear(D, D)), head=nn.Linear(D, 5))


def maxout() -> nn.Module:
    run = lambda m, x: m.head(m.two(m.one(x).unflatten(-1, (D, 3)).amax(-1)).unflatten(-1, (D, 3)).amax(-1))  # noqa: E731
    return Net(run, one=nn.Linear(32, 3 * D), two=nn.Linear(D, 3 * D), head=nn.Linear(D, 5))


def self_normalizing() -> nn.Module:
    made = mlp(32, 64, 64, 64, 5, act=nn.SELU)
    for layer in made:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
            nn.init.zeros_(layer.bias)
    return made


def residual_table() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.first(x)
        for norm, body in zip(m.norms, m.bodies, strict=True):
            x = x + body(norm(x))
        return m.head(F.relu(m.last(x)))

    return Net(run, first=nn.Linear(32, D), norms=many(3, lambda: nn.BatchNorm1d(D)), bodies=many(3, lambda: mlp(D, 96, D)), last=nn.BatchNorm1d(D), head=nn.Linear(D, 1))  # fmt: skip


def graph(kind: str) -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        source, target = EDGES
        degree = torch.bincount(target, minlength=20).clamp(min=1)[:, None]
        for number, layer in enumerate(m.layers):
            if kind == "edges":
                message = layer(torch.cat([x[target], x[source] - x[target]], -1))
            elif kind == "attention":
                h = layer(x)
                weight = F.leaky_relu(m.scores[number](torch.cat([h[source], h[target]], -1)), 0.2).exp()
                total = torch.zeros(20, 1).index_add(0, target, weight)
                message = h[source] * (weight / total[target])
            else:
                message = layer(x)[source]
            y = torch.zeros(20, message.shape[-1]).index_add(0, target, message)
            y = y / degree if kind != "attention" else y
            x = F.relu(m.own[number](x) + y if kind == "isomorphism" else y)
        return m.head(x)

    sizes = ((16, D), (D, D))
    layers = nn.ModuleList(nn.Linear(2 * a if kind == "edges" else a, b) for a, b in sizes)
    own = nn.ModuleList(nn.Linear(a, b) for a, b in sizes)
    return Net(run, layers=layers, own=own if kind == "isomorphism" else nn.Identity(), scores=many(2, lambda: nn.Linear(2 * D, 1)) if kind == "attention" else nn.Identity(), head=nn.Linear(D, 4))  # fmt: skip


def siamese() -> nn.Module:
    run = lambda m, x, y: F.cosine_similarity(m.body(x), m.body(y), dim=-1)  # noqa: E731
    return Net(run, body=mlp(32, 64, D))


def prototypes() -> nn.Module:
    return Net(lambda m, x: -torch.cdist(m.body(x), m.centres), body=mlp(32, 64, D), centres=nn.Parameter(torch.randn(5, D)))  # fmt: skip


def variational() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        mean, spread = m.encode(x).chunk(2, -1)
        return m.decode(mean + (0.5 * spread).exp() * noise(*mean.shape, seed=3))

    return Net(run, encode=mlp(32, 64, 32), decode=mlp(16, 64, 32))


def coupled() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        for net in m.nets:
            scale, shift = net(a).chunk(2, -1)
            a, b = b * torch.tanh(scale).exp() + shift, a
        return torch.cat([a, b], -1)

    return Net(run, nets=many(3, lambda: mlp(16, 64, 32)))


def flowing() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.first(x)
        for _ in range(4):
            x = x + 0.25 * m.field(x)
        return m.head(x)

    return Net(run, first=nn.Linear(32, D), field=mlp(D, 64, D, act=nn.Tanh), head=nn.Linear(D, 5))


def adapted(kind: str) -> nn.Module:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(D, D)
            self.down, self.up = nn.Linear(D, 4, bias=False), nn.Linear(4, D, bias=False)
            nn.init.normal_(self.up.weight, std=0.3)
            self.scale = nn.Parameter(torch.ones(D))

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) * self.scale if kind == "ia3" else self.base(x) + 2.0 * self.up(self.down(x))

    return Net(lambda m, x: m.head(m.two(F.gelu(m.one(F.gelu(m.first(x)))))), first=nn.Linear(32, D), one=Adapted(), two=Adapted(), head=nn.Linear(D, 5))  # fmt: skip


def own_cases() -> Iterator[tuple[str, Callable[[], nn.Module], Callable[[], Any]]]:
    image, text, table = partial(noise, 4, 3, 16, 16), partial(ids, 100, 2, 16), partial(noise, 16, 32)
    wave, rows, nodes = partial(noise, 2, 4, 24), partial(noise, 3, 12, 8), partial(noise, 20, 16)
    for make in (detector, pyramid, unet, discriminator, super_resolution, excited, attended, convnext, rep_vgg, res2net, dense_net, inception, transformer_of_space, mobile, group_normed, color_classifier, patch_mixer):  # fmt: skip
        yield make.__name__, make, image
    yield "generator", generator, partial(noise, 4, D, 1, 1)
    for kind in ("rotary", "alibi", "cosine", "sigmoid", "linear", "multi-query"):
        yield f"{kind} attention", partial(stack, partial(Attention, kind)), text
    for make in (u_stack, looped, averaged, hyper, experts, soft_experts, fourier, filtered, gated_mlp, shifted, retention, scanned):  # fmt: skip
        yield make.__name__, make, text
    yield "lstm", partial(recurrent, nn.LSTM), text
    yield "gru both ways", partial(recurrent, nn.GRU, bidirectional=True), text
    for make, batch in ((wave_net, wave), (temporal, wave), (latent, rows), (encoder_decoder, rows), (encoder, rows)):
        yield make.__name__, make, batch
    for make in (crossed, highway, maxout, self_normalizing, residual_table, prototypes, variational, coupled, flowing):
        yield make.__name__, make, table
    yield "factorized", factorized, text
    for kind in ("mean", "isomorphism"):
        yield f"graph {kind}", partial(graph, kind), nodes
    yield "siamese", siamese, lambda: (noise(16, 32), noise(16, 32, seed=1))
    yield "ia3", partial(adapted, "ia3"), table


FAMILIES = [
    "apertus",
    "aria_text",
    "bart",
    "bitnet",
    "bloom",
    "cohere",
    "convbert",
    "deberta-v2",
    "diffllama",
    "doge",
    "eurobert",
    "exaone4",
    "falcon_mamba",
    "fnet",
    "gemma2",
    "glm4",
    "gpt2",
    "gpt_oss",
    "granitemoe",
    "jetmoe",
    "lfm2",
    "mamba",
    "megatron-bert",
    "minimax",
    "modernbert",
    "mpnet",
    "mpt",
    "nanochat",
    "nemotron",
    "nomic_bert",
    "nystromformer",
    "olmo2",
    "olmoe",
    "opt",
    "persimmon",
    "phi",
    "recurrent_gemma",
    "roformer",
    "smollm3",
    "squeezebert",
    "starcoder2",
    "vaultgemma",
    "xglm",
]
SIZES = {
    "vocab_size": 128, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "head_dim": 12, "n_embd": 48, "n_layer": 2, "n_head": 4,
    "n_positions": 64, "d_model": 48, "encoder_layers": 2, "decoder_layers": 2, "num_layers": 2, "num_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96,
    "d_ff": 96, "d_kv": 12, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0, "ffn_dim": 96, "embed_dim": 48, "dim": 48, "n_layers": 2, "n_heads": 4,
    "hidden_dim": 96, "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "n_routed_experts": 4,
    "moe_intermediate_size": 48, "embedding_size": 48,
}  # fmt: skip


def family(name: str) -> nn.Module:
    from transformers import AutoConfig, AutoModel

    return AutoModel.from_config(AutoConfig.for_model(name, **SIZES)).eval()


def cases() -> Iterator[Case]:
    for name, make, batch in own_cases():
        yield Case(f"sixth/{name}", "own code", make, batch)
    for name in FAMILIES:
        make_batch = lambda: {"input_ids": 3 + ids(125, 2, 12)}  # noqa: E731
        yield Case(f"transformers/{name}", "transformers", partial(family, name), make_batch)
