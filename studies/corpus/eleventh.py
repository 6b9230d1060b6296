"""The eleventh set, models of sequences: 40 small ones and 10 of 90 to 200 million parameters, listed before any is predicted.

Language models, recurrences, encoders, time series, speech and proteins as public repositories have them, with their
initializations; nothing is taken from the earlier sets. `studies.corpus.fresh --models eleventh` predicts each once.
"""

# ruff: noqa: E501, E731

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.corpus.case import Case, ids, noise

V = 128
MASK = (torch.arange(16) < torch.tensor([16, 11, 14, 9, 16, 16, 7, 12])[:, None]).long()
RmsNorm = partial(nn.RMSNorm, eps=1e-6)


# -- parts


def later(length: int, band: int = 0) -> Tensor:
    """Which keys come after a query, or a band before it."""
    hidden = torch.ones(length, length, dtype=torch.bool)
    return hidden.triu(1) | hidden.tril(-band) if band else hidden.triu(1)


def head_of(width: int) -> int:
    return min(64, width // 4)


def split(x: Tensor, size: int) -> Tensor:
    return x.unflatten(-1, (-1, size)).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None = None, scale: float = 0.0) -> Tensor:
    """Heads attend and stand side by side."""
    scores = q @ k.mT * (scale or q.shape[-1] ** -0.5)
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def rotary(x: Tensor, turned: int = 0) -> Tensor:
    size = turned or x.shape[-1]
    angles = torch.arange(x.shape[-2])[:, None] * 10000.0 ** (-torch.arange(0, size, 2) / size)
    a, b = x[..., :size].chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin(), x[..., size:]], -1)


def sinusoids(length: int, width: int) -> Tensor:
    angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    return torch.cat([angles.sin(), angles.cos()], -1)


def initialized(model: nn.Module, std: float = 0.02, last: float | None = None) -> nn.Module:
    """Normal weights and no biases; maps named `out` may have a std of their own."""
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=std if last is None or not name.endswith("out") else last)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
    return model


class Heads(nn.Module):
    """Causal attention with rotary positions, fewer keys than queries if asked."""

    def __init__(self, width: int, groups: int = 1, turned: int = 0, bias: bool = False):
        super().__init__()
        self.size, self.turned = head_of(width), turned
        self.q, self.out = nn.Linear(width, width, bias=bias), nn.Linear(width, width, bias=bias)
        self.k, self.v = (nn.Linear(width, width // groups, bias=bias) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(layer(x), self.size) for layer in (self.q, self.k, self.v))
        q, k = rotary(q, self.turned), rotary(k, self.turned)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] != q.shape[1])
        return self.out(y.transpose(1, 2).flatten(2))


class Swiglu(nn.Module):
    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.out = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.silu(self.gate(x)) * self.up(x))


class Gelu(nn.Sequential):
    def __init__(self, width: int, hidden: int = 0):
        super().__init__()
        self.add_module("fc", nn.Linear(width, hidden or 4 * width))
        self.add_module("act", nn.GELU(approximate="tanh"))
        self.add_module("out", nn.Linear(hidden or 4 * width, width))


class Pre(nn.Module):
    """A mixer and a part for each token, each with a norm before, a shortcut around and a share of what it adds."""

    def __init__(self, mixer: nn.Module, feed: nn.Module, norm: Callable[[], nn.Module], share: float = 1.0):
        super().__init__()
        self.norm1, self.mixer, self.norm2, self.feed, self.share = norm(), mixer, norm(), feed, share

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.share * self.mixer(self.norm1(x))
        return x + self.share * self.feed(self.norm2(x))


class Language(nn.Module):
    """A table, blocks, a norm and a head; the stream may be scaled after the table and before the head."""

    def __init__(
        self, block: Callable[[int], nn.Module], width: int, depth: int, words: int = V, norm: Any = RmsNorm,
        tied: bool = False, bias: bool = False, scales: tuple[float, float] = (1.0, 1.0), places: int = 0,
    ):  # fmt: skip
        super().__init__()
        self.wte, self.h, self.scales = nn.Embedding(words, width), nn.ModuleList(map(block, range(depth))), scales
        self.wpe = nn.Embedding(places, width) if places else None
        self.ln_f, self.lm_head = norm(width), nn.Linear(width, words, bias=bias)
        if tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) * self.scales[0]
        if self.wpe is not None:
            x = x + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x) * self.scales[1])


# -- language models of attention


class Parallel(nn.Module):
    """Attention and a part for each token of one norm, added together."""

    def __init__(self, width: int):
        super().__init__()
        self.ln_1, self.mlp = nn.LayerNorm(width), Gelu(width)
        self.attn = Heads(width, turned=head_of(width) // 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        return x + self.attn(y) + self.mlp(y)


def gpt_j(width: int = 64, depth: int = 3, words: int = V) -> nn.Module:
    return initialized(Language(lambda n: Parallel(width), width, depth, words, nn.LayerNorm, bias=True))


class PalmBlock(nn.Module):
    """One map into queries, a key, a value and a gated part; attention and the part are added together."""

    def __init__(self, width: int):
        super().__init__()
        self.size, self.norm = head_of(width), nn.LayerNorm(width, bias=False)
        self.sizes = (width, self.size, self.size, 8 * width)
        self.fused = nn.Linear(width, sum(self.sizes), bias=False)
        self.attn_out, self.ff_out = nn.Linear(width, width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, ff = self.fused(self.norm(x)).split(self.sizes, -1)
        y = attend(rotary(split(q, self.size)), rotary(split(k, self.size)), split(v, self.size), later(x.shape[1]))
        value, gate = ff.chunk(2, -1)
        return x + self.attn_out(y) + self.ff_out(F.silu(gate) * value)


def palm(width: int = 64, depth: int = 3, words: int = V) -> nn.Module:
    norm = partial(nn.LayerNorm, bias=False)
    model = Language(lambda n: PalmBlock(width), width, depth, words, norm, tied=True)
    nn.init.normal_(model.wte.weight, std=0.02)
    return model


class Plain(nn.Module):
    """Attention without positions, of all tokens so far or a band of them, at a scale."""

    def __init__(self, width: int, band: int = 0, scale: float = 0.0):
        super().__init__()
        self.size, self.band, self.scale = head_of(width), band, scale
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(layer(x), self.size) for layer in (self.q, self.k, self.v))
        return self.out(attend(q, k, v, later(x.shape[1], self.band), self.scale))


def sparse_gpt(width: int = 64, depth: int = 4) -> nn.Module:
    """Every second layer sees only a few tokens back (GPT-3)."""
    block = lambda n: Pre(Plain(width, 6 * (n % 2)), Gelu(width), partial(nn.LayerNorm, width))
    model = Language(block, width, depth, norm=nn.LayerNorm, tied=True, places=48)
    return initialized(model, 0.02, 0.02 / math.sqrt(2 * depth))


def mu_gpt(width: int = 128, depth: int = 3, base: int = 32, words: int = V) -> nn.Module:
    """Scores over the size of a head, queries that begin at zero, a scaled table and head."""
    block = lambda n: Pre(Plain(width, scale=8.0 / head_of(width)), Gelu(width), partial(nn.LayerNorm, width))
    model = Language(block, width, depth, words, nn.LayerNorm, scales=(10.0, base / width), places=48)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.0 if name.endswith(".q") else module.in_features**-0.5)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.1)
    return model


class GrokExperts(nn.Module):
    """Two of several gated experts, each of their weights in one tensor."""

    def __init__(self, width: int, hidden: int, count: int):
        super().__init__()
        self.gate = nn.Linear(width, count, bias=False)
        self.linear, self.linear_v = (nn.Parameter(torch.empty(count, width, hidden)) for _ in range(2))
        self.linear_1 = nn.Parameter(torch.empty(count, hidden, width))
        for weight in (self.linear, self.linear_v, self.linear_1):
            nn.init.normal_(weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        best, chosen = self.gate(x).softmax(-1).topk(2, -1)
        shares = torch.zeros(*x.shape[:-1], len(self.linear)).scatter(-1, chosen, best)
        gate, value = (torch.einsum("btd,edh->bteh", x, weight) for weight in (self.linear, self.linear_v))
        return torch.einsum("bteh,ehd,bte->btd", F.gelu(gate) * value, self.linear_1, shares)


class GrokBlock(nn.Module):
    """Four norms, scores capped by a tanh, experts."""

    def __init__(self, width: int, count: int):
        super().__init__()
        self.size, self.norms = head_of(width), nn.ModuleList(nn.RMSNorm(width, eps=1e-5) for _ in range(4))
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, width // 2, bias=False) for _ in range(2))
        self.moe = GrokExperts(width, 2 * width, count)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        q, k, v = (split(layer(y), self.size) for layer in (self.q, self.k, self.v))
        q, k, v = rotary(q), rotary(k).repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        scores = 30.0 * torch.tanh(q @ k.mT * self.size**-0.5 / 30.0)
        made = scores.masked_fill(later(x.shape[1]), -1e30).softmax(-1) @ v
        x = x + self.norms[1](self.out(made.transpose(1, 2).flatten(2)))
        return x + self.norms[3](self.moe(self.norms[2](x)))


def grok(width: int = 64, depth: int = 2, words: int = V, count: int = 4) -> nn.Module:
    block = lambda n: GrokBlock(width, count)
    return initialized(Language(block, width, depth, words, tied=True, scales=(78.38367176906169, 0.5773502691896257)))


def mini_cpm(width: int = 64, depth: int = 4, words: int = V, base: int = 16) -> nn.Module:
    """The table times 12, branches times 1.4 over the root of the depth, the stream over width / base before the head."""
    block = lambda n: Pre(Heads(width), Swiglu(width, 5 * width // 2), partial(RmsNorm, width), 1.4 / math.sqrt(depth))
    return initialized(Language(block, width, depth, words, tied=True, scales=(12.0, base / width)), 0.1)


# -- state spaces, linear attention, memories


class Hyena(nn.Module):
    """Long convolutions, whose filters a small network of sines makes of the position, between two gates."""

    def __init__(self, width: int, length: int = 24, hidden: int = 16, bands: int = 2):
        super().__init__()
        self.in_proj, self.out_proj, self.length = nn.Linear(width, 3 * width), nn.Linear(width, width), length
        self.short = nn.Conv1d(3 * width, 3 * width, 3, padding=2, groups=3 * width)
        self.filter = nn.ModuleList([nn.Linear(1 + 2 * bands, hidden), nn.Linear(hidden, hidden)])
        self.freq, self.last = nn.Parameter(10.0 * torch.ones(1, hidden)), nn.Linear(hidden, width, bias=False)
        self.bias, time = nn.Parameter(torch.randn(width)), torch.linspace(0, 1, length)[:, None]
        angles = 2 * math.pi * time * (length - 1) / length * torch.linspace(1e-4, bands - 1, bands)
        self.register_buffer("z", torch.cat([time, angles.cos(), -angles.sin()], -1))
        decays = torch.linspace(math.log(1e-2) / 1.5, math.log(1e-2) / 0.3, width).abs()
        self.register_buffer("window", torch.exp(-time * decays))

    def forward(self, x: Tensor) -> Tensor:
        outer, inner, v = self.short(self.in_proj(x).mT)[..., : self.length].chunk(3, 1)
        v, k, size = v * inner, self.z, 2 * self.length
        for layer in self.filter:
            k = torch.sin(self.freq * layer(k))
        k = (self.last(k) * self.window).T
        made = torch.fft.irfft(torch.fft.rfft(v, n=size) * torch.fft.rfft(k, n=size), n=size)[..., : self.length]
        return self.out_proj(((made + v * self.bias[:, None]) * outer).mT)


class GatedLinear(nn.Module):
    """Linear attention whose state decays by a gate of the token; heads are normalized and gated."""

    def __init__(self, width: int):
        super().__init__()
        self.q, self.k = (nn.Linear(width, width // 2, bias=False) for _ in range(2))
        self.v, self.g, self.o = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.gk = nn.Sequential(nn.Linear(width, 16, bias=False), nn.Linear(16, width // 2))
        self.norm = nn.RMSNorm(width // 4, eps=1e-5)
        for layer in (self.q, self.k, self.v, self.g, self.o, *self.gk):
            nn.init.xavier_uniform_(layer.weight, gain=2**-2.5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (4, -1)) for layer in (self.q, self.k, self.v))
        decay = (F.logsigmoid(self.gk(x)) / 16).exp().unflatten(-1, (4, -1))
        state, made = torch.zeros(len(x), 4, k.shape[-1], v.shape[-1]), []
        for t in range(x.shape[1]):
            state = state * decay[:, t, ..., None] + k[:, t, ..., None] * v[:, t, :, None]
            made.append(torch.einsum("bhk,bhkv->bhv", q[:, t] * q.shape[-1] ** -0.5, state))
        return self.o(self.norm(torch.stack(made, 1)).flatten(2) * F.silu(self.g(x)))


def gated_linear(width: int = 64, depth: int = 3, words: int = V) -> nn.Module:
    block = lambda n: Pre(GatedLinear(width), Swiglu(width, 8 * width // 3), partial(RmsNorm, width))
    model = Language(block, width, depth, words)
    nn.init.normal_(model.wte.weight, std=0.02)
    return model


class Memory(nn.Module):
    """A matrix that learns while it reads: gradient, momentum and forgetting at rates of the token, beside attention (Titans)."""

    def __init__(self, width: int):
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.rates, self.start = nn.Linear(width, 3), nn.Parameter(torch.empty(width, width))
        self.attn, self.norm, self.persist = Heads(width), nn.RMSNorm(width), nn.Parameter(0.02 * torch.randn(4, width))
        nn.init.xavier_uniform_(self.start)

    def forward(self, x: Tensor) -> Tensor:
        q, k = (F.normalize(F.silu(layer(x)), dim=-1) for layer in (self.to_q, self.to_k))
        v, (step, keep, lost) = F.silu(self.to_v(x)), self.rates(x).sigmoid().unbind(-1)
        memory, surprise, made = self.start.expand(len(x), -1, -1), 0.0, []
        for t in range(x.shape[1]):
            wrong = (memory @ k[:, t, :, None]).squeeze(-1) - v[:, t]
            slope = 2.0 * wrong[:, :, None] * k[:, t, None]
            surprise = keep[:, t, None, None] * surprise - 0.1 * step[:, t, None, None] * slope
            memory = (1.0 - 0.1 * lost[:, t, None, None]) * memory + surprise
            made.append((memory @ q[:, t, :, None]).squeeze(-1))
        local = self.attn(torch.cat([self.persist.expand(len(x), -1, -1), x], 1))[:, len(self.persist) :]
        return self.out(local * torch.sigmoid(self.norm(torch.stack(made, 1))))


class ScalarLstm(nn.Module):
    """Exponential gates with a stabilizer, states of heads mixed by blocks (xLSTM)."""

    def __init__(self, width: int, heads: int = 4):
        super().__init__()
        self.conv, self.heads = nn.Conv1d(width, width, 4, padding=3, groups=width), heads
        self.gates = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in "ifzo")
        self.recurrent = nn.Parameter(torch.zeros(4, heads, width // heads, width // heads))
        fall = 5.0 - 12.0 * (torch.arange(width) / (width - 1)) ** 0.95
        self.bias = nn.Parameter(torch.stack([torch.zeros(width), fall, torch.zeros(width), torch.zeros(width)]))
        self.norm = nn.GroupNorm(heads, width)
        for gate in self.gates:
            nn.init.normal_(gate.weight, std=math.sqrt(2 / (5 * width)))

    def forward(self, x: Tensor) -> Tensor:
        near = F.silu(self.conv(x.mT)[..., : x.shape[1]].mT)
        given = torch.stack([gate(near if n < 2 else x) for n, gate in enumerate(self.gates)])
        h, c, n, m, made = *(torch.zeros_like(x[:, 0]) for _ in "hcnm"), []
        for t in range(x.shape[1]):
            back = torch.einsum("bhd,ghde->gbhe", h.unflatten(-1, (self.heads, -1)), self.recurrent).flatten(2)
            i, f, z, o = given[:, :, t] + back + self.bias[:, None]
            f = F.logsigmoid(f)
            top = torch.maximum(f + m, i)
            i, f, m = torch.exp(i - top), torch.exp(f + m - top), top
            c, n = f * c + i * torch.tanh(z), f * n + i
            h = torch.sigmoid(o) * c / n
            made.append(h)
        return self.norm(torch.stack(made, 1).flatten(0, 1)).view_as(x)


class Features(nn.Module):
    """Attention by positive random features (Performer)."""

    def __init__(self, width: int, count: int = 32):
        super().__init__()
        self.size = head_of(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        blocks = [torch.linalg.qr(torch.randn(self.size, self.size))[0].T for _ in range(count // self.size)]
        lengths = torch.randn(count, self.size).norm(dim=1)
        self.register_buffer("directions", lengths[:, None] * torch.cat(blocks))

    def positive(self, x: Tensor, is_query: bool) -> Tensor:
        x = x * self.size**-0.25
        dash, half = x @ self.directions.T, x.square().sum(-1, keepdim=True) / 2
        top = dash.amax(-1, keepdim=True) if is_query else dash.amax((-1, -2), keepdim=True)
        return len(self.directions) ** -0.5 * (torch.exp(dash - half - top.detach()) + 1e-4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(layer(x), self.size) for layer in (self.q, self.k, self.v))
        q, k = self.positive(q, True), self.positive(k, False)
        share = 1.0 / torch.einsum("bhtf,bhf->bht", q, k.sum(2))
        made = torch.einsum("bhtf,bhfd,bht->bhtd", q, k.mT @ v, share)
        return self.out(made.transpose(1, 2).flatten(2))


class Projected(nn.Module):
    """Keys and values of a few mixtures of tokens (Linformer)."""

    def __init__(self, width: int, length: int = 16, kept: int = 8):
        super().__init__()
        self.size = head_of(width)
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.proj_k, self.proj_v = (nn.Parameter(torch.empty(length, kept)) for _ in range(2))
        self.to_out = nn.Linear(width, width)
        for weight in (self.proj_k, self.proj_v):
            nn.init.uniform_(weight, -(kept**-0.5), kept**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.proj_k.T @ self.to_k(x), self.proj_v.T @ self.to_v(x)
        return self.to_out(attend(*(split(y, self.size) for y in (self.to_q(x), k, v))))


class Halting(nn.Module):
    """One block again and again, until each token's halting probabilities sum to one (Universal Transformer, ACT)."""

    def __init__(self, width: int = 64, hops: int = 4):
        super().__init__()
        self.embed, self.hops, self.halt = nn.Embedding(V, width), hops, nn.Linear(width, 1)
        self.block, self.head = Pre(Plain(width), Gelu(width), partial(nn.LayerNorm, width)), nn.Linear(width, V)
        nn.init.ones_(self.halt.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        state = self.embed(tokens)
        places, times = sinusoids(tokens.shape[1], state.shape[-1]), sinusoids(self.hops, state.shape[-1])
        total, made = torch.zeros(tokens.shape), torch.zeros_like(state)
        for n in range(self.hops):
            state = state + places + times[n]
            p = self.halt(state).sigmoid().squeeze(-1)
            running = (total < 1.0).float()
            goes = (total + p <= 0.9).float() * running
            share = p * goes + (1.0 - total) * (running - goes)
            total, state = total + share, self.block(state)
            made = state * share[..., None] + made * (1 - share[..., None])
        return self.head(made)


# -- encoders and decoders of other schools


def weighted(layer: Any, ratio: float = 1.0) -> nn.Module:
    """Weights in direction and length, their variance a ratio over what comes in."""
    nn.init.normal_(layer.weight, std=math.sqrt(ratio / layer.weight[0].numel()))
    nn.init.zeros_(layer.bias)
    return nn.utils.parametrizations.weight_norm(layer, dim=0)


class ConvSeq2Seq(nn.Module):
    """Gated convolutions, halves of a variance at each sum, attention in each layer of the decoder."""

    def __init__(self, width: int = 48, depth: int = 3, words: int = V):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, width) for size in (words, 48, words, 48))
        linears = lambda count: nn.ModuleList(weighted(nn.Linear(width, width)) for _ in range(count))
        convs = lambda pad: [weighted(nn.Conv1d(width, 2 * width, 3, padding=pad), 4.0) for _ in range(depth)]
        self.starts, self.ends, self.into, self.back = linears(2), linears(2), linears(depth), linears(depth)
        self.encoder, self.decoder = nn.ModuleList(convs(1)), nn.ModuleList(convs(2))
        self.fc3 = weighted(nn.Linear(width, words))
        for table in self.tables:
            nn.init.normal_(table.weight, 0.0, 0.1)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        half = math.sqrt(0.5)
        embed = lambda tokens, n: self.tables[n](tokens) + self.tables[n + 1](torch.arange(tokens.shape[1]))
        given, made = embed(source, 0), embed(target, 2)
        x = self.starts[0](given)
        for conv in self.encoder:
            x = (F.glu(conv(x.mT).mT) + x) * half
        keys = self.ends[0](x)
        values = (keys + given) * half
        x = self.starts[1](made)
        for conv, into, back in zip(self.decoder, self.into, self.back, strict=True):
            y = F.glu(conv(x.mT)[..., : x.shape[1]].mT)
            weights = ((into(y) + made) * half @ keys.mT).softmax(-1)
            y = (back(weights @ values * math.sqrt(source.shape[1])) + y) * half
            x = (y + x) * half
        return self.fc3(self.ends[1](x))


class Bahdanau(nn.Module):
    """A bidirectional GRU is read by additive attention, one word after another."""

    def __init__(self, width: int = 48):
        super().__init__()
        self.source, self.target = nn.Embedding(V, width), nn.Embedding(V, width)
        self.encoder = nn.GRU(width, width, bidirectional=True, batch_first=True)
        self.bridge = nn.Linear(2 * width, width)
        self.attn, self.v = nn.Linear(3 * width, width), nn.Linear(width, 1, bias=False)
        self.rnn, self.fc = nn.GRUCell(3 * width, width), nn.Linear(4 * width, V)
        for name, parameter in self.named_parameters():
            nn.init.normal_(parameter, 0.0, 0.01) if "weight" in name else nn.init.zeros_(parameter)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, last = self.encoder(self.source(source))
        state, words = torch.tanh(self.bridge(torch.cat([last[0], last[1]], -1))), self.target(target)
        made = []
        for t in range(target.shape[1]):
            query = state[:, None].expand(-1, memory.shape[1], -1)
            weights = self.v(torch.tanh(self.attn(torch.cat([query, memory], -1)))).softmax(1)
            read = (weights * memory).sum(1)
            state = self.rnn(torch.cat([words[:, t], read], -1), state)
            made.append(self.fc(torch.cat([state, read, words[:, t]], -1)))
        return torch.stack(made, 1)


class TextCnn(nn.Module):
    """Convolutions of three sizes, each at its largest over time (Kim)."""

    def __init__(self, width: int = 48, filters: int = 32):
        super().__init__()
        self.embed, self.fc = nn.Embedding(V, width), nn.Linear(3 * filters, 6)
        self.convs = nn.ModuleList(nn.Conv1d(width, filters, size) for size in (3, 4, 5))
        nn.init.uniform_(self.embed.weight, -0.25, 0.25)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).mT
        return self.fc(torch.cat([F.relu(conv(x)).amax(-1) for conv in self.convs], 1))


class QuasiRecurrent(nn.Module):
    """Gates by convolutions of two tokens, then an average that forgets (QRNN)."""

    def __init__(self, a: int, b: int):
        super().__init__()
        self.linear = nn.Linear(2 * a, 3 * b)

    def forward(self, x: Tensor) -> Tensor:
        z, f, o = self.linear(torch.cat([x, F.pad(x, (0, 0, 1, -1))], -1)).chunk(3, -1)
        z, f = torch.tanh(z), torch.sigmoid(f)
        state, made = torch.zeros_like(z[:, 0]), []
        for t in range(x.shape[1]):
            state = f[:, t] * z[:, t] + (1 - f[:, t]) * state
            made.append(state)
        return torch.sigmoid(o) * torch.stack(made, 1)


class Independent(nn.Module):
    """Each unit sees only its own past (IndRNN)."""

    def __init__(self, a: int, width: int, length: int = 32):
        super().__init__()
        self.input, self.norm = nn.Linear(a, width), nn.BatchNorm1d(width)
        self.recurrent = nn.Parameter(torch.empty(width).uniform_(0, 2 ** (1 / length)))
        nn.init.normal_(self.input.weight, std=0.001 if a == 2 else 0.01)
        nn.init.zeros_(self.input.bias)

    def forward(self, x: Tensor) -> Tensor:
        given, made = self.input(x), [torch.zeros(len(x), len(self.recurrent))]
        for t in range(x.shape[1]):
            made.append(F.relu(given[:, t] + self.recurrent * made[-1]))
        return self.norm(torch.stack(made[1:], 2)).mT


def quasi_recurrent(width: int = 64, hidden: int = 96) -> nn.Module:
    layers = [QuasiRecurrent(a, b) for a, b in ((width, hidden), (hidden, hidden), (hidden, width))]
    model = nn.Sequential(nn.Embedding(V, width), *layers, nn.Linear(width, V))
    nn.init.uniform_(model[0].weight, -0.1, 0.1)  # type: ignore[arg-type]
    return model


class Tagger(nn.Module):
    """A bidirectional LSTM; out come the costs of the tags of whole sequences under a conditional random field."""

    def __init__(self, width: int = 48, tags: int = 7):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(V, width), nn.LSTM(width, width, bidirectional=True, batch_first=True)
        self.hidden2tag = nn.Linear(2 * width, tags)
        self.transitions = nn.Parameter(torch.empty(tags, tags))
        self.start, self.end = (nn.Parameter(torch.empty(tags)) for _ in range(2))
        nn.init.normal_(self.embed.weight, std=width**-0.5)
        for parameter in (self.transitions, self.start, self.end):
            nn.init.uniform_(parameter, -0.1, 0.1)

    def forward(self, tokens: Tensor, tags: Tensor) -> Tensor:
        scores = self.hidden2tag(self.lstm(self.embed(tokens))[0])
        path = self.start[tags[:, 0]] + self.end[tags[:, -1]] + scores.gather(2, tags[..., None]).sum((1, 2))
        path = path + self.transitions[tags[:, :-1], tags[:, 1:]].sum(1)
        alpha = self.start + scores[:, 0]
        for t in range(1, tokens.shape[1]):
            alpha = torch.logsumexp(alpha[:, :, None] + self.transitions, 1) + scores[:, t]
        return torch.logsumexp(alpha + self.end, 1) - path


class Elmo(nn.Module):
    """Words of characters, two highways, LSTMs with projections in each direction, a learned mixture of the layers."""

    def __init__(self, cell: int = 96, width: int = 32, filters: tuple[int, ...] = (16, 16, 32, 32), layers: int = 2):
        super().__init__()
        self.chars, total = nn.Embedding(64, 16), sum(filters)
        self.convs = nn.ModuleList(nn.Conv1d(16, count, n + 1) for n, count in enumerate(filters))
        self.highways = nn.ModuleList(nn.Linear(total, 2 * total) for _ in range(2))
        self.projection = nn.Linear(total, width)
        lstms = lambda: nn.ModuleList(nn.LSTM(width, cell, proj_size=width, batch_first=True) for _ in range(layers))
        self.ahead, self.behind = lstms(), lstms()
        self.mixture, self.gamma = nn.Parameter(torch.zeros(layers + 1)), nn.Parameter(torch.ones(1))
        nn.init.normal_(self.chars.weight)
        for n, conv in enumerate(self.convs):
            nn.init.normal_(conv.weight, std=(16 * (n + 1)) ** -0.5)
        for highway in self.highways:
            nn.init.normal_(highway.weight, std=total**-0.5)
            nn.init.constant_(highway.bias[total:], 1.0)

    def forward(self, chars: Tensor) -> Tensor:
        x = self.chars(chars).flatten(0, 1).mT
        x = torch.cat([F.relu(conv(x).amax(-1)) for conv in self.convs], 1)
        for highway in self.highways:
            new, gate = highway(x).chunk(2, -1)
            x = torch.sigmoid(gate) * x + (1 - torch.sigmoid(gate)) * F.relu(new)
        a = b = self.projection(x).unflatten(0, chars.shape[:2])
        seen = [torch.cat([a, b], -1)]
        for n, (ahead, behind) in enumerate(zip(self.ahead, self.behind, strict=True)):
            new_a, new_b = ahead(a)[0], behind(b.flip(1))[0].flip(1)
            a, b = (new_a, new_b) if n == 0 else (a + new_a, b + new_b)
            seen.append(torch.cat([a, b], -1))
        return self.gamma * sum(w * y for w, y in zip(self.mixture.softmax(0), seen, strict=True))


class Post(nn.Module):
    """A block of an encoder with its norms after the sums; tokens of padding are hidden."""

    def __init__(self, width: int):
        super().__init__()
        self.size = head_of(width)
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=1e-12) for _ in range(2))
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        q, k, v = (split(layer(x), self.size) for layer in (self.q, self.k, self.v))
        x = self.norm1(x + self.out(attend(q, k, v, hidden)))
        return self.norm2(x + self.fc2(F.gelu(self.fc1(x))))


class Sentences(nn.Module):
    """Tokens of a sentence averaged without padding, vectors of unit length."""

    def __init__(self, width: int = 64, depth: int = 3, words: int = V):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, width) for size in (words, 512))
        self.norm, self.layers = nn.LayerNorm(width, eps=1e-12), nn.ModuleList(Post(width) for _ in range(depth))
        initialized(self)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.norm(self.tables[0](tokens) + self.tables[1](torch.arange(tokens.shape[1])))
        for layer in self.layers:
            x = layer(x, mask[:, None, None] == 0)
        pooled = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1e-9)
        return F.normalize(pooled, dim=-1)


class Towers(nn.Module):
    """Bags of words through a tower for queries and one for documents; out come the costs of triplets."""

    def __init__(self, width: int = 48):
        super().__init__()
        bag = lambda: [nn.EmbeddingBag(V, width), nn.Linear(width, 96), nn.ReLU(), nn.Linear(96, 32)]
        self.query, self.document = nn.Sequential(*bag()), nn.Sequential(*bag())

    def forward(self, query: Tensor, good: Tensor, bad: Tensor) -> Tensor:
        q, a, b = (F.normalize(y, dim=-1) for y in (self.query(query), self.document(good), self.document(bad)))
        return F.relu(0.5 - (q * a).sum(-1) + (q * b).sum(-1))


class Lora(nn.Module):
    """A frozen map and a product of low rank that begins at zero."""

    def __init__(self, base: nn.Linear, rank: int = 8, alpha: float = 16.0):
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.lora_a = nn.Linear(base.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.kaiming_uniform_(self.lora_a.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.lora_b(self.lora_a(x)) * self.scale


def lora(width: int = 64, depth: int = 3, words: int = V) -> nn.Module:
    """Queries and values of a frozen Llama with adapters."""
    block = lambda n: Pre(Heads(width, groups=2), Swiglu(width, 8 * width // 3), partial(RmsNorm, width))
    model = initialized(Language(block, width, depth, words)).requires_grad_(False)
    for layer in model.h:  # type: ignore[union-attr]
        layer.mixer.q, layer.mixer.v = Lora(layer.mixer.q), Lora(layer.mixer.v)
    return model


class Adapter(nn.Module):
    """A frozen part and a bottleneck behind it that adds next to nothing at first."""

    def __init__(self, base: nn.Module, width: int, hidden: int = 8):
        super().__init__()
        self.base, self.adapter = base, nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        initialized(self.adapter, 1e-3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.base(x)
        return y + self.adapter(y)


def adapters(width: int = 64, depth: int = 2) -> nn.Module:
    """Only the adapters and the norms are trained."""
    model: Any = sparse_gpt(width, depth)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" in name or "ln_f" in name)
    for layer in model.h:
        layer.mixer, layer.feed = Adapter(layer.mixer, width), Adapter(layer.feed, width)
    return model


# -- time series, proteins, speech


class GatedResidual(nn.Module):
    """A small network whose gate decides how much of it is added (TFT)."""

    def __init__(self, a: int, width: int, b: int = 0, context: int = 0):
        super().__init__()
        self.fc1, self.fc2, self.gate = nn.Linear(a, width), nn.Linear(width, width), nn.Linear(width, 2 * (b or width))
        self.context = nn.Linear(context, width, bias=False) if context else None
        self.skip = nn.Linear(a, b or width) if a != (b or width) else nn.Identity()
        self.norm = nn.LayerNorm(b or width)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        y = self.fc1(x) if context is None else self.fc1(x) + self.context(context)  # type: ignore[misc]
        return self.norm(self.skip(x) + F.glu(self.gate(self.fc2(F.elu(y)))))


class Fusion(nn.Module):
    """Variables are chosen, a recurrence reads them, attention with one value for all heads, quantiles (TFT)."""

    def __init__(self, variables: int = 5, width: int = 32, heads: int = 4, horizon: int = 6):
        super().__init__()
        self.embed = nn.ModuleList(nn.Linear(1, width) for _ in range(variables))
        self.choose = GatedResidual(variables * width, width, variables, width)
        self.each = nn.ModuleList(GatedResidual(width, width) for _ in range(variables))
        self.static, self.enrich = nn.Embedding(10, width), GatedResidual(width, width, context=width)
        self.lstm, self.horizon = nn.LSTM(width, width, batch_first=True), horizon
        self.gates = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width // heads)
        self.attn_out, self.feed = nn.Linear(width // heads, width), GatedResidual(width, width)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor, kind: Tensor) -> Tensor:
        static = self.static(kind)[:, None]
        gated = lambda n, new, old: self.norms[n](old + F.glu(self.gates[n](new)))
        parts = [embed(x[..., n, None]) for n, embed in enumerate(self.embed)]
        weights = self.choose(torch.cat(parts, -1), static).softmax(-1)
        each = torch.stack([layer(part) for layer, part in zip(self.each, parts, strict=True)], -1)
        chosen = (each * weights[..., None, :]).sum(-1)
        local = gated(0, self.lstm(chosen)[0], chosen)
        y = self.enrich(local, static)
        q, k = (split(layer(y), self.v.out_features) for layer in (self.q, self.k))
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(later(x.shape[1]), float("-inf")).softmax(-1)
        y = gated(1, self.attn_out(scores.mean(1) @ self.v(y)), y)
        return self.head(gated(2, self.feed(y), local)[:, -self.horizon :])


class Decomposed(nn.Module):
    """A moving average and the rest, each through one map of time whose weights begin equal (DLinear)."""

    def __init__(self, length: int = 48, horizon: int = 24, kernel: int = 25):
        super().__init__()
        self.kernel, self.seasonal, self.trend = kernel, nn.Linear(length, horizon), nn.Linear(length, horizon)
        for layer in (self.seasonal, self.trend):
            nn.init.constant_(layer.weight, 1 / length)

    def forward(self, x: Tensor) -> Tensor:
        x = x.mT
        trend = F.avg_pool1d(F.pad(x, (self.kernel // 2, self.kernel // 2), mode="replicate"), self.kernel, 1)
        return (self.seasonal(x - trend) + self.trend(trend)).mT


class Triangle(nn.Module):
    """Edges of a pair from the edges of both to a third."""

    def __init__(self, width: int, equation: str):
        super().__init__()
        self.norm, self.to_out_norm, self.equation = nn.LayerNorm(width), nn.LayerNorm(width), equation
        self.left, self.right, self.to_out = (nn.Linear(width, width) for _ in range(3))
        self.left_gate, self.right_gate, self.out_gate = (nn.Linear(width, width) for _ in range(3))
        for gate in (self.left_gate, self.right_gate, self.out_gate):
            nn.init.zeros_(gate.weight)
            nn.init.ones_(gate.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        left, right = self.left(x) * self.left_gate(x).sigmoid(), self.right(x) * self.right_gate(x).sigmoid()
        made = self.to_out_norm(torch.einsum(self.equation, left, right))
        return self.to_out(made * self.out_gate(x).sigmoid())


class Evoformer(nn.Module):
    """Pairs of residues from an outer sum, refined by triangles and small networks; distances between residues."""

    def __init__(self, width: int = 32, depth: int = 2):
        super().__init__()
        self.embed, self.places = nn.Embedding(21, width), nn.Embedding(65, width)
        self.pair, self.parts = nn.Linear(width, 2 * width), nn.ModuleList()
        for _ in range(depth):
            self.parts.extend(Triangle(width, equation) for equation in ("bikd,bjkd->bijd", "bkjd,bkid->bijd"))
            self.parts.append(nn.Sequential(nn.LayerNorm(width), Gelu(width)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 37))

    def forward(self, residues: Tensor) -> Tensor:
        a, b = self.pair(self.embed(residues)).chunk(2, -1)
        place = torch.arange(residues.shape[1])
        x = a[:, :, None] + b[:, None] + self.places((place - place[:, None]).clamp(-32, 32) + 32)
        for part in self.parts:
            x = x + part(x)
        return self.head((x + x.transpose(1, 2)) * 0.5)


class Speech(nn.Module):
    """Convolutions of a spectrogram, recurrences both ways added, BatchNorm between them (Deep Speech 2)."""

    def __init__(self, mels: int = 24, width: int = 48, letters: int = 20):
        super().__init__()
        self.conv, sizes = nn.Sequential(), (8 * mels // 4, width, width)
        for a, stride in ((1, 2), (8, 1)):
            self.conv.append(nn.Conv2d(a, 8, (7, 5), (2, stride), (3, 2), bias=False))
            self.conv.extend([nn.BatchNorm2d(8), nn.Hardtanh(0, 20)])
        self.rnns = nn.ModuleList(nn.GRU(a, width, bidirectional=True, batch_first=True) for a in sizes)
        self.norms, self.fc = (
            nn.ModuleList(nn.BatchNorm1d(width) for _ in range(3)),
            nn.Linear(width, letters, bias=False),
        )

    def forward(self, mels: Tensor) -> Tensor:
        x = self.conv(mels[:, None]).flatten(1, 2).mT
        for n, rnn in enumerate(self.rnns):
            x = rnn(x if n == 0 else self.norms[n - 1](x.mT).mT)[0].unflatten(-1, (2, -1)).sum(2)
        return self.fc(self.norms[2](x.mT).mT).log_softmax(-1)


# -- losses


def entropy(targets: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda out: F.cross_entropy(out.flatten(0, -2), targets.flatten())


def focal(targets: Tensor, out: Tensor) -> Tensor:
    costs = F.cross_entropy(out, targets, reduction="none")
    return ((1 - torch.exp(-costs)) ** 2 * costs).mean()


def contrastive(out: Tensor) -> Tensor:
    """The first half of the vectors beside the second, a temperature of 0.05."""
    a, b = out.chunk(2)
    return F.cross_entropy(a @ b.T / 0.05, torch.arange(len(a)))


def quantiles(targets: Tensor, out: Tensor) -> Tensor:
    levels, apart = torch.tensor([0.1, 0.5, 0.9]), targets[..., None] - out
    return torch.maximum(levels * apart, (levels - 1) * apart).sum(-1).mean()


def alignments(targets: Tensor, out: Tensor) -> Tensor:
    """Connectionist temporal classification; letter 0 is the blank."""
    lengths = [torch.full((len(targets),), size) for size in (out.shape[1], targets.shape[1])]
    return F.ctc_loss(out.transpose(0, 1), targets, *lengths)


# -- the list

SIZES = {"vocab_size": V, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = SIZES | {"num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 160, "pad_token_id": 0}
SERIES = {
    "prediction_length": 8, "context_length": 24, "lags_sequence": [1, 2], "num_time_features": 1, "d_model": 48,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96, "decoder_ffn_dim": 96,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "falcon": SIZES | {"alibi": False, "new_decoder_architecture": False, "multi_query": True, "parallel_attn": True},
    "gpt_bigcode": {"vocab_size": V, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 160},
    "llama4_text": LLAMA | {"num_hidden_layers": 4, "num_local_experts": 4, "intermediate_size_mlp": 160, "interleave_moe_layer_step": 2, "attention_chunk_size": 8},
    "jamba": LLAMA | {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4, "mamba_dt_rank": 4},
    "zamba2": LLAMA | {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2, "mamba_d_state": 8, "n_mamba_heads": 4, "mamba_ngroups": 1, "chunk_size": 16, "num_mem_blocks": 1, "adapter_rank": 4},
    "funnel": {"vocab_size": V, "block_sizes": [2, 2], "d_model": 64, "d_head": 16, "d_inner": 160, "n_head": 4, "architectures": ["FunnelModel"]},
    "dbrx": {"vocab_size": V, "d_model": 64, "n_heads": 4, "n_layers": 2, "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4}, "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2}},
    "esm": SIZES | {"position_embedding_type": "rotary", "token_dropout": True, "mask_token_id": 5, "pad_token_id": 1, "intermediate_size": 256},
    "decision_transformer": {"state_dim": 11, "act_dim": 3, "hidden_size": 64, "n_layer": 2, "n_head": 4, "max_ep_len": 64, "vocab_size": 1},
    "patchtst": {"d_model": 48, "ffn_dim": 96, "context_length": 48, "patch_length": 8, "patch_stride": 4, "num_input_channels": 4, "num_hidden_layers": 2, "num_attention_heads": 4},
    "informer": SERIES,
    "autoformer": SERIES | {"moving_average": 5, "label_length": 4},
}  # fmt: skip


def family(name: str) -> nn.Module:
    from transformers import AutoConfig, AutoModel

    return AutoModel.from_config(AutoConfig.for_model(name, **FAMILIES[name])).eval()


def given(name: str) -> dict[str, Tensor]:
    """The batch of a family."""
    if name == "decision_transformer":
        made = {"states": noise(2, 8, 11), "actions": noise(2, 8, 3, seed=1), "rewards": noise(2, 8, 1, seed=2)}
        made |= {"returns_to_go": noise(2, 8, 1, seed=3), "timesteps": torch.arange(8).expand(2, -1)}
        return made | {"attention_mask": torch.ones(2, 8)}
    if name in ("informer", "autoformer"):
        made = {"past_values": noise(4, 26), "past_time_features": noise(4, 26, 1, seed=1)}
        made |= {"future_values": noise(4, 8, seed=2), "future_time_features": noise(4, 8, 1, seed=3)}
        return made | {"past_observed_mask": torch.ones(4, 26)}
    return {"past_values": noise(8, 48, 4)} if name == "patchtst" else {"input_ids": 6 + ids(122, 2, 16)}


def cases() -> Iterator[Case]:
    words, longer, next_words = partial(ids, V, 2, 16), partial(ids, V, 2, 24), entropy(ids(V, 2, 16, seed=5))
    block = lambda mixer, n: Pre(mixer(64), Gelu(64), partial(nn.LayerNorm, 64))
    mixing = lambda mixer, places=0: partial(Language, partial(block, mixer), 64, 2, norm=nn.LayerNorm, places=places)
    pair, tagged = lambda: (ids(V, 2, 12), ids(V, 2, 14, seed=1)), lambda: (ids(V, 4, 16), ids(7, 4, 16, seed=1))
    few, chars = partial(ids, 16384, 1, 16), partial(ids, 64, 2, 12, 10)
    listed: list[tuple[str, Callable[[], nn.Module], Callable[[], Any], Callable[..., Tensor] | None]] = [
        ("gpt-j", gpt_j, words, next_words), ("palm", palm, words, None), ("sparse gpt", sparse_gpt, longer, None),
        ("grok", grok, words, next_words), ("minicpm", mini_cpm, words, next_words), ("mu gpt", mu_gpt, words, next_words),
        ("hyena", mixing(Hyena), longer, None), ("gated linear attention", gated_linear, words, None),
        ("titans", mixing(Memory), words, None), ("scalar lstm", mixing(ScalarLstm), words, None), ("universal", Halting, words, None),
        ("performer", mixing(Features, 16), words, None), ("linformer", mixing(Projected, 16), words, None),
        ("conv seq2seq", ConvSeq2Seq, pair, None), ("bahdanau", Bahdanau, pair, entropy(ids(V, 2, 14, seed=5))),
        ("text cnn", TextCnn, partial(ids, V, 8, 40), partial(focal, ids(6, 8, seed=5))), ("qrnn", quasi_recurrent, longer, None),
        ("indrnn", lambda: nn.Sequential(Independent(2, 64), Independent(64, 64), nn.Linear(64, 1)), partial(noise, 8, 32, 2), None), ("crf tagger", Tagger, tagged, torch.mean), ("elmo", Elmo, chars, None),
        ("sentences", Sentences, lambda: (ids(V, 8, 16), MASK), contrastive),
        ("two towers", Towers, lambda: (ids(V, 8, 12), ids(V, 8, 24, seed=1), ids(V, 8, 24, seed=2)), torch.mean),
        ("lora", lora, words, next_words), ("adapters", adapters, words, next_words),
        ("tft", Fusion, lambda: (noise(4, 24, 5), ids(10, 4)), partial(quantiles, noise(4, 6, seed=5))),
        ("dlinear", Decomposed, partial(noise, 8, 48, 4), partial(F.mse_loss, target=noise(8, 24, 4, seed=5))),
        ("evoformer", Evoformer, partial(ids, 21, 2, 12), None),
        ("deep speech", Speech, partial(noise, 4, 24, 48), partial(alignments, 1 + ids(19, 4, 6, seed=5))),
        ("large gpt-j", partial(gpt_j, 1024, 8, 16384), few, None), ("large palm", partial(palm, 1024, 8, 16384), few, None),
        ("large grok", partial(grok, 768, 6, 16384, 4), few, None), ("large minicpm", partial(mini_cpm, 1024, 10, 16384, 256), few, None),
        ("large mu gpt", partial(mu_gpt, 1024, 10, 256, 16384), few, None), ("large lora", partial(lora, 1024, 10, 16384), few, None),
        ("large gated linear attention", partial(gated_linear, 1024, 10, 16384), few, None),
        ("large conv seq2seq", partial(ConvSeq2Seq, 768, 10, 16384), lambda: (ids(16384, 1, 12), ids(16384, 1, 12, seed=1)), None),
        ("large elmo", partial(Elmo, 4096, 512, (32, 32, 64, 128, 256, 512, 1024)), chars, None),
        ("large sentences", partial(Sentences, 768, 12, 16384), lambda: (ids(16384, 8, 16), MASK), contrastive),
    ]  # fmt: skip
    for name, make, batch, loss in listed:
        yield Case(f"eleventh/{name}", "own code", make, batch, loss)
    for name in FAMILIES:
        yield Case(f"eleventh/{name}", "transformers", partial(family, name), partial(given, name))
