"""A third held-out set of 24, written before the checks changed again by one who had read them; looked at once."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.planted_bugs.case import Setting, bug
from studies.planted_bugs.contrastive import Tower, pairs
from studies.planted_bugs.detection import Detector
from studies.planted_bugs.experts import Experts
from studies.planted_bugs.generative import Vae
from studies.planted_bugs.parts import (
    TOKENS,
    VOCABULARY,
    WIDTH,
    Attention,
    Block,
    Gpt,
    causal,
    classified,
    fill,
    he,
    images,
    labels,
    noise,
    normal,
    regressed,
    small_weights,
    text,
    tokens,
)

# -- adapters


class Rescaled(nn.Module):
    """(IA)^3: one learned factor per channel behind a frozen layer."""

    def __init__(self, base: nn.Module, start: float):
        super().__init__()
        self.base, self.ia3_factor = base, nn.Parameter(torch.full((WIDTH,), start))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) * self.ia3_factor


@bug(
    "adapters",
    "the factors of (IA)^3 start at 0 in place of 1, in front of frozen outputs",
    at="ia3_factor|mlp|blocks",
    cause="zero|nothing",
    fix="ia3_factor",
    mend=lambda m: fill(m, "ia3_factor", 1.0),
)
def silenced(buggy: bool) -> Setting:
    model: Any = Gpt()
    model.requires_grad_(False)
    for block in model.blocks:
        block.mlp = Rescaled(block.mlp, 0.0 if buggy else 1.0)
        block.attn = Rescaled(block.attn, 0.0 if buggy else 1.0)
    return Setting(model, text())


class Prompted(Gpt):
    """Learned vectors before the words."""

    def __init__(self, std: float):
        super().__init__()
        self.soft_prompt = nn.Parameter(std * torch.randn(8, WIDTH))

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = torch.cat([self.soft_prompt.expand(len(ids), -1, -1), self.embed(ids)], 1)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x[:, 8:])).flatten(0, 1), targets.flatten())


@bug(
    "adapters",
    "a soft prompt of std 50 beside words of std 0.02",
    at="soft_prompt",
    cause="std|large|drown|times|far from",
    fix="soft_prompt",
    mend=lambda m: normal(m, "soft_prompt", 0.02),
)
def loud_prompt(buggy: bool) -> Setting:
    return Setting(Prompted(50.0 if buggy else 0.02), text())


# -- contrastive


class SigLip(nn.Module):
    """A binary loss over all pairs: most are no pairs, so the bias starts at -10."""

    def __init__(self, bias: float):
        super().__init__()
        self.image, self.text = Tower(), Tower()
        self.logit_scale = nn.Parameter(torch.tensor(math.log(10.0)))
        self.logit_bias = nn.Parameter(torch.tensor(bias))

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        first, second = F.normalize(self.image(image), dim=-1), F.normalize(self.text(text), dim=-1)
        logits = self.logit_scale.exp() * first @ second.T + self.logit_bias
        return F.binary_cross_entropy_with_logits(logits, torch.eye(len(logits)))


@bug(
    "contrastive",
    "the bias of SigLIP has the wrong sign: every pair is taken for one",
    at="logit_bias|loss",
    cause="bias|loss starts|prior|large",
    fix="logit_bias",
    mend=lambda m: fill(m, "logit_bias", -10.0),
)
def turned_bias(buggy: bool) -> Setting:
    return Setting(SigLip(10.0 if buggy else -10.0), pairs())


class Projected(nn.Module):
    def __init__(self, bias: float):
        super().__init__()
        self.encoder, self.head = Tower(), nn.Linear(64, 64)
        nn.init.constant_(self.head.bias, bias)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        first, second = (F.normalize(F.relu(self.head(self.encoder(x))), dim=-1) for x in (image, text))
        return F.cross_entropy(first @ second.T / 0.1, labels(len(image), len(image)))


@bug(
    "contrastive",
    "the projection ends in a ReLU that is dead by its bias: all embeddings are zero",
    at="head|encoder",
    cause="zero|dead|negative",
    fix="head.bias",
    mend=lambda m: fill(m, "head.bias", 0.0),
)
def dead_projection(buggy: bool) -> Setting:
    return Setting(Projected(-8.0 if buggy else 0.0), pairs())


# -- detection


class Pyramid(Detector):
    """A lateral convolution between the backbone and the heads."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone.add_module("lateral", he(nn.Conv2d(64, 64, 1)))


@bug(
    "detection",
    "the lateral convolution of a feature pyramid is zero",
    at="lateral",
    cause="zero|does not depend|no gradient",
    fix="lateral",
    mend=lambda m: nn.init.kaiming_normal_(m.backbone.lateral.weight),
)
def empty_lateral(buggy: bool) -> Setting:
    model: Any = Pyramid()
    if buggy:
        fill(model, "lateral.weight", 0.0)
    return Setting(model, images()[0])


# -- experts


@bug(
    "experts",
    "routers of zero: all experts tie, and the first two take every token",
    at="router|experts",
    cause="zero|same few|all tokens|equal|tie",
    fix="router",
    mend=lambda m: normal(m, "router.weight", 0.02),
)
def tied_experts(buggy: bool) -> Setting:
    model: Any = Gpt(mlp=Experts, depth=3)
    if buggy:
        fill(model, "router.weight", 0.0)
    return Setting(model, text())


class Summed(Experts):
    """Sigmoid gates, divided by their sum unless that is forgotten."""

    divided = True

    def __init__(self, width: int = WIDTH, count: int = 48):
        super().__init__(width, count)

    def forward(self, x: Tensor) -> Tensor:
        gates = self.router(x).sigmoid()
        gates = gates / gates.sum(-1, keepdim=True) if self.divided else gates * 30
        return (torch.stack([expert(x) for expert in self.experts], dim=-1) * gates.unsqueeze(-2)).sum(-1)


@bug(
    "experts",
    "forty-eight sigmoid gates are scaled by 30 where they should be divided by their sum",
    at="mlp|experts|router",
    cause="drown|grow|times|large|add",
    fix="experts|down|divid|normaliz|scale",
    mend=lambda m: [setattr(item, "divided", True) for item in m.modules() if isinstance(item, Summed)],
)
def undivided(buggy: bool) -> Setting:
    model: Any = Gpt(mlp=Summed, depth=3)
    for item in model.modules():
        if isinstance(item, Summed):
            item.divided = not buggy
    return Setting(model, text())


# -- generative


@bug(
    "vae",
    "the means of a VAE are a thousand times too large: the prior costs far more than the image",
    at="mean",
    cause="std|large|times|loss starts|far from",
    fix="mean",
    mend=lambda m: normal(m, "mean.weight", 0.09),
)
def far_codes(buggy: bool) -> Setting:
    model = Vae()
    if buggy:
        normal(model, "mean.weight", 90.0)
    return Setting(model, noise(16, 64))


class Equalized(nn.Module):
    """StyleGAN's mapping: matrices of unit std that are divided by sqrt(fan_in) when they run."""

    gain = 1.0

    def __init__(self, depth: int = 8, width: int = 64):
        super().__init__()
        self.mapping = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.to_image = nn.Linear(width, 48)
        for layer in self.mapping:
            nn.init.normal_(layer.weight)  # type: ignore[arg-type]
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, z: Tensor) -> Tensor:
        for layer in self.mapping:
            z = F.leaky_relu(F.linear(z, layer.weight * self.gain, layer.bias), 0.2) * 2**0.5  # type: ignore[arg-type]
        return self.to_image(z)


@bug(
    "gan",
    "the factor 1/sqrt(fan_in) of StyleGAN's matrices is left out where they run",
    at="mapping",
    cause="grow|explode|std|chaotic|fan_in",
    fix="fan_in|mapping|0\\.125|gain",
    mend=lambda m: setattr(m, "gain", 64**-0.5),
)
def unequalized(buggy: bool) -> Setting:
    model: Any = Equalized()
    model.gain = 1.0 if buggy else 64**-0.5
    return Setting(model, noise(16, 64), regressed(noise(16, 48, seed=6)))


class Stepped(nn.Module):
    """A denoiser told its step by sines and cosines."""

    whole = False

    def __init__(self, width: int = WIDTH):
        super().__init__()
        self.enter, self.time = nn.Linear(48, width), nn.Sequential(nn.Linear(32, width), nn.SiLU())
        self.blocks = nn.ModuleList([Block(width, None) for _ in range(2)])
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 48)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        step = t // 1000 if self.whole else t / 1000
        angle = step[:, None] * 2.0 ** torch.arange(16)
        x = self.enter(x) + self.time(torch.cat([angle.sin(), angle.cos()], -1))[:, None]
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


@bug(
    "diffusion",
    "steps are divided by 1000 as integers: every step looks like step zero",
    at="time|step|\\bt\\b",
    cause="does not depend|no effect|ignore|constant|not change",
    fix="divi|/|step|integer|time",
    mend=lambda m: setattr(m, "whole", False),
)
def same_step(buggy: bool) -> Setting:
    model = Stepped()
    model.whole = buggy
    batch = {"x": noise(8, 16, 48), "t": torch.arange(8) * 120 + 60}
    return Setting(model, batch, regressed(noise(8, 16, 48, seed=9)))


# -- recurrent and state space


class Started(nn.Module):
    """A GRU with a learned first state."""

    def __init__(self, std: float):
        super().__init__()
        self.emb, self.rnn = nn.Embedding(VOCABULARY, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.h0, self.out = nn.Parameter(std * torch.randn(1, 1, WIDTH)), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.rnn(self.emb(ids), self.h0.expand(1, len(ids), WIDTH).contiguous())[0]
        return F.cross_entropy(self.out(x).flatten(0, 1), targets.flatten())


@bug(
    "recurrent",
    "the learned first state of a GRU has std 100",
    at="h0|rnn",
    cause="h0|std|large|satur|drown",
    fix="h0",
    mend=lambda m: normal(m, "h0", 0.02),
)
def far_state(buggy: bool) -> Setting:
    return Setting(Started(100.0 if buggy else 0.02), text())


class Decaying(nn.Module):
    """A diagonal state space layer in a residual stream; decay exp(-exp(A_log) dt)."""

    def __init__(self, start: float):
        super().__init__()
        self.A_log, self.norm = nn.Parameter(torch.full((WIDTH,), start)), nn.LayerNorm(WIDTH)
        self.enter, self.leave = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        given, state, made = self.enter(self.norm(x)), torch.zeros_like(x[:, 0]), []
        decay = torch.exp(-torch.exp(self.A_log) * 0.1)
        for place in range(x.shape[1]):
            state = decay * state + (1 - decay) * given[:, place]
            made.append(state)
        return x + self.leave(torch.stack(made, 1))


class Ssm(nn.Module):
    def __init__(self, start: float):
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([Decaying(start) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(ids[:, :24])
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets[:, :24].flatten())


@bug(
    "state space",
    "the logarithm of A starts at 8: the state forgets everything within one step",
    at="A_log",
    cause="exp|zero|forget|far|slope",
    fix="A_log",
    mend=lambda m: fill(m, "A_log", 0.0),
)
def forgetful(buggy: bool) -> Setting:
    return Setting(Ssm(8.0 if buggy else 0.0), text())


# -- graphs


class Gat(nn.Module):
    """Graph attention by one score per node, added over an edge."""

    def __init__(self, std: float):
        super().__init__()
        self.linear, self.att = nn.Linear(32, 32), nn.Parameter(std * torch.randn(2, 32))
        self.out = nn.Linear(32, 4)
        generator = torch.Generator().manual_seed(2)
        self.register_buffer("edges", (torch.rand(24, 24, generator=generator) < 0.4) | torch.eye(24).bool())

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        scores = F.leaky_relu((x @ self.att[0])[:, None] + (x @ self.att[1])[None, :], 0.2)
        weights = scores.masked_fill(~self.edges, -math.inf).softmax(-1)  # type: ignore[operator]
        return self.out(F.elu(weights @ x))


@bug(
    "graph",
    "the attention vectors of a graph network have std 30: each node hears one neighbour",
    at="att",
    cause="satur|one-hot|scores|std",
    fix="att",
    mend=lambda m: normal(m, "att", 0.17),
)
def one_neighbour(buggy: bool) -> Setting:
    return Setting(Gat(30.0 if buggy else 0.17), noise(24, 32), classified(labels(24, 4)))


# -- language


class Tied(Gpt):
    """Words times sqrt(width), the head tied to the table."""

    def __init__(self, std: float):
        super().__init__()
        self.head.weight = self.wte.weight
        nn.init.normal_(self.wte.weight, 0.0, std)

    def embed(self, ids: Tensor) -> Tensor:
        return WIDTH**0.5 * self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))


@bug(
    "language",
    "words times sqrt(width) from a tied table of std 1",
    at="wte",
    cause="tied|logit|loss starts",
    fix="wte",
    mend=lambda m: normal(m, "wte.weight", 0.02),
)
def loud_table(buggy: bool) -> Setting:
    return Setting(Tied(1.0 if buggy else 0.02), text())


class Heated(Attention):
    """A learned temperature for every head."""

    def __init__(self, width: int = WIDTH):
        super().__init__(width)
        self.temperature = nn.Parameter(torch.ones(self.heads, 1, 1))
        self.twice = False

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores = self.temperature * (query @ key.transpose(-2, -1)) * self.scale
        weights = scores.masked_fill(~causal(x.shape[1]), -math.inf).softmax(-1)
        if self.twice:
            weights = weights.masked_fill(~causal(x.shape[1]), -math.inf).softmax(-1)
        return self.proj((weights @ value).transpose(1, 2).flatten(2))


def _heated() -> Any:
    model: Any = Gpt()
    for block in model.blocks:
        old, block.attn = block.attn, Heated()
        block.attn.qkv, block.attn.proj = old.qkv, old.proj
    return model


@bug(
    "attention",
    "a learned temperature of every head starts at 0",
    at="temperature|qkv|attn",
    cause="temperature|zero",
    fix="temperature",
    mend=lambda m: fill(m, "temperature", 1.0),
)
def frozen_attention(buggy: bool) -> Setting:
    model = _heated()
    fill(model, "temperature", 0.0 if buggy else 1.0)
    return Setting(model, text())


@bug(
    "attention",
    "the weights of attention pass a second softmax",
    at="attn",
    cause="softmax|probabilit|twice|uniform",
    fix="softmax|once|logits",
    mend=lambda m: [setattr(block.attn, "twice", False) for block in m.blocks],
)
def twice_softmax(buggy: bool) -> Setting:
    model = _heated()
    for block in model.blocks:
        block.attn.twice = buggy
    return Setting(model, text())


class Capped(Gpt):
    """Logits bounded by a tanh, as in Gemma 2."""

    cap = 30.0

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        logits = self.cap * torch.tanh(self.head(self.norm(x)) / self.cap)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@bug(
    "loss",
    "logits are capped at 0.01 by a tanh",
    at="cap|output|logit|model",
    cause="satur|bound|cap|equal|small|slope",
    fix="cap|bound|std|readout|head",
    mend=lambda m: setattr(m, "cap", 30.0),
)
def tight_cap(buggy: bool) -> Setting:
    model = Capped()
    model.cap = 0.01 if buggy else 30.0
    return Setting(model, text())


@bug(
    "loss",
    "targets are not shifted: each token is to predict itself",
    at="target|label|input|loss",
    cause="shift|same|equal|itself|copy",
    fix="shift|next",
    mend=lambda m: None,
)
def unshifted(buggy: bool) -> Setting:
    ids = tokens(length=TOKENS)
    return Setting(Gpt(), {"ids": ids, "targets": ids} if buggy else text())


@bug(
    "norms",
    "one loop initializes every parameter from N(0, 0.02), gains of norms among them",
    at="norm",
    cause="gain|norm|std|small",
    fix="norm",
    mend=lambda m: [fill(m, "norm1.weight", 1.0), fill(m, "norm2.weight", 1.0), fill(m, "norm.weight", 1.0)],
)
def random_gains(buggy: bool) -> Setting:
    model = Gpt(depth=6)
    if buggy:
        for weight in model.parameters():
            nn.init.normal_(weight, 0.0, 0.02)
    return Setting(model, text())


class Foreign(Attention):
    """nn.MultiheadAttention, told or not that sequences come first."""

    def __init__(self, first: bool):
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, 4, batch_first=first)
        del self.qkv, self.proj

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


@bug(
    "attention",
    "batch_first is forgotten: sequences of a batch attend to one another",
    at="attn|batch|inner",
    cause="batch|example|sequence",
    fix="batch_first|transpose|axis",
    mend=lambda m: [setattr(block.attn.inner, "batch_first", True) for block in m.blocks],
)
def mixed_batch(buggy: bool) -> Setting:
    model: Any = Pooled()
    for block in model.blocks:
        block.attn = Foreign(not buggy)
    return Setting(model, tokens(), classified(labels(4, 4)))


class Pooled(nn.Module):
    """A classifier of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.pos = nn.Embedding(VOCABULARY, WIDTH), nn.Parameter(0.02 * torch.randn(TOKENS, WIDTH))
        self.blocks = nn.ModuleList([Block(WIDTH, None) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4)
        small_weights(self)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


# -- vision and policy


def _convnet() -> Any:
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
    return he(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4)))


@bug(
    "vision",
    "means for pixels of 0 to 255 are taken off pixels of 0 to 1",
    at="input|0|batch",
    cause="input|mean|normaliz|large",
    fix="normaliz|mean|divide|subtract",
    mend=lambda m: None,
)
def far_pixels(buggy: bool) -> Setting:
    pixels, wanted = images()
    pixels = pixels.sub(pixels.min()).div(pixels.max() - pixels.min())
    mean = torch.tensor([123.7, 116.3, 103.5])[:, None, None]
    return Setting(_convnet(), pixels - mean if buggy else (pixels - 0.45) / 0.22, classified(wanted))


class Residual(nn.Module):
    def __init__(self, before: int, after: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, 2, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.downsample(x))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layers = nn.Conv2d(3, 16, 3, 1, 1), nn.Sequential(Residual(16, 32), Residual(32, 64))
        self.fc = nn.Linear(64, 4)
        he(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layers(self.stem(x)).mean((2, 3)))


@bug(
    "vision",
    "the gain of every batch norm that ends something is zero, those of the shortcuts too",
    at="downsample|bn2|layers",
    cause="zero",
    fix="downsample|bn2|gain",
    mend=lambda m: fill(m, "downsample.1.weight", 1.0),
)
def shut_shortcuts(buggy: bool) -> Setting:
    model = Small()
    fill(model, "bn2.weight", 0.0)
    if buggy:
        fill(model, "downsample.1.weight", 0.0)
    pixels, wanted = images()
    return Setting(model, pixels, classified(wanted))


@bug(
    "policy",
    "the critic is to predict returns of ten thousand",
    at="loss|target|value|output",
    cause="target|scale|large|starts at|return",
    fix="normaliz|divide|scale",
    mend=lambda m: None,
)
def far_returns(buggy: bool) -> Setting:
    critic = he(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)))
    returns = noise(32, 1, seed=7) * 0.3 + 1.0
    return Setting(critic, noise(32, 16), regressed(1e4 * returns if buggy else returns - 1.0))


class Squeezed(nn.Module):
    """Normalizes what is left after pooling to one pixel."""

    def __init__(self, groups: int):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 1)
        self.norm, self.fc = nn.GroupNorm(groups, 32), nn.Linear(32, 4)
        he(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x)).mean((2, 3), keepdim=True)
        return self.fc(F.relu(self.norm(self.conv2(x))).flatten(1))


@bug(
    "norms",
    "a group norm of one channel per group on images of one pixel gives zeros",
    at="norm",
    cause="zero|variance|one|single|does not depend",
    fix="norm|group",
    mend=lambda m: setattr(m, "norm", nn.GroupNorm(4, 32)),
)
def lonely_pixel(buggy: bool) -> Setting:
    pixels, wanted = images()
    return Setting(Squeezed(32 if buggy else 4), pixels, classified(wanted))
