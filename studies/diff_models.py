"""Pairs of models for `studies.diff_pairs`: one known difference, or none, in disguise."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sigprop.checks.diff.matching import pattern

WIDTH, DEPTH, HEADS, TOKENS, VOCABULARY = 64, 4, 4, 16, 96
Factory = Callable[[], nn.Module]


@dataclass(frozen=True)
class Different:
    """Two builders and the words of which one must be in the culprit; `where`: parameters or structure."""

    name: str
    a: Factory
    b: Factory
    culprit: tuple[str, ...]
    options: dict[str, Any] | None = None
    where: str = "parameters"


@dataclass(frozen=True)
class Equal:
    name: str
    a: Factory
    b: Factory
    options: dict[str, Any] | None = None


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
        self, width: int = WIDTH, depth: int = DEPTH, bias: bool = True, fused: bool = False, tied: bool = False,
        std: float = 0.02,
    ):  # fmt: skip
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


RENAMED = {"embed_tokens": "wte", "layers": "h", "lm_head": "output", "input_layernorm": "ln_1", "self_attn": "attn",
           "post_attention_layernorm": "ln_2", "norm": "ln_f", "q_proj": "wq", "k_proj": "wk", "v_proj": "wv",
           "o_proj": "wo", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2", "mlp": "feed_forward"}  # fmt: skip


def renamed(model: nn.Module) -> nn.Module:
    """The same modules under other names, reached by the old ones too, so that forward runs."""
    for module in list(model.modules()):
        for old in list(module._modules):
            if old in RENAMED:
                inner = module._modules.pop(old)
                module._modules[RENAMED[old]] = inner
                object.__setattr__(module, old, inner)
    return model


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module):
        super().__init__()
        self.model = inner

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(ids)


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


def orthogonal(weight: Tensor) -> None:
    nn.init.orthogonal_(weight, gain=float(weight.std()) * math.sqrt(max(weight.shape)))


def outlier(weight: Tensor) -> None:
    weight.view(-1)[7] = 1000 * float(weight.std())


def torch_defaults(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.reset_parameters()


# -- the historic cases


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


class Custom(nn.Module):
    """Its own initialization stands in the constructor, so that `reset_parameters` loses it (bionemo 1368)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        nn.init.normal_(self.out.weight, 0.0, 0.002)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.stem(x)))


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


class Tanh(nn.Module):
    """Dynamic tanh in place of a norm; alpha is one number (DyT 6)."""

    def __init__(self, alpha: float):
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(alpha))
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.alpha * self.first(x)))


class Scaled(nn.Module):
    """The code differs: embeddings times sqrt(d), or not (tensor2tensor 1718)."""

    def __init__(self, scale: float):
        super().__init__()
        self.table, self.out, self.scale = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY), scale

    def forward(self, ids: Tensor) -> Tensor:
        return F.cross_entropy(self.out(self.table(ids) * self.scale).flatten(0, 1), ids.flatten())


def hugging(kind: str, change: Callable[[nn.Module], Any] | None = None, **settings: Any) -> nn.Module:
    import transformers

    small = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCABULARY}
    by_kind = {
        "GPT2": {"n_embd": WIDTH, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": 64},
        "T5": {"d_model": WIDTH, "num_layers": 2, "num_heads": 4, "d_kv": 16, "d_ff": 128, "vocab_size": VOCABULARY},
        "Mamba2": {"hidden_size": WIDTH, "num_hidden_layers": 2, "vocab_size": VOCABULARY, "num_heads": 8,
                   "head_dim": 16, "state_size": 16, "n_groups": 2},
        "Mixtral": {**small, "num_key_value_heads": 2, "num_local_experts": 4, "intermediate_size": 96},
        "Qwen3": {**small, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96,
                  "tie_word_embeddings": True},
        "Llama": {**small, "num_key_value_heads": 2, "intermediate_size": 96},
        "Bert": {**small, "intermediate_size": 96},
        "GPTNeoX": {**small, "intermediate_size": 96},
    }  # fmt: skip
    head = {"T5": "ForConditionalGeneration", "GPT2": "LMHeadModel", "Bert": "ForMaskedLM"}.get(kind, "ForCausalLM")
    model = getattr(transformers, kind + head)(getattr(transformers, f"{kind}Config")(**by_kind[kind], **settings))
    if change is not None:
        with torch.no_grad():
            change(model)
    return model.eval()


def _weight(path: str, change: Callable[[Tensor], Any]) -> Callable[[nn.Module], Any]:
    return lambda model: change(model.get_parameter(path))


Q3 = "layers.2.self_attn.q_proj.weight"
DIFFERENT = [
    Different(
        "layers of nn.TransformerEncoder are copies",
        partial(Encoder, True),
        partial(Encoder, False),
        ("identical numbers",),
        {"batch": torch.zeros(2, 8, WIDTH)},
        "structure",
    ),
    Different(
        "bf16 trunc_normal_: 0.4 % at the bound",
        changed(at("embed_tokens.weight", truncated)),
        changed(at("embed_tokens.weight", bounded)),
        ("embed_tokens",),
    ),
    Different(
        "a 1000-sigma entry", GPT, changed(at("layers.1.mlp.up_proj.weight", outlier)), ("layers.1.mlp.up_proj",)
    ),
    Different(
        "Qwen3, tied embedding N(0, 1)",
        partial(hugging, "Qwen3"),
        partial(hugging, "Qwen3", _weight("model.embed_tokens.weight", lambda w: w.normal_())),
        ("embed_tokens",),
    ),
    Different(
        "T5, shared table of std 1 against d^-1/2",
        partial(hugging, "T5"),
        partial(hugging, "T5", _weight("shared.weight", lambda w: w.normal_(0, WIDTH**-0.5))),
        ("shared",),
    ),
    Different("dynamic tanh, alpha 0.5 against 0.2", partial(Tanh, 0.5), partial(Tanh, 0.2), ("alpha",)),
    Different(
        "branch outputs zero against small",
        GPT,
        changed(lambda m: [b.self_attn.o_proj.weight.zero_() for b in m.layers]),
        ("o_proj",),
    ),
    Different(
        "gate not scaled by depth",
        GPT,
        changed(lambda m: [b.mlp.gate_proj.weight.mul_(0.35) for b in m.layers]),
        ("gate_proj",),
    ),
    Different("meta build loses the constructor's own", Custom, Custom, ("out.weight",), {"meta": True}),
    Different(
        "meta build leaves a parameter", partial(Bare, False), partial(Bare, False), ("inv_freq",), {"meta": True}
    ),
    Different(
        "meta build leaves a buffer",
        partial(Bare, True),
        partial(Bare, True),
        ("inv_freq",),
        {"meta": True},
        "structure",
    ),
    Different(
        "Mamba-2, dt_bias left at ones",
        partial(hugging, "Mamba2"),
        partial(hugging, "Mamba2", lambda m: [p.fill_(1.0) for n, p in m.named_parameters() if "dt_bias" in n]),
        ("dt_bias",),
    ),
    Different(
        "loss 4.6 in one version, larger in the next",
        GPT,
        changed(at("lm_head.weight", lambda w: w.mul_(50))),
        ("lm_head",),
    ),
    Different(
        "inner class overwrites the outer's",
        changed(at("lm_head.weight", lambda w: w.normal_(0, 0.002))),
        GPT,
        ("lm_head",),
    ),
    Different(
        "never re-initialized: torch's embeddings",
        GPT,
        changed(lambda m: m.embed_tokens.reset_parameters()),
        ("embed_tokens",),
    ),
    Different(
        "down projection by the wrong fan",
        GPT,
        changed(lambda m: [b.mlp.down_proj.weight.mul_(1.66) for b in m.layers]),
        ("down_proj",),
    ),
    Different(
        "fused query three times larger",
        GPT,
        changed(lambda m: [b.self_attn.Wqkv.weight[:WIDTH].mul_(3) for b in m.layers], partial(GPT, fused=True)),
        ("q_proj",),
    ),
    Different("one matrix 25 % larger", GPT, changed(at(Q3, lambda w: w.mul_(1.25))), (Q3,)),
    Different("one matrix with a mean", GPT, changed(at(Q3, lambda w: w.add_(0.004))), (Q3,)),
    Different("uniform with the same std", GPT, changed(at(Q3, uniform)), (Q3,)),
    Different("orthogonal with the same std", GPT, changed(at(Q3, orthogonal)), (Q3,)),
    Different(
        "biases of 1e-3",
        GPT,
        changed(lambda m: [b.self_attn.v_proj.bias.fill_(1e-3) for b in m.layers]),
        ("v_proj.bias",),
    ),
    Different("a tenth of one matrix pruned", GPT, changed(at(Q3, lambda w: w.mul_(torch.rand_like(w) > 0.1))), (Q3,)),
    Different(
        "all layers of a matrix 4 % larger",
        partial(GPT, 128, 8),
        changed(lambda m: [b.mlp.up_proj.weight.mul_(1.04) for b in m.layers], partial(GPT, 128, 8)),
        ("up_proj",),
    ),
    Different(
        "the code differs: embeddings times sqrt(d)",
        partial(Scaled, 1.0),
        partial(Scaled, 8.0),
        ("code differs",),
        None,
        "structure",
    ),
]


def _conv1d() -> nn.Module:
    return hugging("GPT2")


def _linear_twin() -> nn.Module:
    """GPT-2 with `nn.Linear` in place of transformers' `Conv1D`: transposed weights."""
    model = hugging("GPT2")
    for module in list(model.modules()):
        for name, inner in list(module.named_children()):
            if type(inner).__name__ == "Conv1D":
                linear = nn.Linear(inner.weight.shape[0], inner.weight.shape[1])
                linear.weight.data, linear.bias.data = inner.weight.data.T.contiguous(), inner.bias.data
                setattr(module, name, linear)
    return model


def _of(name: str, **settings: Any) -> nn.Module:
    from sigprop.models import build

    return build(name, **settings)


def _split_experts() -> nn.Module:
    """Mixtral with one module for every expert, as transformers 4 has it; it is not run."""
    model = hugging("Mixtral")
    for layer in model.model.layers:
        experts = layer.mlp.experts
        parts = nn.ModuleList()
        for number in range(4):
            part = nn.Module()
            gate, up = experts.gate_up_proj.data[number].chunk(2)
            part.w1, part.w3 = nn.Linear(WIDTH, 96, False), nn.Linear(WIDTH, 96, False)
            part.w2 = nn.Linear(96, WIDTH, False)
            part.w1.weight.data, part.w3.weight.data = gate.clone(), up.clone()
            part.w2.weight.data = experts.down_proj.data[number].clone()
            parts.append(part)
        layer.mlp.experts = parts
    return model


SMALL: dict[str, Any] = {"depth": 3, "width": 64}
KINDS = ("GPT2", "T5", "Mamba2", "Mixtral", "Qwen3", "Llama", "Bert", "GPTNeoX")
NAMED = {
    "GPT": GPT, "GPT without biases": partial(GPT, bias=False), "GPT, tied": partial(GPT, tied=True),
    "GPT, std 0.2": partial(GPT, std=0.2), "GPT of width 16": partial(GPT, 16),
    "reference transformer": partial(_of, "transformer", heads=4, **SMALL),
    "reference transformer, norm after": partial(_of, "transformer", heads=4, norm_placement="post", **SMALL),
    "reference MLP": partial(_of, "mlp", **SMALL), "reference ViT": partial(_of, "vit", heads=4, **SMALL),
    "reference ResNet": partial(_of, "resnet", depth=1, width=16), "reference Mixer": partial(_of, "mixer", **SMALL),
    **{f"transformers {kind}": partial(hugging, kind) for kind in KINDS},
}  # fmt: skip
EQUAL = [
    *(Equal(f"{name}, other seed", make, make) for name, make in NAMED.items()),
    Equal("GPT, renamed", GPT, lambda: renamed(GPT())),
    Equal("GPT, wrapped", GPT, lambda: Wrapped(GPT())),
    Equal("GPT, wrapped and renamed", lambda: Wrapped(GPT()), lambda: renamed(GPT())),
    Equal("GPT, fused", GPT, partial(GPT, fused=True)),
    Equal("GPT, split", partial(GPT, fused=True), GPT),
    Equal(
        "GPT without biases, fused and renamed", partial(GPT, bias=False), lambda: renamed(GPT(bias=False, fused=True))
    ),
    Equal("GPT-2, Linear for Conv1D", _conv1d, _linear_twin),
    Equal("Mixtral, experts split", partial(hugging, "Mixtral"), _split_experts),
    Equal("GPT, meta", GPT, GPT, {"meta": True}),
    Equal(
        "TransformerEncoder, layers one by one",
        partial(Encoder, False),
        partial(Encoder, False),
        {"batch": torch.zeros(2, 8, WIDTH)},
    ),
    Equal("a deep copy, drawn anew", lambda: copy.deepcopy(GPT()), GPT),
]


# -- held out: nothing was tuned on these

CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "1.5 times": lambda w: w.mul_(1.5), "0.7 times": lambda w: w.mul_(0.7), "zero": lambda w: w.zero_(),
    "a mean": lambda w: w.add_(0.5 * float(w.std())), "uniform": uniform, "orthogonal": orthogonal,
    "half of it zero": lambda w: w.mul_(torch.rand_like(w) > 0.5), "0.1 times": lambda w: w.mul_(0.1),
}  # fmt: skip


def held_out(count: int = 25, seed: int = 31) -> list[Different]:
    """Random architecture, random matrix of at least 1000 entries, random change, in one layer or in all."""
    import random

    chance = random.Random(seed)
    found = []
    while len(found) < count:
        name = chance.choice(list(NAMED))
        make = NAMED[name]
        model = make()
        large = {n: p for n, p in model.named_parameters() if p.dim() == 2 and p.numel() >= 1000 and min(p.shape) > 7}
        weights = [n for n, p in large.items() if float(p.detach().std()) > 0]
        if not weights:
            continue
        target, kind, every = chance.choice(weights), chance.choice(list(CHANGES)), chance.random() < 0.5
        family = pattern(target)
        chosen = [n for n in weights if pattern(n) == family] if every else [target]

        def change(model: nn.Module, chosen: list[str] = chosen, kind: str = kind) -> None:
            for each in chosen:
                CHANGES[kind](model.get_parameter(each))

        words = (family if every and len(chosen) > 1 else target,)
        found.append(Different(f"{name}: {words[0]} {kind}", make, changed(change, make), words))
    return found
