"""A second held-out set of 24, written before the checks that judge them were changed; looked at once, at the end."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.planted_bugs.adapters import Lora, adapted, loras
from studies.planted_bugs.case import Setting, bug
from studies.planted_bugs.contrastive import Clip, pairs
from studies.planted_bugs.detection import Detector, Detr
from studies.planted_bugs.experts import Experts
from studies.planted_bugs.generative import Critic, Generator, generated
from studies.planted_bugs.parts import (
    VOCABULARY,
    WIDTH,
    Attention,
    Gpt,
    Mlp,
    Vit,
    causal,
    classified,
    each,
    fill,
    images,
    noise,
    normal,
    text,
)
from studies.planted_bugs.recurrent import HIDDEN

# -- adapters


@bug(
    "adapters",
    "both factors of every LoRA are zero",
    at="lora",
    cause="zero",
    fix="lora_a|lora_b",
    mend=lambda m: [nn.init.normal_(item.lora_a, std=0.125) for item in loras(m)],
)
def empty_loras(buggy: bool) -> Setting:
    model: Any = adapted(Lora, "lora")
    if buggy:
        fill(model, "lora_a", 0.0)
    return Setting(model, text())


class Prefixed(Attention):
    """Learned keys and values before those of the tokens."""

    def __init__(self, width: int = WIDTH, std: float = 0.02, count: int = 8):
        super().__init__(width)
        self.prefix_key = nn.Parameter(std * torch.randn(count, width))
        self.prefix_value = nn.Parameter(0.02 * torch.randn(count, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        key = torch.cat([self.prefix_key.expand(batch, -1, -1), key], 1)
        value = torch.cat([self.prefix_value.expand(batch, -1, -1), value], 1)
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (query, key, value))
        open_prefix = torch.ones(length, len(self.prefix_key), dtype=torch.bool)
        mask = torch.cat([open_prefix, causal(length)], 1)
        mixed = F.scaled_dot_product_attention(query, key, value, mask)
        return self.proj(mixed.transpose(1, 2).reshape(batch, length, width))


@bug(
    "adapters",
    "keys of a prefix of std 300: every query looks at one of them",
    at="prefix_key|attn",
    cause="satur|one-hot|scores",
    fix="prefix_key",
    mend=lambda m: normal(m, "prefix_key", 0.02),
)
def loud_prefix(buggy: bool) -> Setting:
    model: Any = Gpt()
    for block in model.blocks:
        old = block.attn
        block.attn = Prefixed(std=300.0 if buggy else 0.02)
        block.attn.qkv, block.attn.proj = old.qkv, old.proj
    return Setting(model, text())


class GatedAdapter(nn.Module):
    """A new branch behind a tanh gate, as in Flamingo."""

    def __init__(self, base: nn.Module, gate: float):
        super().__init__()
        self.base, self.extra, self.gate = base, Mlp(), nn.Parameter(torch.tensor([gate]))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.gate.tanh() * self.extra(x)


@bug(
    "adapters",
    "tanh gates of new branches start at 12, not at 0",
    at="gate",
    cause="satur|gate|slope|bound",
    fix="gate",
    mend=lambda m: fill(m, "gate", 0.0),
)
def open_gates(buggy: bool) -> Setting:
    model: Any = Gpt()
    for block in model.blocks:
        block.mlp = GatedAdapter(block.mlp, 12.0 if buggy else 0.0)
    return Setting(model, text())


# -- contrastive


class Temperate(Clip):
    divided = True

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        first, second = F.normalize(self.image(image), dim=-1), F.normalize(self.text(text), dim=-1)
        scale = self.logit_scale.exp() if self.divided else 1 / self.logit_scale.exp()
        logits = scale * first @ second.T
        wanted = torch.arange(len(logits))
        return (F.cross_entropy(logits, wanted) + F.cross_entropy(logits.T, wanted)) / 2


@bug(
    "contrastive",
    "similarities are multiplied by the temperature of 0.01 instead of divided",
    at="logit|similarit|output|loss",
    cause="scale|temperature|small|logits|variance|equal|constant",
    fix="scale|temperature|divid|logit",
    mend=lambda m: setattr(m, "divided", True),
)
def turned_temperature(buggy: bool) -> Setting:
    model: Any = Temperate(math.log(100.0))
    model.divided = not buggy
    return Setting(model, pairs())


@bug(
    "contrastive",
    "a logit scale of -12",
    at="logit_scale",
    cause="logit_scale|scale|exp",
    fix="logit_scale",
    mend=lambda m: m.logit_scale.fill_(math.log(1 / 0.07)),
)
def quiet_scale(buggy: bool) -> Setting:
    return Setting(Clip(-12.0 if buggy else math.log(1 / 0.07)), pairs())


@bug(
    "contrastive",
    "the last two layers of the image tower are zero",
    at="image",
    cause="zero|not finite|nan|norm",
    fix="image.(proj|fc2)",
    mend=lambda m: [nn.init.normal_(layer.weight, std=0.09) for layer in (m.image.fc2, m.image.proj)],
)
def zero_tower(buggy: bool) -> Setting:
    model: Any = Clip()
    if buggy:
        for leaf in ("fc2.weight", "fc2.bias", "proj.weight", "proj.bias"):
            fill(model.image, leaf, 0.0)
    return Setting(model, pairs())


# -- detection


@bug(
    "detection",
    "the class head of a detector is initialized with std 2",
    at="cls_head",
    cause="cls_head|std|large|satur|sibling|logit",
    fix="cls_head",
    mend=lambda m: normal(m, "cls_head.weight", 0.01),
)
def loud_classes(buggy: bool) -> Setting:
    model: Any = Detector()
    normal(model, "cls_head.weight", 2.0 if buggy else 0.01)
    return Setting(model, images()[0])


@bug(
    "detection",
    "queries and keys of cross attention of std 2",
    at="multihead_attn|decoder|attn",
    cause="satur|one-hot|score|std",
    fix="in_proj|quer",
    mend=lambda m: [nn.init.xavier_uniform_(weight) for weight in each(m, "multihead_attn.in_proj_weight")],
)
def loud_queries(buggy: bool) -> Setting:
    torch.manual_seed(4)
    model: Any = Detr()
    if buggy:
        normal(model, "multihead_attn.in_proj_weight", 2.0)
    return Setting(model, images()[0])


@bug(
    "detection",
    "a backbone whose frozen scales are zero: the heads see nothing",
    at="backbone",
    cause="zero|does not depend|no gradient|dead",
    fix="backbone",
    mend=lambda m: [nn.init.kaiming_normal_(layer.weight) for layer in m.backbone if isinstance(layer, nn.Conv2d)],
)
def blind_detector(buggy: bool) -> Setting:
    model: Any = Detector()
    if buggy:
        fill(model.backbone, "2.weight", 0.0)
        fill(model.backbone, "2.bias", 0.0)
    return Setting(model, images()[0])


# -- recurrent


class Tagger(nn.Module):
    def __init__(self, rnn: nn.Module):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(VOCABULARY, HIDDEN), rnn, nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.out(self.rnn(self.emb(ids))[0]).flatten(0, 1), targets.flatten())


def _gate(model: Any, name: str, place: int, value: float) -> None:
    with torch.no_grad():
        getattr(model.rnn, name)[place * HIDDEN : (place + 1) * HIDDEN] = value


@bug(
    "recurrent",
    "update gates of a GRU start at sigmoid(25): the state never changes",
    at="rnn|bias_(ih|hh)",
    cause="gate|satur|bias",
    fix="bias|gate",
    mend=lambda m: _gate(m, "bias_ih_l0", 1, 0.0),
)
def still_gru(buggy: bool) -> Setting:
    model: Any = Tagger(nn.GRU(HIDDEN, HIDDEN, batch_first=True))
    if buggy:
        _gate(model, "bias_ih_l0", 1, 25.0)
    return Setting(model, text())


@bug(
    "recurrent",
    "input gates of an LSTM start at sigmoid(-20)",
    at="rnn|bias_(ih|hh)",
    cause="gate|satur|bias",
    fix="bias|gate",
    mend=lambda m: _gate(m, "bias_ih_l0", 0, 0.0),
)
def shut_lstm(buggy: bool) -> Setting:
    model: Any = Tagger(nn.LSTM(HIDDEN, HIDDEN, batch_first=True))
    if buggy:
        _gate(model, "bias_ih_l0", 0, -20.0)
    return Setting(model, text())


@bug(
    "recurrent",
    "dropout of 0.98 between the layers of an LSTM",
    at="rnn|drop",
    cause="drop",
    fix="drop|0\\.02|p =",
    mend=lambda m: setattr(m.rnn, "dropout", 0.02),
)
def dropped_lstm(buggy: bool) -> Setting:
    return Setting(Tagger(nn.LSTM(HIDDEN, HIDDEN, 2, batch_first=True, dropout=0.98 if buggy else 0.02)), text())


# -- experts


class Cooled(Experts):
    temperature = 1.0

    def forward(self, x: Tensor) -> Tensor:
        chances = (self.router(x) / self.temperature).softmax(-1)
        made = torch.stack([expert(x) for expert in self.experts], dim=-1)
        return self.shared(x) + (made * chances.unsqueeze(-2)).sum(-1)


@bug(
    "experts",
    "a router with a temperature of 1e-4: a hard choice that gets no gradient",
    at="router",
    cause="satur|one-hot|router|temperature",
    fix="router|temperature",
    mend=lambda m: [setattr(item, "temperature", 1.0) for item in m.modules() if isinstance(item, Cooled)],
)
def cold_router(buggy: bool) -> Setting:
    model: Any = Gpt(mlp=Cooled, depth=3)
    for item in model.modules():
        if isinstance(item, Cooled):
            item.temperature = 1e-4 if buggy else 1.0
    return Setting(model, text())


@bug(
    "experts",
    "one expert of six is a hundred times louder",
    at="experts.3.down",
    cause="std|times|factor|drown|larger",
    fix="experts.3.down|experts\\[3\\].down",
    mend=lambda m: normal(m, "experts.3.down.weight", 0.02 / 6**0.5),
)
def loud_expert(buggy: bool) -> Setting:
    model: Any = Gpt(mlp=Experts, depth=3)
    normal(model, "experts.3.down.weight", 2.0 / 6**0.5 if buggy else 0.02 / 6**0.5)
    return Setting(model, text())


@bug(
    "experts",
    "both matrices of every expert are zero",
    at="experts",
    cause="zero",
    fix="experts",
    mend=lambda m: [normal(m, f"experts.{place}.up.weight", 0.02) for place in range(6)],
)
def empty_experts(buggy: bool) -> Setting:
    model: Any = Gpt(mlp=Experts, depth=3)
    if buggy:
        for place in range(6):
            for leaf in ("up.weight", "up.bias", "down.weight", "down.bias"):
                fill(model, f"experts.{place}.{leaf}", 0.0)
    return Setting(model, text())


# -- generative


@bug(
    "gan",
    "a discriminator of std 1: its logits are in the thousands",
    at="convs|last",
    cause="std|large|satur|grow|gradient|loss",
    fix="convs|std",
    mend=lambda m: [nn.init.kaiming_normal_(weight, a=0.2) for weight in m.convs.parameters() if weight.dim() > 1],
)
def loud_discriminator(buggy: bool) -> Setting:
    model: Any = Critic()
    normal(model, "last.weight", 0.02)
    if buggy:
        for weight in model.convs.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, 0.0, 1.0)
    return Setting(model, images()[0])


@bug(
    "gan",
    "a last bias of 9: all pixels of a generator are white",
    at="last",
    cause="satur|tanh|bound|bias",
    fix="last.bias|bias",
    mend=lambda m: fill(m, "last.bias", 0.0),
)
def white_generator(buggy: bool) -> Setting:
    model: Any = Generator()
    normal(model, "last.weight", 0.02)
    fill(model, "last.bias", 9.0 if buggy else 0.0)
    return generated(model)


class Denoiser(nn.Module):
    """A small network that is told the step of its noise."""

    def __init__(self, divisor: float = 1000.0, width: int = 32):
        super().__init__()
        self.divisor = divisor
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.enter, self.norm1 = nn.Conv2d(3, width, 3, padding=1), nn.GroupNorm(4, width)
        self.conv, self.norm2 = nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width)
        self.out = nn.Conv2d(width, 3, 3, padding=1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        told = self.time(step[:, None] / self.divisor)[:, :, None, None]
        x = self.enter(x)
        x = x + self.conv(F.silu(self.norm1(x + told)))
        return self.out(F.silu(self.norm2(x)))


def denoised(model: nn.Module) -> Setting:
    wanted = noise(8, 3, 16, 16, seed=11)
    batch = {"x": images()[0] * 0.5 + wanted, "step": torch.linspace(1, 999, 8)}
    return Setting(model, batch, lambda output: F.mse_loss(output, wanted))


@bug(
    "diffusion",
    "the step enters from 1 to 999 and drowns the image",
    at="time|step",
    cause="step|time|drown|input|large",
    fix="time|step|divide|scale",
    mend=lambda m: setattr(m, "divisor", 1000.0),
)
def raw_steps(buggy: bool) -> Setting:
    return denoised(Denoiser(1.0 if buggy else 1000.0))


@bug(
    "diffusion",
    "the gain of the last norm and the last convolution both start at zero",
    at="out|norm2",
    cause="zero",
    fix="norm2|out",
    mend=lambda m: fill(m, "norm2.weight", 1.0),
)
def twice_zero(buggy: bool) -> Setting:
    model: Any = Denoiser()
    if buggy:
        fill(model, "norm2.weight", 0.0)
    return denoised(model)


@bug(
    "diffusion",
    "group norms with an epsilon of 1000",
    at="norm[12]",
    cause="eps",
    fix="eps",
    mend=lambda m: [setattr(norm, "eps", 1e-5) for norm in (m.norm1, m.norm2)],
)
def heavy_epsilon(buggy: bool) -> Setting:
    model: Any = Denoiser()
    for norm in (model.norm1, model.norm2):
        norm.eps = 1000.0 if buggy else 1e-5
    normal(model, "out.weight", 0.02)
    return denoised(model)


# -- ViT and GPT


class LayerScaled(nn.Module):
    def __init__(self, block: Any, start: float):
        super().__init__()
        self.block, self.gamma = block, nn.Parameter(torch.full((WIDTH,), start))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gamma * self.block.attn(self.block.norm1(x))
        return x + self.gamma * self.block.mlp(self.block.norm2(x))


@bug(
    "vision",
    "LayerScale of 1e-14: no branch reaches the stream",
    at="gamma|blocks",
    cause="gamma|scale|next to nothing|small|adds",
    fix="gamma",
    mend=lambda m: fill(m, "gamma", 0.1),
)
def tiny_scales(buggy: bool) -> Setting:
    model: Any = Vit()
    model.blocks = nn.ModuleList([LayerScaled(block, 1e-14 if buggy else 0.1) for block in model.blocks])
    pixels, wanted = images()
    return Setting(model, pixels, classified(wanted))


@bug(
    "vision",
    "patches embedded with std 30 drown the positions",
    at="patches",
    cause="patches|position|drown|std",
    fix="patches|position",
    mend=lambda m: normal(m, "patches.weight", 0.02),
)
def loud_patches(buggy: bool) -> Setting:
    model: Any = Vit()
    normal(model, "patches.weight", 30.0 if buggy else 0.02)
    pixels, wanted = images()
    return Setting(model, pixels, classified(wanted))


class Turned(Attention):
    """`forbidden` is what may not be seen."""

    turned = False

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        forbidden = ~causal(length)
        seen = causal(length).T if self.turned else ~forbidden
        mixed = F.scaled_dot_product_attention(query, key, value, seen)
        return self.proj(mixed.transpose(1, 2).reshape(batch, length, width))


@bug(
    "language",
    "the transposed causal mask: every token sees itself and the future only",
    at="attn",
    cause="future|mask|causal|later",
    fix="mask|triu|tril|transpos|invert",
    mend=lambda m: [setattr(block.attn, "turned", False) for block in m.blocks],
)
def turned_mask(buggy: bool) -> Setting:
    model: Any = Gpt()
    for block in model.blocks:
        old, block.attn = block.attn, Turned()
        block.attn.qkv, block.attn.proj, block.attn.turned = old.qkv, old.proj, buggy
    return Setting(model, text())


class DroppedGpt(Gpt):
    def __init__(self, share: float):
        super().__init__()
        self.drop = nn.Dropout(share)

    def embed(self, ids: Tensor) -> Tensor:
        return self.drop(super().embed(ids))


@bug(
    "language",
    "an embedding dropout of 0.95, given as what to keep",
    at="drop",
    cause="drop",
    fix="drop|p =",
    mend=lambda m: setattr(m.drop, "p", 0.05),
)
def kept_share(buggy: bool) -> Setting:
    return Setting(DroppedGpt(0.95 if buggy else 0.05), text())
