"""The eighth set: 40 models, listed before any of them was predicted; six of 90 to 150 million parameters.

Whole networks in the manner of public repositories: language models of the last years, vision, speech, graphs,
recommenders, policies, forecasts. Nothing is taken from the earlier sets. `studies.corpus.fresh --models eighth`
predicts each once.
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

from studies.corpus import eighth_others as others
from studies.corpus.case import Case, ids, noise
from studies.corpus.eighth_others import DiT

LARGE = "eighth/large"
"""What the names of models that are judged on four initializations begin with."""
W, V = 64, 128


def causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def rotated(x: Tensor, base: float = 10000.0) -> Tensor:
    """Rotary positions of (batch, heads, tokens, size), halves together as in Llama."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * base ** (-torch.arange(half) / half)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x)


def normal_(model: nn.Module, std: float = 0.02) -> nn.Module:
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, 0.0, std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


# -- language models


class NanoAttention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.c_attn, self.c_proj, self.n_head = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = (y.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for y in self.c_attn(x).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class NanoMLP(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.c_fc, self.gelu, self.c_proj = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(self.gelu(self.c_fc(x)))


class NanoBlock(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), NanoAttention(width, heads)
        self.ln_2, self.mlp = nn.LayerNorm(width), NanoMLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    def __init__(self, depth: int = 3, width: int = W, heads: int = 4, vocabulary: int = V):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocabulary, width), "wpe": nn.Embedding(64, width),
            "h": nn.ModuleList([NanoBlock(width, heads) for _ in range(depth)]), "ln_f": nn.LayerNorm(width),
        })  # fmt: skip
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        normal_(self)
        for name, weight in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(weight, 0.0, 0.02 / math.sqrt(2 * depth))
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx: Tensor) -> Tensor:
        x = self.transformer.wte(idx) + self.transformer.wpe(torch.arange(idx.shape[1]))
        for block in self.transformer.h:  # type: ignore[union-attr]
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


class LlamaAttention(nn.Module):
    """Grouped keys; a norm of each query and key head as Qwen 3 has it; scores under a cap as in Gemma 2."""

    def __init__(self, dim: int, heads: int, kv: int, qk_norm: bool = False, cap: float = 0.0, head: int | None = None):
        super().__init__()
        self.heads, self.kv, self.size, self.cap = heads, kv, head or dim // heads, cap
        self.q_proj, self.o_proj = nn.Linear(dim, heads * self.size, False), nn.Linear(heads * self.size, dim, False)
        self.k_proj, self.v_proj = (nn.Linear(dim, kv * self.size, False) for _ in range(2))
        self.q_norm, self.k_norm = (RMSNorm(self.size) if qk_norm else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q = rotated(self.q_norm(self.q_proj(x).view(B, T, self.heads, -1)).transpose(1, 2))
        k = rotated(self.k_norm(self.k_proj(x).view(B, T, self.kv, -1)).transpose(1, 2))
        v = self.v_proj(x).view(B, T, self.kv, -1).transpose(1, 2)
        k, v = (y.repeat_interleave(self.heads // self.kv, dim=1) for y in (k, v))
        scores = q @ k.transpose(2, 3) / math.sqrt(self.size)
        if self.cap:
            scores = self.cap * torch.tanh(scores / self.cap)
        scores = F.softmax(scores.masked_fill(~causal(T), float("-inf")).float(), dim=-1).type_as(q)
        return self.o_proj((scores @ v).transpose(1, 2).reshape(B, T, -1))


class GLU(nn.Module):
    def __init__(self, dim: int, hidden: int, act: Callable[[Tensor], Tensor] = F.silu):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(dim, hidden, bias=False) for _ in range(2))
        self.down_proj, self.act = nn.Linear(hidden, dim, bias=False), act

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(nn.Module):
    def __init__(self, dim: int, attention: nn.Module, feed: nn.Module):
        super().__init__()
        self.input_layernorm, self.self_attn = RMSNorm(dim), attention
        self.post_attention_layernorm, self.mlp = RMSNorm(dim), feed

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(
        self, layer: Callable[[], nn.Module], depth: int = 3, dim: int = W, vocabulary: int = V, norm: Any = RMSNorm
    ):
        super().__init__()
        self.embed_tokens, self.layers = nn.Embedding(vocabulary, dim), nn.ModuleList([layer() for _ in range(depth)])
        self.norm, self.lm_head = norm(dim), nn.Linear(dim, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


def llama() -> nn.Module:
    return normal_(Decoder(lambda: LlamaLayer(W, LlamaAttention(W, 4, 2), GLU(W, 176))))


def qwen3() -> nn.Module:
    return normal_(Decoder(lambda: LlamaLayer(W, LlamaAttention(W, 4, 2, qk_norm=True, head=24), GLU(W, 160))))


class OnePlusNorm(RMSNorm):
    def __init__(self, dim: int):
        super().__init__(dim)
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1.0 + self.weight)


class GemmaLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.mlp = LlamaAttention(W, 4, 1, cap=50.0), GLU(W, 192, partial(F.gelu, approximate="tanh"))
        self.input_layernorm, self.post_attention_layernorm = OnePlusNorm(W), OnePlusNorm(W)
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = OnePlusNorm(W), OnePlusNorm(W)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x)))
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class Gemma2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedder, self.layers = nn.Embedding(V, W), nn.ModuleList([GemmaLayer() for _ in range(3)])
        self.norm = OnePlusNorm(W)
        normal_(self)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedder(tokens) * W**0.5
        for layer in self.layers:
            x = layer(x)
        return 30.0 * torch.tanh(self.norm(x) @ self.embedder.weight.T / 30.0)


class LatentAttention(nn.Module):
    """Keys and values from one narrow latent, rotary parts beside them (DeepSeek V2)."""

    def __init__(self, heads: int = 4, latent: int = 24, nope: int = 16, rope: int = 8):
        super().__init__()
        self.heads, self.nope, self.rope = heads, nope, rope
        self.q_proj = nn.Linear(W, heads * (nope + rope), bias=False)
        self.kv_a_proj, self.kv_a_norm = nn.Linear(W, latent + rope, bias=False), RMSNorm(latent)
        self.kv_b_proj, self.o_proj = (
            nn.Linear(latent, heads * 2 * nope, bias=False),
            nn.Linear(heads * nope, W, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q_nope, q_rope = self.q_proj(x).view(B, T, self.heads, -1).transpose(1, 2).split([self.nope, self.rope], -1)
        latent, k_rope = self.kv_a_proj(x).split([self.kv_a_norm.weight.shape[0], self.rope], -1)
        k_nope, v = self.kv_b_proj(self.kv_a_norm(latent)).view(B, T, self.heads, -1).transpose(1, 2).chunk(2, -1)
        q = torch.cat([q_nope, rotated(q_rope)], -1)
        k = torch.cat([k_nope, rotated(k_rope[:, None]).expand(-1, self.heads, -1, -1)], -1)
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, -1))


class SigmoidMoE(nn.Module):
    """Sigmoid scores, a bias for the choice alone, a shared expert (DeepSeek V3)."""

    def __init__(self, count: int = 6, top: int = 2):
        super().__init__()
        self.gate, self.top = nn.Linear(W, count, bias=False), top
        self.register_buffer("bias", torch.zeros(count))
        self.experts, self.shared = nn.ModuleList([GLU(W, 48) for _ in range(count)]), GLU(W, 48)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x).sigmoid()
        chosen = (scores + self.bias).topk(self.top, dim=-1).indices  # type: ignore[operator]
        weights = scores.gather(-1, chosen)
        weights = 2.5 * weights / (weights.sum(-1, keepdim=True) + 1e-20)
        gates = torch.zeros_like(scores).scatter(-1, chosen, weights)
        return self.shared(x) + sum(gates[..., i, None] * expert(x) for i, expert in enumerate(self.experts))


def deepseek() -> nn.Module:
    return normal_(Decoder(lambda: LlamaLayer(W, LatentAttention(), SigmoidMoE()), depth=2))


class SpeedrunBlock(nn.Module):
    """modded-nanogpt: query-key norms without gains, relu squared, mixed values, scalars on both streams."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.c_proj = nn.Linear(W, 3 * W, bias=False), nn.Linear(W, W, bias=False)
        self.c_fc, self.mlp_proj = nn.Linear(W, 4 * W, bias=False), nn.Linear(4 * W, W, bias=False)
        self.lamb, self.lambdas = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.tensor([1.0, 0.0]))
        for weight in (self.c_proj.weight, self.mlp_proj.weight):
            nn.init.normal_(weight, 0.0, 0.02)

    def forward(self, x: Tensor, v1: Tensor | None, x0: Tensor) -> tuple[Tensor, Tensor]:
        x = self.lambdas[0] * x + self.lambdas[1] * x0
        q, k, v = (y.unflatten(-1, (4, -1)) for y in self.qkv(F.rms_norm(x, (W,))).chunk(3, -1))
        v1 = v if v1 is None else v1
        v = (1 - self.lamb) * v + self.lamb * v1
        q, k = (rotated(F.rms_norm(y, (y.shape[-1],)).transpose(1, 2)) for y in (q, k))
        y = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.c_proj(y)
        return x + self.mlp_proj(F.relu(self.c_fc(F.rms_norm(x, (W,)))).square()), v1


class Speedrun(nn.Module):
    def __init__(self, depth: int = 4):
        super().__init__()
        self.wte, self.h = nn.Embedding(V, W), nn.ModuleList([SpeedrunBlock() for _ in range(depth)])
        self.skip_weights, self.lm_head = nn.Parameter(torch.ones(depth // 2)), nn.Linear(W, V, bias=False)

    def forward(self, idx: Tensor) -> Tensor:
        x = x0 = F.rms_norm(self.wte(idx), (W,))
        v1, skips, half = None, [], len(self.h) // 2
        for place, block in enumerate(self.h):
            if place >= half:
                x = x + self.skip_weights[place - half] * skips.pop()
            x, v1 = block(x, v1, x0)
            if place < half:
                skips.append(x)
        return 30 * torch.tanh(self.lm_head(F.rms_norm(x, (W,))) / 30)


class NormalizedBlock(nn.Module):
    """nGPT: every vector on the sphere, steps along it of a learned size."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(W, 3 * W, bias=False), nn.Linear(W, W, bias=False)
        self.up, self.down = nn.Linear(W, 8 * W // 2, bias=False), nn.Linear(2 * W, W, bias=False)
        self.attn_alpha, self.mlp_alpha = (nn.Parameter(torch.full((W,), 0.05)) for _ in range(2))
        self.sqk, self.suv = nn.Parameter(torch.ones(W)), nn.Parameter(torch.ones(4 * W))

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.qkv(h).chunk(3, -1)
        q, k, v = (y.unflatten(-1, (4, -1)).transpose(1, 2) for y in (q, k, v))
        s = self.sqk.view(4, 1, -1)
        q, k = s * F.normalize(rotated(q), dim=-1), s * F.normalize(rotated(k), dim=-1)
        y = (
            F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=math.sqrt(q.shape[-1]))
            .transpose(1, 2)
            .flatten(2)
        )
        h = F.normalize(h + self.attn_alpha * (F.normalize(self.out(y), dim=-1) - h), dim=-1)
        u, g = (self.suv * math.sqrt(W) * self.up(h)).chunk(2, -1)
        return F.normalize(h + self.mlp_alpha * (F.normalize(self.down(u * F.silu(g)), dim=-1) - h), dim=-1)


def normalized_gpt() -> nn.Module:
    model: Any = Decoder(NormalizedBlock, norm=lambda dim: nn.Identity())
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, 0.0, W**-0.5)
                weight.copy_(F.normalize(weight, dim=0 if "out" in name or "down" in name else 1))
    return model


class HyperLayer(nn.Module):
    """Static hyper-connections over two streams around one branch."""

    def __init__(self, place: int, branch: nn.Module):
        super().__init__()
        self.norm, self.branch = nn.LayerNorm(W), branch
        self.read, self.write = nn.Parameter(F.one_hot(torch.tensor(place % 2), 2).float()), nn.Parameter(torch.ones(2))
        self.mix = nn.Parameter(torch.eye(2))

    def forward(self, streams: Tensor) -> Tensor:
        made = self.branch(self.norm(torch.einsum("s,sbtd->btd", self.read, streams)))
        return torch.einsum("rs,sbtd->rbtd", self.mix, streams) + self.write[:, None, None, None] * made


class HyperGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.norm, self.head = nn.Embedding(V, W), nn.LayerNorm(W), nn.Linear(W, V)
        branches = [NanoAttention(W, 4) if place % 2 == 0 else NanoMLP(W) for place in range(6)]
        self.layers = nn.ModuleList([HyperLayer(place, branch) for place, branch in enumerate(branches)])

    def forward(self, idx: Tensor) -> Tensor:
        streams = self.wte(idx).expand(2, -1, -1, -1)
        for layer in self.layers:
            streams = layer(streams)
        return self.head(self.norm(streams.sum(0)))


class Retention(nn.Module):
    """RetNet in its parallel form: a decay for each head, a group norm, a swish gate."""

    def __init__(self, heads: int = 4):
        super().__init__()
        self.wq, self.wk, self.wv, self.wg, self.wo = (nn.Linear(W, W, bias=False) for _ in range(5))
        self.group_norm, self.heads = nn.GroupNorm(heads, W, affine=False), heads
        self.register_buffer("decay", 1 - 2.0 ** (-5.0 - torch.arange(heads)))
        for layer in (self.wq, self.wk, self.wv, self.wg):
            nn.init.xavier_uniform_(layer.weight, gain=2**-2.5)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = (layer(x).view(B, T, self.heads, -1).transpose(1, 2) for layer in (self.wq, self.wk, self.wv))
        past = torch.arange(T)[:, None] - torch.arange(T)
        mask = torch.where(past >= 0, self.decay[:, None, None] ** past.clamp_min(0), 0.0)  # type: ignore[index]
        y = (rotated(q) @ rotated(k * (C // self.heads) ** -0.5).mT * mask) @ v
        y = self.group_norm(y.transpose(1, 2).reshape(B * T, C)).view(B, T, C)
        return self.wo(F.silu(self.wg(x)) * y)


class MambaMixer(nn.Module):
    def __init__(self, d_model: int = W, d_state: int = 8, d_conv: int = 4, expand: int = 2):
        super().__init__()
        self.inner, self.rank, self.state = expand * d_model, math.ceil(d_model / 16), d_state
        self.in_proj = nn.Linear(d_model, 2 * self.inner, bias=False)
        self.conv1d = nn.Conv1d(self.inner, self.inner, d_conv, groups=self.inner, padding=d_conv - 1)
        self.x_proj = nn.Linear(self.inner, self.rank + 2 * d_state, bias=False)
        self.dt_proj, self.out_proj = nn.Linear(self.rank, self.inner), nn.Linear(self.inner, d_model, bias=False)
        nn.init.uniform_(self.dt_proj.weight, -(self.rank**-0.5), self.rank**-0.5)
        dt = torch.exp(torch.rand(self.inner) * (math.log(0.1) - math.log(0.001)) + math.log(0.001)).clamp(min=1e-4)
        with torch.no_grad():
            self.dt_proj.bias.copy_(dt + torch.log(-torch.expm1(-dt)))
        self.A_log = nn.Parameter(torch.log(torch.arange(1, d_state + 1).float().repeat(self.inner, 1)))
        self.D = nn.Parameter(torch.ones(self.inner))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        x, z = self.in_proj(x).chunk(2, dim=-1)
        x = F.silu(self.conv1d(x.transpose(1, 2))[..., :length]).transpose(1, 2)
        dt, B, C = self.x_proj(x).split([self.rank, self.state, self.state], dim=-1)
        dt, A = F.softplus(self.dt_proj(dt)), -torch.exp(self.A_log)
        h, ys = x.new_zeros(x.shape[0], self.inner, self.state), []
        for t in range(length):
            h = torch.exp(dt[:, t, :, None] * A) * h + dt[:, t, :, None] * B[:, t, None] * x[:, t, :, None]
            ys.append((h * C[:, t, None]).sum(-1))
        return self.out_proj((torch.stack(ys, 1) + self.D * x) * F.silu(z))


class DeltaNet(nn.Module):
    """Linear attention that overwrites what a key held, step by step."""

    def __init__(self, heads: int = 4):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(W, W, bias=False) for _ in range(4))
        self.b_proj, self.o_norm, self.heads = nn.Linear(W, heads, bias=False), RMSNorm(W // heads), heads

    def forward(self, x: Tensor) -> Tensor:
        split = lambda y: y.unflatten(-1, (self.heads, -1))
        q, k = (F.normalize(F.silu(split(layer(x))), dim=-1) for layer in (self.q_proj, self.k_proj))
        v, beta = F.silu(split(self.v_proj(x))), self.b_proj(x).sigmoid()[..., None]
        state, out = x.new_zeros(len(x), self.heads, q.shape[-1], q.shape[-1]), []
        for t in range(x.shape[1]):
            held = (state * k[:, t, :, :, None]).sum(-2)
            state = state + k[:, t, :, :, None] * (beta[:, t] * (v[:, t] - held))[:, :, None]
            out.append((state * q[:, t, :, :, None]).sum(-2))
        return self.o_proj(self.o_norm(torch.stack(out, 1)).flatten(2))


class Griffin(nn.Module):
    """The recurrent block of Griffin: a gated diagonal recurrence beside a gelu branch."""

    def __init__(self, width: int = 80):
        super().__init__()
        self.linear_y, self.linear_x, self.linear_out = nn.Linear(W, width), nn.Linear(W, width), nn.Linear(width, W)
        self.conv_1d = nn.Conv1d(width, width, 4, groups=width)
        self.input_gate, self.a_gate = nn.Linear(width, width), nn.Linear(width, width)
        self.a_param = nn.Parameter(torch.log(torch.expm1(-0.125 * torch.log(torch.empty(width).uniform_(0.9, 0.999)))))

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.linear_y(x))
        x = self.conv_1d(F.pad(self.linear_x(x).mT, (3, 0))).mT
        log_a = -8.0 * torch.sigmoid(self.a_gate(x)) * F.softplus(self.a_param)
        given = torch.sqrt(1 - torch.exp(2 * log_a)) * torch.sigmoid(self.input_gate(x)) * x
        h, out = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = torch.exp(log_a[:, t]) * h + given[:, t]
            out.append(h)
        return self.linear_out(torch.stack(out, 1) * y)


class DifferentialAttention(nn.Module):
    def __init__(self, heads: int = 2, depth: int = 1):
        super().__init__()
        self.heads, self.size = heads, W // heads // 2
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(W, W, bias=False) for _ in range(4))
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * depth)
        self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2 = (
            nn.Parameter(torch.zeros(self.size).normal_(mean=0, std=0.1)) for _ in range(4)
        )
        self.subln = RMSNorm(2 * self.size, eps=1e-5)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q = rotated(self.q_proj(x).view(B, T, 2 * self.heads, self.size).transpose(1, 2))
        k = rotated(self.k_proj(x).view(B, T, 2 * self.heads, self.size).transpose(1, 2))
        v = self.v_proj(x).view(B, T, self.heads, 2 * self.size).transpose(1, 2)
        weights = (q * self.size**-0.5 @ k.transpose(-1, -2)).masked_fill(~causal(T), float("-inf"))
        weights = F.softmax(weights, dim=-1, dtype=torch.float32).view(B, self.heads, 2, T, T)
        one, two = (self.lambda_q1 * self.lambda_k1).sum().exp(), (self.lambda_q2 * self.lambda_k2).sum().exp()
        attn = (weights[:, :, 0] - (one - two + self.lambda_init) * weights[:, :, 1]) @ v
        return self.out_proj((self.subln(attn) * (1 - self.lambda_init)).transpose(1, 2).reshape(B, T, -1))


def mixing(mixer: Callable[[], nn.Module], depth: int = 2) -> nn.Module:
    return Decoder(lambda: LlamaLayer(W, mixer(), GLU(W, 128)), depth)


class PositionalEncoding(nn.Module):
    def __init__(self, size: int, length: int = 64):
        super().__init__()
        den = torch.exp(-torch.arange(0, size, 2) * math.log(10000) / size)
        pos = torch.arange(length).reshape(length, 1)
        table = torch.zeros((length, size))
        table[:, 0::2], table[:, 1::2] = torch.sin(pos * den), torch.cos(pos * den)
        self.register_buffer("pos_embedding", table)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pos_embedding[: x.size(1)]  # type: ignore[index]


class Seq2Seq(nn.Module):
    """The translation tutorial of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(W, 4, 2, 2, 128, 0.0, batch_first=True)
        self.generator, self.positional_encoding = nn.Linear(W, V), PositionalEncoding(W)
        self.src_tok_emb, self.tgt_tok_emb = nn.Embedding(V, W), nn.Embedding(V, W)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        a, b = (
            self.positional_encoding(emb(x.long()) * math.sqrt(W))
            for emb, x in ((self.src_tok_emb, src), (self.tgt_tok_emb, trg))
        )
        mask = torch.zeros(trg.shape[1], trg.shape[1]).masked_fill(~causal(trg.shape[1]), float("-inf"))
        return self.generator(self.transformer(a, b, tgt_mask=mask))


class T5Attention(nn.Module):
    """Unscaled scores, small queries, a bias for each bucket of distance."""

    def __init__(self, masked: bool, biased: bool):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(W, W, bias=False) for _ in range(4))
        self.bias, self.masked = nn.Embedding(16, 4) if biased else None, masked
        for layer, std in ((self.q, (W * W // 4) ** -0.5), (self.k, W**-0.5), (self.v, W**-0.5), (self.o, W**-0.5)):
            nn.init.normal_(layer.weight, 0.0, std)
        if self.bias is not None:
            nn.init.normal_(self.bias.weight, 0.0, W**-0.5)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        q, k, v = (
            layer(y).unflatten(-1, (4, -1)).transpose(1, 2)
            for layer, y in ((self.q, x), (self.k, memory), (self.v, memory))
        )
        scores = q @ k.mT
        if self.bias is not None:
            distance = (torch.arange(x.shape[1])[:, None] - torch.arange(memory.shape[1])).abs().clamp_max(15)
            scores = scores + self.bias(distance).permute(2, 0, 1)
        if self.masked:
            scores = scores + torch.zeros(x.shape[1], x.shape[1]).masked_fill(
                ~causal(x.shape[1]), torch.finfo(x.dtype).min
            )
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class T5(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(V, W)
        self.enc, self.dec, self.cross = T5Attention(False, True), T5Attention(True, True), T5Attention(False, False)
        self.ffs = nn.ModuleList([GLU(W, 128, F.gelu) for _ in range(2)])
        self.norms = nn.ModuleList([RMSNorm(W) for _ in range(7)])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        n, x, y = self.norms, self.shared(source), self.shared(target)
        x = x + self.enc(n[0](x))
        x = n[2](x + self.ffs[0](n[1](x)))
        y = y + self.dec(n[3](y))
        y = y + self.cross(n[4](y), x)
        y = n[6](y + self.ffs[1](n[5](y)))
        return F.linear(y * W**-0.5, self.shared.weight)


# -- of 90 to 150 million parameters


class PostBlock(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention, self.heads = (
            nn.ModuleDict({name: nn.Linear(width, width) for name in ("query", "key", "value", "dense")}),
            heads,
        )
        self.intermediate, self.output = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            self.attention[name](x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        y = ((q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.attention["dense"](y))
        return self.norm2(x + self.output(F.gelu(self.intermediate(x))))


class Bert(nn.Module):
    def __init__(self, vocabulary: int = 30522, width: int = 768, depth: int = 12):
        super().__init__()
        self.word_embeddings, self.position_embeddings = nn.Embedding(vocabulary, width), nn.Embedding(512, width)
        self.norm, self.layer = (
            nn.LayerNorm(width, eps=1e-12),
            nn.Sequential(*(PostBlock(width, 12) for _ in range(depth))),
        )
        self.pooler, self.classifier = nn.Linear(width, width), nn.Linear(width, 2)
        normal_(self)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.norm(self.word_embeddings(input_ids) + self.position_embeddings(torch.arange(input_ids.shape[1])))
        return self.classifier(torch.tanh(self.pooler(self.layer(x)[:, 0])))


class SoftmaxMoE(nn.Module):
    def __init__(self, dim: int, hidden: int, count: int = 8):
        super().__init__()
        self.gate, self.experts = (
            nn.Linear(dim, count, bias=False),
            nn.ModuleList([GLU(dim, hidden) for _ in range(count)]),
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(dim=-1, dtype=torch.float).topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            out = out + expert(x) * torch.where(chosen == i, weights, 0.0).sum(-1, keepdim=True)
        return out


def large_llama() -> nn.Module:
    layer = lambda: LlamaLayer(768, LlamaAttention(768, 12, 4), GLU(768, 2048))
    return normal_(Decoder(layer, 12, 768, 16384))


def large_mixtral() -> nn.Module:
    layer = lambda: LlamaLayer(512, LlamaAttention(512, 8, 2), SoftmaxMoE(512, 1408))
    return normal_(Decoder(layer, 6, 512, 8192))


class WideBlock(nn.Module):
    def __init__(self, a: int, b: int):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(a), nn.Conv2d(a, b, 3, padding=1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(b), nn.Conv2d(b, b, 3, padding=1, bias=False)
        self.shortcut = nn.Identity() if a == b else nn.Conv2d(a, b, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.bn1(x)))
        return self.shortcut(x) + self.conv2(F.relu(self.bn2(out)))


def large_wide_resnet() -> nn.Module:
    body = [nn.Conv2d(3, 64, 3, 2, 1, bias=False), WideBlock(64, 512), nn.MaxPool2d(2)]
    body += [WideBlock(512, 1728), WideBlock(1728, 1728), nn.BatchNorm2d(1728), nn.ReLU()]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1728, 10))


# -- the list


def cases() -> Iterator[Case]:
    words, image = partial(ids, V, 2, 16), partial(noise, 4, 3, 16, 16)
    pair = lambda: (ids(V, 2, 12), ids(V, 2, 14, seed=1))
    latents = lambda: (noise(4, 4, 8, 8), torch.tensor([3.0, 250.0, 500.0, 900.0]), ids(10, 4))
    few = partial(ids, V, 1, 16)
    listed: list[tuple[str, Callable[[], nn.Module], Callable[[], Any]]] = [
        ("nanogpt", NanoGPT, words), ("llama", llama, words), ("qwen 3", qwen3, words), ("gemma 2", Gemma2, words),
        ("deepseek", deepseek, words), ("speedrun", Speedrun, words), ("ngpt", normalized_gpt, words),
        ("hyper-connections", HyperGPT, words), ("retnet", partial(mixing, Retention), words),
        ("mamba", partial(mixing, MambaMixer), words), ("deltanet", partial(mixing, DeltaNet), words),
        ("griffin", partial(mixing, Griffin), words), ("differential", partial(mixing, DifferentialAttention), words),
        ("seq2seq", Seq2Seq, pair), ("t5", T5, pair),
        ("dit", DiT, latents), ("diffusion unet", others.DiffusionUnet, lambda: (noise(2, 3, 16, 16), torch.tensor([3.0, 700.0]))),
        ("bottlenecks", others.bottlenecks, image), ("densenet", others.dense_net, image), ("mbconv", others.efficient_net, image),
        ("mixer", lambda: others.Patches([others.MixerLayer(), others.MixerLayer()]), image),
        ("swin", lambda: others.Patches([others.SwinBlock(0), others.SwinBlock(1)]), image),
        ("convnext v2", partial(others.staged, others.ConvNextV2), image), ("poolformer", partial(others.staged, others.PoolFormer), image),
        ("conv vae", others.ConvVae, image), ("detr", others.Detr, image), ("yolo", others.Yolo, image),
        ("conformer", others.Recognizer, partial(noise, 2, 40, 20)), ("hifigan", others.HifiGenerator, partial(noise, 2, 20, 16)),
        ("egnn", others.Molecules, lambda: (noise(3, 8, 6), noise(3, 8, 3, seed=1))),
        ("dlrm", others.Dlrm, lambda: (noise(16, 13), ids(50, 16, 6))), ("ppo", others.Agent, partial(noise, 16, 17)),
        ("dueling dqn", others.Dueling, lambda: ids(256, 4, 4, 64, 64).float()), ("nbeats", others.Nbeats, partial(noise, 16, 24)),
    ]  # fmt: skip
    for name, make, batch in listed:
        yield Case(f"eighth/{name}", "own code", make, batch)
    large: list[tuple[str, Callable[[], nn.Module], Callable[[], Any]]] = [
        ("nanogpt", partial(NanoGPT, 12, 768, 12, 16384), few), ("llama", large_llama, few), ("mixtral", large_mixtral, few),
        ("bert", Bert, partial(ids, 30522, 1, 16)), ("dit", partial(DiT, 12, 768, 12, False), lambda: (noise(1, 4, 8, 8), torch.tensor([300.0]), ids(10, 1))),
        ("wide resnet", large_wide_resnet, partial(noise, 2, 3, 16, 16)),
    ]  # fmt: skip
    for name, make, batch in large:
        yield Case(f"{LARGE} {name}", "own code", make, batch)
