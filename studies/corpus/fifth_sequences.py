"""A fifth set, first part: sequence models as people write them themselves, each a whole small network. Written and
listed before any of them was predicted; all of it is held out."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.corpus.case import Case, ids, noise

D, T, WORDS = 32, 16, 60
WORD_IDS = ids(WORDS, 2, T, seed=3)
NEXT = ids(WORDS, 2, T, seed=4)


def next_word(out: Tensor) -> Tensor:
    return F.cross_entropy(out.flatten(0, 1), NEXT.flatten())


class Mamba2(nn.Module):
    """One state-space duality block: scalar decay per head, softplus steps, a gated norm."""

    def __init__(self, heads: int = 4, state: int = 8):
        super().__init__()
        self.heads, self.state, self.inner = heads, state, 2 * D
        self.into = nn.Linear(D, 2 * self.inner + 2 * state + heads, bias=False)
        self.conv = nn.Conv1d(
            self.inner + 2 * state, self.inner + 2 * state, 4, groups=self.inner + 2 * state, padding=3
        )
        self.A_log = nn.Parameter(torch.log(torch.arange(1, heads + 1, dtype=torch.float32)))
        self.dt_bias = nn.Parameter(torch.log(torch.expm1(torch.rand(heads) * 0.1 + 0.001)))
        self.skip = nn.Parameter(torch.ones(heads))
        self.norm = nn.RMSNorm(self.inner)
        self.out = nn.Linear(self.inner, D, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        z, xbc, dt = self.into(x).split([self.inner, self.inner + 2 * self.state, self.heads], -1)
        xbc = F.silu(self.conv(xbc.transpose(1, 2))[..., :t].transpose(1, 2))
        u, B, C = xbc.split([self.inner, self.state, self.state], -1)
        u, dt = u.view(b, t, self.heads, -1), F.softplus(dt + self.dt_bias)
        decay = (dt * -self.A_log.exp()).cumsum(1)
        gaps = decay[:, :, None] - decay[:, None]
        mask = torch.ones(t, t, dtype=torch.bool).tril()[None, :, :, None]
        weights = gaps.masked_fill(~mask, -torch.inf).exp() * (C @ B.mT)[..., None] * dt[:, None]
        y = torch.einsum("btsh,bshp->bthp", weights, u) + self.skip[:, None] * u
        return x + self.out(self.norm(y.reshape(b, t, -1) * F.silu(z)))


class Hyena(nn.Module):
    """Order two: gates around a long convolution whose filter is a small network of the position."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.short = nn.Conv1d(3 * D, 3 * D, 3, padding=2, groups=3 * D)
        self.filter = nn.Sequential(nn.Linear(5, 24), nn.GELU(), nn.Linear(24, D))
        steps = torch.linspace(0, 1, T)[:, None]
        bands = 2 * math.pi * torch.arange(1, 3) * steps
        self.register_buffer("positions", torch.cat([steps, bands.sin(), bands.cos()], -1))

    def forward(self, x: Tensor) -> Tensor:
        u = self.short(self.into(x).transpose(1, 2))[..., :T]
        a, b, v = u.chunk(3, 1)
        h = self.filter(self.positions).T * torch.exp(-torch.arange(T) / 4)
        v = v * b
        y = torch.fft.irfft(torch.fft.rfft(v, 2 * T) * torch.fft.rfft(h, 2 * T), 2 * T)[..., :T]
        return x + self.out((y * a).transpose(1, 2))


class WaveNet(nn.Module):
    def __init__(self, layers: int = 4):
        super().__init__()
        self.start = nn.Conv1d(1, D, 1)
        self.gates = nn.ModuleList(nn.Conv1d(D, 2 * D, 2, dilation=2**i) for i in range(layers))
        self.residuals = nn.ModuleList(nn.Conv1d(D, D, 1) for _ in range(layers))
        self.skips = nn.ModuleList(nn.Conv1d(D, D, 1) for _ in range(layers))
        self.end = nn.Sequential(nn.ReLU(), nn.Conv1d(D, D, 1), nn.ReLU(), nn.Conv1d(D, 16, 1))

    def forward(self, wave: Tensor) -> Tensor:
        x, total = self.start(wave), 0
        for i, (gate, residual, skip) in enumerate(zip(self.gates, self.residuals, self.skips, strict=True)):
            a, b = gate(F.pad(x, (2**i, 0))).chunk(2, 1)
            h = torch.tanh(a) * torch.sigmoid(b)
            x, total = x + residual(h), total + skip(h)
        return self.end(total)


class MatrixLSTM(nn.Module):
    """mLSTM of xLSTM in its parallel form: exponential input gates, stabilized, normalized by what was added up."""

    def __init__(self, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.qkv, self.gates = nn.Linear(D, 3 * D), nn.Linear(D, 2 * heads)
        self.norm, self.group, self.out = nn.LayerNorm(D), nn.GroupNorm(heads, D), nn.Linear(D, D)
        nn.init.zeros_(self.gates.weight)
        with torch.no_grad():
            self.gates.bias.copy_(torch.cat([torch.randn(heads) * 0.1, torch.linspace(3, 6, heads)]))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (item.unflatten(-1, (self.heads, -1)).transpose(1, 2) for item in self.qkv(h).chunk(3, -1))
        i, f = self.gates(h).mT.chunk(2, 1)
        logs = F.logsigmoid(f).cumsum(-1)
        matrix = (logs[..., :, None] - logs[..., None, :] + i[..., None, :]).masked_fill(
            ~torch.ones(T, T, dtype=torch.bool).tril(), -torch.inf
        )
        top = matrix.amax(-1, keepdim=True)
        weights = (q @ k.mT) / math.sqrt(q.shape[-1]) * torch.exp(matrix - top)
        y = weights @ v / torch.maximum(weights.sum(-1, keepdim=True).abs(), torch.exp(-top))
        y = y.transpose(1, 2).flatten(2)
        return x + self.out(self.group(y.flatten(0, 1)).view_as(y))


class Rwkv6(nn.Module):
    """Token shift by a data-dependent mix, decay from a low-rank map, state of keys times values, step by step."""

    def __init__(self, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.mix = nn.Parameter(torch.rand(4, D))
        self.low, self.high = nn.Linear(D, 8, bias=False), nn.Linear(8, D, bias=False)
        self.decay, self.bonus = nn.Parameter(torch.linspace(-6, -1, D)), nn.Parameter(torch.randn(D) * 0.3)
        self.r, self.k, self.v, self.g, self.o = (nn.Linear(D, D, bias=False) for _ in range(5))
        self.norm, self.group = nn.LayerNorm(D), nn.GroupNorm(heads, D)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        before = F.pad(h, (0, 0, 1, -1)) - h
        r, k, v, g = (f(h + before * m) for f, m in zip((self.r, self.k, self.v, self.g), self.mix, strict=True))
        w = torch.exp(-torch.exp(self.decay + self.high(torch.tanh(self.low(h)))))
        r, k, v, w = (item.unflatten(-1, (self.heads, -1)) for item in (r, k, v, w))
        u = self.bonus.view(self.heads, -1)
        state, made = torch.zeros(x.shape[0], self.heads, D // self.heads, D // self.heads), []
        for t in range(T):
            kv = k[:, t, :, :, None] * v[:, t, :, None]
            made.append((r[:, t, :, None] @ (state + u[..., None] * kv)).squeeze(2))
            state = w[:, t, :, :, None] * state + kv
        y = torch.stack(made, 1).flatten(2)
        return x + self.o(self.group(y.flatten(0, 1)).view_as(y) * F.silu(g))


class GatedDelta(nn.Module):
    """Gated delta rule step by step, keys on the unit sphere."""

    def __init__(self, heads: int = 2):
        super().__init__()
        self.heads = heads
        self.qkv, self.beta, self.alpha = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, heads), nn.Linear(D, heads)
        self.gate, self.out, self.norm = nn.Linear(D, D), nn.Linear(D, D), nn.RMSNorm(D // heads)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (item.unflatten(-1, (self.heads, -1)) for item in F.silu(self.qkv(x)).chunk(3, -1))
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        beta, alpha = self.beta(x).sigmoid()[..., None, None], torch.exp(-F.softplus(self.alpha(x)))[..., None, None]
        state, made = torch.zeros(x.shape[0], self.heads, D // self.heads, D // self.heads), []
        for t in range(T):
            key = k[:, t, :, :, None]
            state = alpha[:, t] * state
            state = state + beta[:, t] * key * (v[:, t, :, None] - key.mT @ state)
            made.append((q[:, t, :, None] @ state).squeeze(2))
        y = self.norm(torch.stack(made, 1)).flatten(2)
        return x + self.out(y * F.silu(self.gate(x)))


class HyperSphere(nn.Module):
    """nGPT: everything on the unit sphere, learned eigen rates and scales."""

    def __init__(self, layers: int = 2, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.embed, self.head = nn.Embedding(WORDS, D), nn.Linear(D, WORDS, bias=False)
        self.qkv = nn.ModuleList(nn.Linear(D, 3 * D, bias=False) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(D, D, bias=False) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(D, 4 * D, bias=False) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(2 * D, D, bias=False) for _ in range(layers))
        self.rates = nn.Parameter(torch.full((layers, 2, D), 0.2))
        self.scale = nn.Parameter(torch.full((WORDS,), 5.0))

    def forward(self, words: Tensor) -> Tensor:
        x = F.normalize(self.embed(words), dim=-1)
        for qkv, out, up, down, rate in zip(self.qkv, self.out, self.up, self.down, self.rates, strict=True):
            q, k, v = (item.unflatten(-1, (self.heads, -1)).transpose(1, 2) for item in qkv(x).chunk(3, -1))
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=math.sqrt(D / self.heads))
            y = F.normalize(out(y.transpose(1, 2).flatten(2)), dim=-1)
            x = F.normalize(x + rate[0] * (y - x), dim=-1)
            a, b = (up(x) * math.sqrt(D)).chunk(2, -1)
            x = F.normalize(x + rate[1] * (F.normalize(down(a * F.silu(b)), dim=-1) - x), dim=-1)
        return self.head(x) * self.scale


class MixtureOfDepths(nn.Module):
    """A router sends half of the tokens through a block; the others pass by."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, D), nn.Linear(D, WORDS)
        self.routers = nn.ModuleList(nn.Linear(D, 1) for _ in range(2))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D)) for _ in range(2)
        )

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        for router, block in zip(self.routers, self.blocks, strict=True):
            weights = router(x).squeeze(-1)
            best = weights.topk(T // 2, dim=1).indices.sort(1).values
            chosen = x.gather(1, best[..., None].expand(-1, -1, D))
            update = block(chosen) * weights.gather(1, best).sigmoid()[..., None]
            x = x.scatter_add(1, best[..., None].expand(-1, -1, D), update)
        return self.head(x)


class CappedExperts(nn.Module):
    """Two best experts with a capacity: what comes too late is dropped; the loss has a term for balance."""

    def __init__(self, experts: int = 4):
        super().__init__()
        self.experts, self.norm = experts, nn.LayerNorm(D)
        self.router = nn.Linear(D, experts, bias=False)
        self.first, self.second = (
            nn.Parameter(torch.empty(experts, D, 2 * D)),
            nn.Parameter(torch.empty(experts, 2 * D, D)),
        )
        for weight in (self.first, self.second):
            nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        flat = self.norm(x).flatten(0, 1)
        shares = self.router(flat).softmax(-1)
        top, index = shares.topk(2, -1)
        chosen = F.one_hot(index, self.experts).sum(1)
        room = (chosen.cumsum(0) <= 20) & (chosen > 0)
        gates = shares * room / top.sum(-1, keepdim=True)
        hidden = F.relu(torch.einsum("nd,edh->neh", flat, self.first))
        out = torch.einsum("neh,ehd,ne->nd", hidden, self.second, gates)
        balance = self.experts * (chosen.float().mean(0) * shares.mean(0)).sum()
        return x + out.view_as(x), balance


class TuringMachine(nn.Module):
    """A controller that reads and writes a memory by content, with interpolation and shifts."""

    def __init__(self, slots: int = 8, width: int = 12):
        super().__init__()
        self.slots, self.width = slots, width
        self.cell, self.head = nn.LSTMCell(D + width, D), nn.Linear(D, 2 * width + 5)
        self.write, self.out = nn.Linear(D, 2 * width), nn.Linear(D + width, 8)
        self.register_buffer("start", torch.full((slots, width), 1e-2))

    def forward(self, x: Tensor) -> Tensor:
        b = x.shape[0]
        memory = self.start.expand(b, -1, -1)
        h, c, read = x.new_zeros(b, D), x.new_zeros(b, D), x.new_zeros(b, self.width)
        weights = F.softmax(x.new_zeros(b, self.slots), -1)
        for t in range(6):
            h, c = self.cell(torch.cat([x[:, t], read], -1), (h, c))
            key, rest = self.head(h).split([2 * self.width, 5], -1)
            by_content = (
                F.cosine_similarity(memory, key[:, None, : self.width], dim=-1) * F.softplus(rest[:, :1])
            ).softmax(-1)
            gate = torch.sigmoid(rest[:, 1:2])
            weights = gate * by_content + (1 - gate) * weights
            shift = rest[:, 2:].softmax(-1)
            weights = sum(shift[:, i : i + 1] * weights.roll(i - 1, -1) for i in range(3))
            erase, add = self.write(h).chunk(2, -1)
            memory = (
                memory * (1 - weights[..., None] * erase.sigmoid()[:, None]) + weights[..., None] * add.tanh()[:, None]
            )
            read = (weights[..., None] * memory).sum(1)
        return self.out(torch.cat([h, read], -1))


class LocationAttention(nn.Module):
    """A recurrent decoder that attends with what it attended to before, as in Tacotron."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(D + 8, D)
        self.query, self.memory, self.energy = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False), nn.Linear(D, 1)
        self.location, self.place = nn.Conv1d(1, 4, 5, padding=2), nn.Linear(4, D, bias=False)
        self.out = nn.Linear(2 * D, 8)

    def forward(self, x: Tensor) -> Tensor:
        keys, h = self.memory(x), x.new_zeros(x.shape[0], D)
        total, frame, made = x.new_zeros(x.shape[:2]), x.new_zeros(x.shape[0], 8), []
        context = x.mean(1)
        for _ in range(5):
            h = self.cell(torch.cat([context, frame], -1), h)
            place = self.place(self.location(total[:, None]).mT)
            weights = self.energy(torch.tanh(self.query(h)[:, None] + keys + place)).squeeze(-1).softmax(-1)
            total, context = total + weights, (weights[:, None] @ x).squeeze(1)
            frame = self.out(torch.cat([h, context], -1))
            made.append(frame)
        return torch.stack(made, 1)


class Liquid(nn.Module):
    """Liquid time constants, six fused steps for each input."""

    def __init__(self):
        super().__init__()
        self.into, self.state = nn.Linear(D, D), nn.Linear(D, D, bias=False)
        self.tau, self.rest = nn.Parameter(torch.rand(D) + 0.5), nn.Parameter(torch.randn(D))
        self.out = nn.Linear(D, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], D)
        for t in range(5):
            drive = self.into(x[:, t])
            for _ in range(6):
                f = torch.sigmoid(drive + self.state(h))
                h = (h + 0.1 * f * self.rest) / (1 + 0.1 * (1 / self.tau + f))
        return self.out(h)


class SpeechCtc(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU()
        )
        self.rnn, self.head = nn.GRU(8 * 5, D, bidirectional=True, batch_first=True), nn.Linear(2 * D, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.front(x).transpose(1, 2).flatten(2))[0]).log_softmax(-1)


def ctc(out: Tensor) -> Tensor:
    return F.ctc_loss(
        out.transpose(0, 1), ids(11, 2, 4, seed=2) + 1, torch.full((2,), out.shape[1]), torch.full((2,), 4)
    )


class PredictiveCoding(nn.Module):
    """A convolutional encoder, a recurrent context, and scores of the true future among others."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Conv1d(1, D, 8, stride=4), nn.ReLU(), nn.Conv1d(D, D, 4, stride=2), nn.ReLU())
        self.context, self.guess = nn.GRU(D, D, batch_first=True), nn.Linear(D, D, bias=False)

    def forward(self, wave: Tensor) -> Tensor:
        z = self.encode(wave).mT
        guess = self.guess(self.context(z)[0][:, -3])
        return guess @ z[:, -1].T


class BytePatches(nn.Module):
    """A byte-level model: hashed pairs of bytes, average over patches, attention over patches, then back."""

    def __init__(self):
        super().__init__()
        self.bytes, self.pairs = nn.Embedding(WORDS, D), nn.Embedding(97, D)
        self.attention = nn.MultiheadAttention(D, 4, batch_first=True)
        self.norm, self.local, self.head = nn.LayerNorm(D), nn.Linear(2 * D, D), nn.Linear(D, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        hashed = (words * 31 + F.pad(words, (1, -1))) % 97
        x = self.bytes(words) + self.pairs(hashed)
        patches = x.unflatten(1, (4, -1)).mean(2)
        h = self.norm(patches)
        mask = torch.ones(4, 4, dtype=torch.bool).triu(1)
        patches = patches + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        back = F.pad(patches, (0, 0, 1, -1)).repeat_interleave(T // 4, 1)
        return self.head(F.gelu(self.local(torch.cat([x, back], -1))))


class SelfAttentiveRecommender(nn.Module):
    """SASRec: items, learned positions, scores against a positive and a negative item."""

    def __init__(self):
        super().__init__()
        self.items, self.places = nn.Embedding(WORDS, D, padding_idx=0), nn.Embedding(T, D)
        self.layer = nn.TransformerEncoderLayer(D, 2, D, 0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(D)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        x = self.items(words) * math.sqrt(D) + self.places(torch.arange(T))
        x = self.norm(self.layer(x, src_mask=nn.Transformer.generate_square_subsequent_mask(T)))
        return (x * self.items(NEXT)).sum(-1), (x * self.items(NEXT.flip(1))).sum(-1)


def tokens() -> Tensor:
    return noise(2, T, D)


def cases() -> Iterator[Case]:
    def case(name: str, kind: str, *rest) -> Case:
        return Case(f"network/{name}", kind, *rest, added=5)

    yield case("mamba 2", "state space", Mamba2, tokens)
    yield case("hyena", "state space", Hyena, tokens)
    yield case("wavenet", "convolutions", WaveNet, lambda: noise(2, 1, 64))
    yield case("matrix lstm", "recurrent", MatrixLSTM, tokens)
    yield case("rwkv 6", "recurrent", Rwkv6, tokens)
    yield case("gated delta rule", "recurrent", GatedDelta, tokens)
    yield case("normalized gpt", "attention", HyperSphere, lambda: WORD_IDS, next_word)
    yield case("mixture of depths", "experts", MixtureOfDepths, lambda: WORD_IDS, next_word)
    yield case("capped experts", "experts", CappedExperts, tokens, lambda out: out[0].square().mean() + 0.01 * out[1])
    yield case("turing machine", "recurrent", TuringMachine, tokens)
    yield case("location attention", "recurrent", LocationAttention, tokens)
    yield case("liquid time constants", "recurrent", Liquid, tokens)
    yield case("speech with ctc", "losses", SpeechCtc, lambda: noise(2, 1, 40, 20), ctc)
    yield case("predictive coding", "losses", PredictiveCoding, lambda: noise(4, 1, 160), _own)
    yield case("bytes in patches", "attention", BytePatches, lambda: WORD_IDS, next_word)
    yield case("recommender of items", "losses", SelfAttentiveRecommender, lambda: WORD_IDS, _ranked)


def _own(out: Tensor) -> Tensor:
    return F.cross_entropy(out, torch.arange(len(out)))


def _ranked(out: tuple[Tensor, Tensor]) -> Tensor:
    return -F.logsigmoid(out[0] - out[1]).mean()
