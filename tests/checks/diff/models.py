"""A GPT in several spellings, and pairs of models with one known difference; commit 4adf60b9 has 55 more pairs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, DEPTH, HEADS, TOKENS, VOCABULARY = 64, 4, 4, 16, 96
Factory = Callable[[], nn.Module]


# -- a GPT in several spellings


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, bias: bool):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        parts = [p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)]
        return self.o_proj(F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))


class FusedAttention(nn.Module):
    def __init__(self, width: int, heads: int, bias: bool):
        super().__init__()
        self.heads = heads
        self.Wqkv, self.out_proj = nn.Linear(width, 3 * width, bias), nn.Linear(width, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        parts = [p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.Wqkv(x).chunk(3, -1)]
        return self.out_proj(F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))


class Gated(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, 2 * width, False), nn.Linear(width, 2 * width, False)
        self.down_proj = nn.Linear(2 * width, width, False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class FusedGated(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.gate_up_proj, self.down_proj = nn.Linear(width, 4 * width, False), nn.Linear(2 * width, width, False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, bias: bool, fused: bool):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.self_attn = (FusedAttention if fused else Attention)(width, heads, bias)
        self.mlp = (FusedGated if fused else Gated)(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class GPT(nn.Module):
    def __init__(
        self,
        width: int = WIDTH,
        depth: int = DEPTH,
        bias: bool = True,
        fused: bool = False,
        tied: bool = False,
        std: float = 0.02,
    ):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Block(width, HEADS, bias, fused) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, VOCABULARY, False)
        if tied:
            self.lm_head.weight = self.embed_tokens.weight
        self.std, self.depth = std, depth
        self.init_weights()

    def init_weights(self) -> None:
        for name, module in self.named_modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                last = name.endswith(("o_proj", "out_proj", "down_proj"))
                nn.init.normal_(module.weight, 0.0, self.std / math.sqrt(2 * self.depth) if last else self.std)
                if getattr(module, "bias", None) is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.lm_head(self.norm(x)).flatten(0, 1), ids.flatten())


RENAMED = {
    "embed_tokens": "wte",
    "layers": "h",
    "lm_head": "output",
    "input_layernorm": "ln_1",
    "self_attn": "attn",
    "post_attention_layernorm": "ln_2",
    "norm": "ln_f",
    "q_proj": "wq",
    "k_proj": "wk",
    "v_proj": "wv",
    "o_proj": "wo",
    "gate_proj": "w1",
    "up_proj": "w3",
    "down_proj": "w2",
    "mlp": "feed_forward",
}


def renamed(model: nn.Module) -> nn.Module:
    """The same modules under other names, reached by the old ones too, so that forward runs."""
    for module in list(model.modules()):
        for old in list(module._modules):
            if old in RENAMED:
                inner = module._modules.pop(old)
                module._modules[RENAMED[old]] = inner
                object.__setattr__(module, old, inner)
    return model


def ids() -> Tensor:
    return torch.randint(0, VOCABULARY, (2, TOKENS), generator=torch.Generator().manual_seed(0))


def changed(change: Callable[[nn.Module], Any], make: Factory = GPT) -> Factory:
    def build() -> nn.Module:
        model = make()
        with torch.no_grad():
            change(model)
        return model

    return build


def at(name: str, change: Callable[[Tensor], Any]) -> Callable[[nn.Module], Any]:
    return lambda model: change(model.get_parameter(name))


def truncated(weight: Tensor) -> None:
    nn.init.trunc_normal_(weight, 0.0, 0.02, -0.06, 0.06)


def bounded(weight: Tensor) -> None:
    """What bf16 made of `trunc_normal_`: four in a thousand at the lower bound."""
    truncated(weight)
    weight[torch.rand_like(weight) < 0.004] = -0.06


def uniform(weight: Tensor) -> None:
    bound = math.sqrt(3.0) * float(weight.std())
    weight.uniform_(-bound, bound)


def outlier(weight: Tensor) -> None:
    weight.view(-1)[7] = 1000 * float(weight.std())


class Encoder(nn.Module):
    """Layers that `nn.TransformerEncoder` copies from one (pytorch 72253, 86274), or that are made one by one."""

    def __init__(self, copied: bool):
        super().__init__()
        one = lambda: nn.TransformerEncoderLayer(WIDTH, HEADS, 128, dropout=0.0, batch_first=True)  # noqa: E731
        self.encoder = nn.TransformerEncoder(one(), DEPTH, enable_nested_tensor=False)
        if not copied:
            self.encoder.layers = nn.ModuleList(one() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x)


class Bare(nn.Module):
    """A parameter and a buffer of its own that no `reset_parameters` fills."""

    def __init__(self, buffer: bool):
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        table = 1e4 ** -(torch.arange(WIDTH) / WIDTH)
        if buffer:
            self.register_buffer("inv_freq", table)
        else:
            self.inv_freq = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.stem(x) * torch.cos(self.inv_freq)


class Scaled(nn.Module):
    """The code differs: embeddings times sqrt(d), or not (tensor2tensor 1718)."""

    def __init__(self, scale: float):
        super().__init__()
        self.table, self.out, self.scale = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY), scale

    def forward(self, ids: Tensor) -> Tensor:
        return F.cross_entropy(self.out(self.table(ids) * self.scale).flatten(0, 1), ids.flatten())


Q3 = "layers.2.self_attn.q_proj.weight"
DIFFERENT = {
    "bf16 trunc_normal_: 0.4 % at the bound": (
        changed(at("embed_tokens.weight", truncated)),
        changed(at("embed_tokens.weight", bounded)),
        "embed_tokens",
    ),
    "a 1000-sigma entry": (GPT, changed(at("layers.1.mlp.up_proj.weight", outlier)), "layers.1.mlp.up_proj"),
    "branch outputs zero against small": (
        GPT,
        changed(lambda m: [b.self_attn.o_proj.weight.zero_() for b in m.layers]),
        "o_proj",
    ),
    "fused query three times larger": (
        GPT,
        changed(lambda m: [b.self_attn.Wqkv.weight[:WIDTH].mul_(3) for b in m.layers], partial(GPT, fused=True)),
        "q_proj",
    ),
    "one matrix 25 % larger": (GPT, changed(at(Q3, lambda w: w.mul_(1.25))), Q3),
    "uniform with the same std": (GPT, changed(at(Q3, uniform)), Q3),
}
"""Two builders, and what must be in the culprit's name."""
