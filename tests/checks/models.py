"""Healthy models, and models with one planted mistake each, for the check's own evidence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from sigprop.models import build
from sigprop.models.layers import initialize_
from sigprop.plans.recipes import plan as plan_recipe

WIDTH, DEPTH, TOKENS = 64, 5, 64
SMALL = {"width": WIDTH, "heads": 4, "context": TOKENS}


def hugging_face(name: str, **settings: Any) -> nn.Module:
    """A small model of transformers, in evaluation mode."""
    import transformers

    config = getattr(transformers, f"{name.partition('For')[0].removesuffix('LMHeadModel')}Config")(**settings)
    return getattr(transformers, name)(config).eval()


def gpt2(layers: int = DEPTH, width: int = WIDTH) -> nn.Module:
    return hugging_face(
        "GPT2LMHeadModel", n_layer=layers, n_embd=width, n_head=4, vocab_size=512, n_positions=TOKENS,
        bos_token_id=0, eos_token_id=1,
    )  # fmt: skip


def llama(layers: int = DEPTH, **settings: Any) -> nn.Module:
    shape = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_attention_heads": 4, "vocab_size": 512}
    return hugging_face("LlamaForCausalLM", num_hidden_layers=layers, **(shape | settings))


def bert(layers: int = DEPTH, **settings: Any) -> nn.Module:
    return hugging_face(
        "BertForMaskedLM", num_hidden_layers=layers, hidden_size=WIDTH, num_attention_heads=4,
        intermediate_size=4 * WIDTH, vocab_size=512, max_position_embeddings=TOKENS, **settings,
    )  # fmt: skip


BERT_BASE_STD = 0.02 * math.sqrt(768 / WIDTH)
"""What gives the narrow model the branches of BERT-base: they go by `width * std^2`."""


def vit() -> nn.Module:
    return hugging_face(
        "ViTForImageClassification", num_hidden_layers=DEPTH, hidden_size=WIDTH, num_attention_heads=4,
        intermediate_size=4 * WIDTH, image_size=32, patch_size=4, num_labels=10,
    )  # fmt: skip


def mixtral() -> nn.Module:
    return hugging_face(
        "MixtralForCausalLM", num_hidden_layers=4, hidden_size=WIDTH, intermediate_size=2 * WIDTH,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=4, vocab_size=512,
    )  # fmt: skip


def t5() -> nn.Module:
    return hugging_face(
        "T5ForConditionalGeneration", num_layers=3, d_model=WIDTH, d_ff=2 * WIDTH, num_heads=4, d_kv=16, vocab_size=512,
        decoder_start_token_id=0,
    )  # fmt: skip


def transformer(**settings: Any) -> nn.Module:
    return build("transformer", **({"depth": DEPTH} | SMALL | settings))


def he_mlp(depth: int = 8, width: int = 128) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layer = nn.Linear(width, width)
        nn.init.kaiming_normal_(layer.weight)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers)


def tanh_mlp(depth: int = 8, width: int = 128, gain: float = 1.0) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layer = nn.Linear(width, width)
        nn.init.normal_(layer.weight, 0.0, gain / math.sqrt(width))
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers)


class ConvNet(nn.Module):
    """Plain convolutions with batch norm, torch's own draws."""

    def __init__(self, depth: int = 6, width: int = 32):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean((2, 3)))


class ZeroBranches(nn.Module):
    """Pre-LN blocks whose branches end in zeros: every block starts as the identity."""

    def __init__(self, depth: int = 6, width: int = WIDTH):
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(_ZeroBranch(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class _ZeroBranch(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def tied_and_scaled() -> nn.Module:
    """A tied head drawn as a readout: std 1 / sqrt(width)."""
    model = transformer(tied_head=True)
    nn.init.normal_(model.token_embedding.weight, 0.0, WIDTH**-0.5)  # type: ignore[union-attr]
    return model


def planned(recipe: str, **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = transformer(**settings)
        return plan_recipe(model, recipe).apply_(model)

    return make


HEALTHY: dict[str, Callable[[], nn.Module]] = {
    "reference decoder, torch's draws": transformer,
    "reference encoder, sandwich norms": lambda: transformer(kind="encoder", norm_placement="sandwich"),
    "reference decoder, tied head": tied_and_scaled,
    "reference Post-LN decoder under unit": planned("unit", norm_placement="post", depth=12),
    "reference swiglu, rotary": lambda: transformer(activation="swiglu", positions="rotary", norm="rms_norm"),
    "GPT-2 (tied, scaled c_proj)": gpt2,
    "Llama": llama,
    "BERT": bert,
    "ViT": vit,
    "Mixtral (experts)": mixtral,
    "T5": t5,
    "zero-initialized branches": ZeroBranches,
    "ResNet": lambda: build("resnet", depth=3),
    "convolutions with batch norm": ConvNet,
    "ReLU chain, He": he_mlp,
}
"""Fifteen models that their authors would call healthy."""


@dataclass(frozen=True)
class Mistake:
    """A model that is faulty in one known way: what must be found, and a piece of the name where."""

    title: str
    make: Callable[[], nn.Module]
    finding: str
    place: str = ""
    options: Callable[[nn.Module], dict[str, Any]] | None = None


MISTAKES: list[Mistake] = []


def ill(title: str, finding: str, place: str = "", options: Callable[[nn.Module], dict[str, Any]] | None = None):
    """Decorator: register a function that makes the faulty model."""

    def add(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        MISTAKES.append(Mistake(title, make, finding, place, options))
        return make

    return add


@torch.no_grad()
def changed(model: nn.Module, name: str, change: Callable[[torch.Tensor], Any]) -> nn.Module:
    """The model with one parameter changed in place."""
    change(model.get_parameter(name))
    return model


# -- the draw


@ill("one layer drawn twice as wide", "odd_sibling", "blocks.2.mlp.up.weight")
def _twice() -> nn.Module:
    return changed(transformer(), "blocks.2.mlp.up.weight", lambda w: w.mul_(2.0))


@ill("depth scaling in one layer only", "odd_sibling", "h.3.mlp.c_proj.weight")
def _sqrt_2l() -> nn.Module:
    return changed(gpt2(), "transformer.h.3.mlp.c_proj.weight", lambda w: w.mul_(math.sqrt(2 * DEPTH)))


@ill("GPT-2 without its scaled c_proj", "depth_scaling", "c_proj")
def _unscaled() -> nn.Module:
    model = gpt2()
    for name, weight in model.named_parameters():
        if name.endswith("c_proj.weight"):
            nn.init.normal_(weight, 0.0, 0.02)
    return model


@ill("depth scaling on attention outputs only", "depth_scaling", "mlp.c_proj")
def _some() -> nn.Module:
    model = gpt2()
    for name, weight in model.named_parameters():
        if name.endswith("mlp.c_proj.weight"):
            nn.init.normal_(weight, 0.0, 0.02)
    return model


@ill("depth scaling on the wrong matrix", "depth_scaling", "mlp.up")
def _wrong() -> nn.Module:
    model = transformer()
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and "blocks" in name:
            nn.init.normal_(weight, 0.0, 0.02 / (math.sqrt(2 * DEPTH) if name.endswith("up.weight") else 1.0))
    return model


@ill("fan-in and fan-out swapped", "fans_swapped", "6.weight")
def _swapped() -> nn.Module:
    widths, layers = (64, 256, 128, 384, 64, 192, 96), []
    for place, (inputs, outputs) in enumerate(pairwise(widths)):
        layer = nn.Linear(inputs, outputs)
        nn.init.normal_(layer.weight, 0.0, math.sqrt(2 / (outputs if place == 3 else inputs)))
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers)


@ill("uniform where the others are normal", "odd_law", "blocks.3.attention.query.weight")
def _uniform() -> nn.Module:
    model = transformer()
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and "blocks" in name:
            nn.init.normal_(weight, 0.0, 0.05)
    bound = 0.05 * math.sqrt(3)
    return changed(model, "blocks.3.attention.query.weight", lambda w: w.uniform_(-bound, bound))


@ill("a head that the initialization did not reach", "default_draw_left", "head.weight")
def _left() -> nn.Module:
    model = transformer()
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and "head" not in name:
            nn.init.normal_(weight, 0.0, 0.03)
    return model


@ill("truncated normal with outliers of 1000 sigma", "outliers", "blocks.1.attention.value.weight")
def _outlier() -> nn.Module:
    model = transformer()
    return changed(model, "blocks.1.attention.value.weight", lambda w: w.view(-1)[77].mul_(0).add_(1000 * w.std()))


@ill("layers that are copies (nn.TransformerEncoder)", "equal_layers", "layers.")
def _copies() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True, dropout=0.0)
    return nn.Sequential(nn.Embedding(256, WIDTH), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)).eval()


@ill("an expert that is a copy of another", "equal_layers", "experts")
def _same_expert() -> nn.Module:
    model = mixtral()
    name = next(name for name, weight in model.named_parameters() if "experts" in name and weight.dim() == 3)
    return changed(model, name, lambda w: w[1].copy_(w[0]))


@ill("a matrix of zeros among its siblings", "zeros_among_siblings", "blocks.4.mlp.down.weight")
def _zeros() -> nn.Module:
    return changed(transformer(), "blocks.4.mlp.down.weight", lambda w: w.zero_())


@ill("not-a-number", "non_finite_weights", "blocks.0.mlp.up.weight")
def _nan() -> nn.Module:
    return changed(transformer(), "blocks.0.mlp.up.weight", lambda w: w.view(-1)[5].fill_(math.nan))


@ill("memory that was never written", "uninitialized_memory", "mlp.c_fc.weight")
def _empty() -> nn.Module:
    def garbage(weight: torch.Tensor) -> None:
        flat = weight.view(-1)
        flat.copy_(torch.exp(torch.empty_like(flat).uniform_(-90.0, 2.0)))
        flat[::3] = 0.0

    return changed(gpt2(), "transformer.h.2.mlp.c_fc.weight", garbage)


@ill("draws from [0, 1) instead of [-1, 1)", "nonzero_mean", "blocks.4.mlp.up.weight")
def _mean() -> nn.Module:
    return changed(transformer(), "blocks.4.mlp.up.weight", lambda w: w.abs_())


@ill("key drawn four times as wide as query", "odd_part", "key")
def _key() -> nn.Module:
    model = transformer()
    for block in model.blocks:  # type: ignore[union-attr]
        with torch.no_grad():
            block.attention.key.weight.mul_(4.0)  # type: ignore[union-attr]
    return model


@ill("one third of a fused qkv", "odd_part", "[key]")
def _third() -> nn.Module:
    return changed(gpt2(), "transformer.h.1.attn.c_attn.weight", lambda w: w[:, WIDTH : 2 * WIDTH].mul_(3.0))


@ill("one expert unlike the others", "odd_part", "experts")
def _expert() -> nn.Module:
    model = mixtral()
    name = next(name for name, weight in model.named_parameters() if "experts" in name and weight.dim() == 3)
    return changed(model, name, lambda w: w[2].mul_(5.0))


@ill("a load that skipped a module", "not_its_law", "lm_head")
def _skipped() -> nn.Module:
    return changed(llama(), "lm_head.weight", lambda w: w.normal_(0.0, 1.0))


@ill("a plan that was not applied", "plan_not_applied", "", lambda model: {"plan": plan_recipe(model, "lecun")})
def _plan() -> nn.Module:
    return transformer()


# -- signal, gradient, tokens, output


@ill("24 Post-LN layers, Xavier", "rank_collapse", "blocks.")
def _post() -> nn.Module:
    return initialize_(transformer(kind="encoder", norm_placement="post", depth=24), "xavier", embedding_std=1.0)


@ill("48 layers of BERT", "sensitivity", "encoder.layer.47")
def _deep_bert() -> nn.Module:
    return bert(48, initializer_range=BERT_BASE_STD)


@ill("no norm at all: the stream explodes", "stream_growth", "blocks.")
def _no_norm() -> nn.Module:
    return initialize_(transformer(norm_placement="none", depth=10), "he", embedding_std=1.0)


@ill("no norm at all: gradients explode", "gradient_explodes", "blocks.")
def _no_norm_gradient() -> nn.Module:
    return _no_norm()


@ill("torch's default draw in a deep ReLU chain", "gradient_vanishes", "")
def _default_chain() -> nn.Module:
    return nn.Sequential(*(module for _ in range(12) for module in (nn.Linear(128, 128), nn.ReLU())))


@ill("chaotic tanh chain", "criticality", "")
def _chaotic() -> nn.Module:
    return tanh_mlp(20, gain=3.0)


@ill("saturated tanh", "activations", "")
def _saturated() -> nn.Module:
    return tanh_mlp(6, gain=30.0)


@ill("batch norms that have seen no batch, in evaluation", "unused_statistics", "layers.0.1")
def _idle_norms() -> nn.Module:
    return ConvNet().eval()


@ill("dead ReLUs", "activations", "3")
def _dead() -> nn.Module:
    return changed(he_mlp(), "2.bias", lambda b: b.fill_(-100.0))


@ill("a massive channel", "massive_channel", "blocks.")
def _massive() -> nn.Module:
    return changed(transformer(), "blocks.1.mlp.down.bias", lambda b: b[7].fill_(300.0))


@ill("sinusoidal positions drown tokens of std 0.02", "embedding_scale", "token_embedding")
def _drowned() -> nn.Module:
    model = transformer(positions="sinusoidal")
    return changed(model, "token_embedding.weight", lambda w: w.mul_(0.02))


@ill("learned positions of std 0.6 beside words of std 0.02", "embedding_scale", "embedding")
def _positions() -> nn.Module:
    return Words(0.6)


class Words(nn.Module):
    """Words and positions of a plain parameter, in front of one block."""

    def __init__(self, std: float):
        super().__init__()
        self.embedding = nn.Embedding(512, WIDTH)
        self.positions = nn.Parameter(torch.empty(64, WIDTH).normal_(0.0, std))
        self.norm, self.up, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 512)
        nn.init.normal_(self.embedding.weight, 0.0, 0.02)

    def forward(self, ids):
        x = self.embedding(ids) + self.positions[: ids.shape[1]]
        return self.head(x + self.up(self.norm(x)))


@ill("gains of all norms at 0.1", "small_gains", "norm")
def _small_gains() -> nn.Module:
    model = transformer()
    for name, weight in model.named_parameters():
        if "norm" in name and name.endswith("weight"):
            nn.init.constant_(weight, 0.1)
    return model


@ill("queries and keys of a thousandth", "attention_uniform", "scores")
def _faint_queries() -> nn.Module:
    model = transformer()
    for name, weight in model.named_parameters():
        if "query" in name or "key" in name:
            with torch.no_grad():
                weight.mul_(1e-3)
    return model


@ill("a first branch that overwrites the embedding", "embedding_scale", "blocks.0")
def _overwritten() -> nn.Module:
    model = transformer(positions="rotary")
    return changed(model, "token_embedding.weight", lambda w: w.mul_(1e-3))


@ill("a branch that drowns its skip", "branch_share", "blocks.3.mlp")
def _loud() -> nn.Module:
    return changed(transformer(), "blocks.3.mlp.down.weight", lambda w: w.mul_(200.0))


@ill("attention scale 1 beside query-key norms", "attention_saturated", "scores")
def _qk_norm() -> nn.Module:
    shape = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_attention_heads": 4, "vocab_size": 512}
    model = hugging_face("Qwen3ForCausalLM", num_hidden_layers=DEPTH, num_key_value_heads=4, head_dim=64, **shape)
    for module in model.modules():
        if hasattr(module, "scaling"):
            module.scaling = 1.0  # type: ignore[assignment]
    return model


@ill("queries and keys too wide", "attention_saturated", "scores")
def _wide_scores() -> nn.Module:
    model = transformer()
    for name, weight in model.named_parameters():
        if name.endswith(("query.weight", "key.weight")):
            with torch.no_grad():
                weight.mul_(4.0)
    return model


@ill("queries of zero", "attention_uniform", "scores")
def _zero_queries() -> nn.Module:
    model = transformer()
    for name, weight in model.named_parameters():
        if "attention.query" in name:
            nn.init.zeros_(weight)
    return model


@ill("a tied readout drawn as an embedding", "tied_readout", "token_embedding")
def _tied() -> nn.Module:
    return transformer(tied_head=True, width=256)


@ill("a readout drawn ten times too wide", "initial_loss", "head")
def _wide_head() -> nn.Module:
    return changed(transformer(), "head.weight", lambda w: w.mul_(30.0))


@ill("a branch that is detached", "no_gradient", "blocks.2")
def _detached() -> nn.Module:
    model = transformer()
    model.blocks[2].mlp.register_forward_hook(lambda module, inputs, output: output.detach())  # type: ignore[index,union-attr]
    return model


@ill("Adam's step larger than the weights", "first_update", "", lambda model: {"optimizer": "adamw", "lr": 1e-2})
def _tiny_weights() -> nn.Module:
    return changed(transformer(), "blocks.0.mlp.down.weight", lambda w: w.mul_(1e-2))


@ill("overflow in fp16", "precision", "", None)
def _overflow() -> nn.Module:
    return changed(he_mlp(), "0.weight", lambda w: w.mul_(1e5))


@ill("std 0.02 at every width", "size_rules", "", lambda model: {"base": gpt2(DEPTH, 32)})
def _same_std() -> nn.Module:
    return gpt2(DEPTH, 128)
