"""The ninth set: 20 language models, listed before any of them was predicted.

Experts as repositories write them, attentions, state-space and recurrent models that no earlier set has, and five families
of `transformers` at two layers. `studies.corpus.fresh --models ninth` predicts each once.
"""

# ruff: noqa: E501, E731

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.corpus.case import Case, ids

W, V, HEADS = 64, 128, 4


class Layer(nn.Module):
    """A mixer of tokens and a part for each token, both with a norm before and a shortcut around."""

    def __init__(self, mixer: nn.Module, feed: nn.Module):
        super().__init__()
        self.ln1, self.ln2, self.mixer, self.feed = nn.RMSNorm(W), nn.RMSNorm(W), mixer, feed

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(self.ln1(x))
        return x + self.feed(self.ln2(x))


class Model(nn.Module):
    def __init__(self, layer: Callable[[], nn.Module], depth: int = 2):
        super().__init__()
        self.embed, self.layers = nn.Embedding(V, W), nn.ModuleList([layer() for _ in range(depth)])
        self.norm, self.head = nn.RMSNorm(W), nn.Linear(W, V, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Feed(nn.Sequential):
    def __init__(self, hidden: int = 4 * W):
        super().__init__(nn.Linear(W, hidden), nn.GELU(), nn.Linear(hidden, W))


def later(length: int) -> Tensor:
    """Which keys come after a query."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)


class Attention(nn.Module):
    """Causal; what scores become is for others to say."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(W, W, bias=False) for _ in range(4))

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (layer(x).unflatten(-1, (HEADS, -1)) for layer in (self.query, self.key, self.value))
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def scored(self, x: Tensor, scores: Tensor) -> Tensor:
        return scores.masked_fill(later(x.shape[1]), float("-inf")).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        weights = self.scored(x, q @ k.mT / math.sqrt(q.shape[-1]))
        return self.out((weights @ v).transpose(1, 2).flatten(2))


# -- experts


class Experts(nn.Module):
    def __init__(self, count: int = 4, hidden: int = 96):
        super().__init__()
        self.router, self.count = nn.Linear(W, count, bias=False), count
        self.experts = nn.ModuleList([Feed(hidden) for _ in range(count)])


class SwitchFeed(Experts):
    """One expert for each token, which drops what is beyond its capacity; dispatched by products with one-hot masks."""

    capacity = 8

    def forward(self, x: Tensor) -> Tensor:
        probabilities = self.router(x).softmax(-1)
        gate, index = probabilities.max(-1)
        mask = F.one_hot(index, self.count).float()
        place = (mask.cumsum(1) - 1.0) * mask
        mask = mask * (place < self.capacity)
        slots = F.one_hot(place.sum(-1).long(), x.shape[1]).float()
        dispatch = mask[..., None] * slots[:, :, None]
        inside = torch.einsum("btec,btd->ebcd", dispatch, x)
        made = torch.stack([expert(inside[n]) for n, expert in enumerate(self.experts)])
        return torch.einsum("btec,ebcd->btd", dispatch * gate[..., None, None], made)


class ExpertChoice(Experts):
    """Experts choose their tokens."""

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x).softmax(-1)
        gates, chosen = scores.transpose(1, 2).topk(2 * x.shape[1] // self.count, -1)
        picks = F.one_hot(chosen, x.shape[1]).type_as(x)
        inside = torch.einsum("bekt,btd->bekd", picks, x)
        made = torch.stack([expert(inside[:, n]) for n, expert in enumerate(self.experts)], 1)
        return torch.einsum("bekt,bek,bekd->btd", picks, gates, made)


class LoopedExperts(Experts):
    """Each expert on its own tokens, added where they stood, as the first code of Mixtral."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, W)
        weights, chosen = self.router(flat).softmax(-1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        total = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            tokens, place = torch.where(chosen == number)
            total.index_add_(0, tokens, weights[tokens, place, None] * expert(flat[tokens]))
        return total.view_as(x)


class ThresholdExperts(Experts):
    """Every expert above a share of the best one, by a mask; the shares are not normalized again."""

    def forward(self, x: Tensor) -> Tensor:
        shares = self.router(x).sigmoid()
        shares = shares * (shares >= 0.9 * shares.amax(-1, keepdim=True))
        return sum(shares[..., n, None] * expert(x) for n, expert in enumerate(self.experts))  # type: ignore[return-value]


class Depths(nn.Module):
    """Mixture of depths: half of the tokens, the best by a score, go through the block."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.block = nn.Linear(W, 1), Layer(Attention(), Feed())

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x).squeeze(-1)
        best, index = scores.topk(x.shape[1] // 2, dim=1)
        index, order = index.sort(dim=1)
        places = index[..., None].expand(-1, -1, W)
        made = self.block(x.gather(1, places)) * best.gather(1, order).sigmoid()[..., None]
        return x.scatter_add(1, places, made)


# -- attentions


class SinkAttention(Attention):
    """A window of eight keys, and a learned sink for each head that takes weight and gives nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.sinks = nn.Parameter(torch.randn(HEADS))

    def scored(self, x: Tensor, scores: Tensor) -> Tensor:
        length = x.shape[1]
        hidden = later(length) | torch.ones(length, length, dtype=torch.bool).tril(-8)
        sinks = self.sinks.view(1, -1, 1, 1).expand(len(x), -1, length, 1)
        return torch.cat([scores.masked_fill(hidden, float("-inf")), sinks], -1).softmax(-1)[..., :-1]


class ForgettingAttention(Attention):
    """Scores less the sum of what forget gates between key and query say."""

    def __init__(self) -> None:
        super().__init__()
        self.forget = nn.Linear(W, HEADS)

    def scored(self, x: Tensor, scores: Tensor) -> Tensor:
        past = F.logsigmoid(self.forget(x)).cumsum(1).transpose(1, 2)
        return super().scored(x, scores + past[..., :, None] - past[..., None, :])


class RelativeAttention(Attention):
    """Transformer-XL: positions by sines of the distance, shifted, with two biases of the query."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Linear(W, W, bias=False)
        self.content_bias, self.position_bias = (
            nn.Parameter(0.02 * torch.randn(HEADS, 1, W // HEADS)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        length = x.shape[1]
        angles = torch.arange(length - 1, -1, -1.0)[:, None] / 10000 ** (torch.arange(0, W, 2) / W)
        r = self.position(torch.cat([angles.sin(), angles.cos()], -1)).unflatten(-1, (HEADS, -1)).transpose(0, 1)
        by_place = F.pad((q + self.position_bias) @ r.mT, (1, 0)).view(len(x), HEADS, length + 1, length)[:, :, 1:]
        scores = (q + self.content_bias) @ k.mT + by_place
        weights = self.scored(x, scores / math.sqrt(q.shape[-1]))
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class GatedOutput(Attention):
    """Values through a gate of the input, heads normalized, a quarter of each head rotated."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.norm = nn.Linear(W, W), nn.RMSNorm(W // HEADS)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        angles = torch.arange(x.shape[1])[:, None] * torch.tensor([1.0, 0.01])
        q, k = (self.turned(self.norm(y), angles) for y in (q, k))
        made = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.out(made * torch.sigmoid(self.gate(x)))

    @staticmethod
    def turned(y: Tensor, angles: Tensor) -> Tensor:
        a, b, rest = y.split([2, 2, y.shape[-1] - 4], -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos(), rest], -1)


# -- state spaces and recurrences


class DiagonalStateSpace(nn.Module):
    """S4D: a long convolution whose kernel sums decaying oscillations, by Fourier transforms."""

    def __init__(self, states: int = 16):
        super().__init__()
        self.log_step = nn.Parameter(torch.rand(W) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
        self.log_decay = nn.Parameter(torch.log(0.5 * torch.ones(W, states)))
        self.turns = nn.Parameter(math.pi * torch.arange(states).repeat(W, 1).float())
        self.out_c, self.skip = nn.Parameter(torch.randn(W, states, 2) * 0.5**0.5), nn.Parameter(torch.randn(W))
        self.mix = nn.Linear(W, 2 * W)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        step, poles = self.log_step.exp(), torch.complex(-self.log_decay.exp(), self.turns)
        moved = poles * step[:, None]
        weights = torch.view_as_complex(self.out_c) * (moved.exp() - 1.0) / poles
        kernel = 2.0 * torch.einsum("ds,dst->dt", weights, (moved[..., None] * torch.arange(length)).exp()).real
        x = x.transpose(1, 2)
        y = torch.fft.irfft(torch.fft.rfft(x, n=2 * length) * torch.fft.rfft(kernel, n=2 * length), n=2 * length)
        return F.glu(self.mix(F.gelu(y[..., :length] + self.skip[:, None] * x).transpose(1, 2)), -1)


class ScalarStateSpace(nn.Module):
    """Mamba 2 in its quadratic form: one decay for each head and step, masked products in place of a scan."""

    def __init__(self, states: int = 16, inner: int = 2 * W):
        super().__init__()
        self.sizes = (inner, inner, states, states, HEADS)
        self.into, self.out, self.norm = (
            nn.Linear(W, sum(self.sizes), bias=False),
            nn.Linear(inner, W, bias=False),
            nn.RMSNorm(inner),
        )
        self.step_bias = nn.Parameter(torch.log(torch.expm1(torch.rand(HEADS) * 0.099 + 0.001)))
        self.log_a, self.skip = nn.Parameter(torch.log(torch.rand(HEADS) * 15 + 1)), nn.Parameter(torch.ones(HEADS))

    def forward(self, u: Tensor) -> Tensor:
        z, x, b, c, step = self.into(u).split(self.sizes, -1)
        x, step = F.silu(x).unflatten(-1, (HEADS, -1)), F.softplus(step + self.step_bias)
        past = (-self.log_a.exp() * step).cumsum(1).transpose(1, 2)
        decay = (past[..., :, None] - past[..., None, :]).masked_fill(later(u.shape[1]), float("-inf")).exp()
        scores = (c @ b.mT)[:, None] * decay
        y = torch.einsum("bhts,bsh,bshd->bthd", scores, step, x) + self.skip[:, None] * x
        return self.out(self.norm(y.flatten(2) * F.silu(z)))


class TimeMix(nn.Module):
    """RWKV 5: shifted tokens, a matrix state with a decay for each channel, a bonus for the present."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.rand(4, W))
        self.receptance, self.key, self.value, self.gate, self.out = (nn.Linear(W, W, bias=False) for _ in range(5))
        self.decay, self.bonus = (
            nn.Parameter(torch.linspace(-6, -1, W).view(HEADS, -1)),
            nn.Parameter(torch.rand(HEADS, W // HEADS)),
        )
        self.norm = nn.GroupNorm(HEADS, W)

    def forward(self, x: Tensor) -> Tensor:
        before = F.pad(x, (0, 0, 1, -1))
        layers = (self.receptance, self.key, self.value, self.gate)
        r, k, v, g = (layer(x * m + before * (1 - m)) for layer, m in zip(layers, self.mix, strict=True))
        r, k, v = (y.unflatten(-1, (HEADS, -1)) for y in (r, k, v))
        kept, state, made = torch.exp(-torch.exp(self.decay))[..., None], 0.0, []
        for t in range(x.shape[1]):
            now = k[:, t, ..., None] * v[:, t, :, None]
            made.append((r[:, t, :, None] @ (self.bonus[..., None] * now + state)).squeeze(2))
            state = kept * state + now
        y = self.norm(torch.stack(made, 1).flatten(2).flatten(0, 1)).view_as(x)
        return self.out(y * F.silu(g))


class MinimalLstm(nn.Module):
    """minLSTM: gates of the input alone, so that all steps are one sum in logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.forget, self.input, self.hidden, self.out = (nn.Linear(W, W) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        difference = F.softplus(-self.forget(x)) - F.softplus(-self.input(x))
        kept, given = -F.softplus(difference), -F.softplus(-difference)
        inside = self.hidden(x)
        value = torch.where(inside >= 0, (F.relu(inside) + 0.5).log(), -F.softplus(-inside))
        past = kept.cumsum(1)
        return self.out((past + (given + value - past).logcumsumexp(1)).exp())


class MatrixLstm(Attention):
    """mLSTM of xLSTM in parallel: exponential input gates, stabilized by the largest, a normalizer from below."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.norm, self.open = nn.Linear(W, 2 * HEADS), nn.GroupNorm(HEADS, W), nn.Linear(W, W)
        with torch.no_grad():
            self.gates.bias.copy_(torch.cat([torch.full((HEADS,), -3.0), torch.linspace(3.0, 6.0, HEADS)]))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        given, kept = self.gates(x).transpose(1, 2).chunk(2, 1)
        past = F.logsigmoid(kept).cumsum(-1)
        log = (past[..., :, None] - past[..., None, :] + given[..., None, :]).masked_fill(
            later(x.shape[1]), float("-inf")
        )
        largest = log.amax(-1, keepdim=True)
        scores = q @ k.mT / math.sqrt(q.shape[-1]) * (log - largest).exp()
        size = torch.maximum(scores.sum(-1, keepdim=True).abs(), (-largest).exp())
        y = (scores / (size + 1e-6) @ v).transpose(1, 2).flatten(2)
        return self.out(self.norm(y.flatten(0, 1)).view_as(x) * torch.sigmoid(self.open(x)))


class RecurrentModel(nn.Module):
    """The language model of AWD-LSTM: three cells, locked dropout off, the table as its head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Embedding(V, W)
        self.rnns = nn.ModuleList([nn.LSTM(a, b, batch_first=True) for a, b in ((W, 96), (96, 96), (96, W))])
        self.decoder = nn.Linear(W, V)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        self.decoder.weight = self.encoder.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.encoder(tokens)
        for rnn in self.rnns:
            x, _ = rnn(x)
        return self.decoder(x)


# -- the list


SIZES = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "n_head": 4, "d_model": 64, "n_layer": 2, "d_inner": 160,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
FAMILIES = {
    "qwen3_moe": {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    "deepseek_v3": {
        "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 48,
        "kv_lora_rank": 24, "q_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
        "first_k_dense_replace": 1, "num_key_value_heads": 4, "head_dim": 8,
    },
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8},
    "stablelm": {},
    "xlnet": {},
}  # fmt: skip


def family(name: str) -> nn.Module:
    from transformers import AutoConfig, AutoModel

    return AutoModel.from_config(AutoConfig.for_model(name, **(SIZES | FAMILIES[name]))).eval()


def cases() -> Iterator[Case]:
    with_experts = lambda feed: partial(Model, lambda: Layer(Attention(), feed()))
    mixing = lambda mixer: partial(Model, lambda: Layer(mixer(), Feed()))
    own: dict[str, Callable[[], nn.Module]] = {
        "switch": with_experts(SwitchFeed), "expert choice": with_experts(ExpertChoice),
        "looped experts": with_experts(LoopedExperts), "threshold experts": with_experts(ThresholdExperts),
        "mixture of depths": partial(Model, Depths), "sinks": mixing(SinkAttention),
        "forgetting": mixing(ForgettingAttention), "relative": mixing(RelativeAttention), "gated output": mixing(GatedOutput),
        "s4d": mixing(DiagonalStateSpace), "scalar state space": mixing(ScalarStateSpace), "time mix": mixing(TimeMix),
        "minimal lstm": mixing(MinimalLstm), "matrix lstm": mixing(MatrixLstm),
        "awd lstm": RecurrentModel,
    }  # fmt: skip
    for name, make in own.items():
        yield Case(f"ninth/{name}", "own code", make, partial(ids, V, 2, 16))
    for name in FAMILIES:
        yield Case(f"ninth/{name}", "transformers", partial(family, name), lambda: {"input_ids": 3 + ids(125, 2, 12)})
