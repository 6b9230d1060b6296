"""A fourth held-out set of 24: mistakes that people make with an axis, a scale, a sum, a type or what is trained.

Written and committed before the checks were changed again, without looking at them; looked at once.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.planted_bugs.adapters import Lora, adapted
from studies.planted_bugs.case import Setting, bug
from studies.planted_bugs.contrastive import Clip, pairs
from studies.planted_bugs.detection import Detector
from studies.planted_bugs.experts import Experts
from studies.planted_bugs.parts import (
    TOKENS,
    VOCABULARY,
    WIDTH,
    Attention,
    Block,
    Gpt,
    Vit,
    causal,
    classified,
    he,
    images,
    labels,
    noise,
    regressed,
    small_weights,
    text,
    tokens,
)


def flag(kind: type, name: str, value: Any) -> Any:
    """The fix of what is written in the forward: the right line in every module of a class."""

    def mend(model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, kind):
                setattr(module, name, value)

    return mend


# -- adapters


class OwnLora(Lora):
    """A subclass that forgets, or does not, what it is added to."""

    added = True

    def forward(self, x: Tensor) -> Tensor:
        low = self.scale * (x @ self.lora_a.T @ self.lora_b.T)
        return self.base(x) + low if self.added else low


@bug(
    "adapters",
    "a LoRA returns its low-rank product alone: the frozen layer beside it is not called",
    at="base|lora|proj|down",
    cause="not used|unused|never|no effect|zero|nothing|not reach",
    fix="base|lora_b|add",
    mend=flag(OwnLora, "added", True),
)
def alone(buggy: bool) -> Setting:
    model = adapted(OwnLora, "lora")
    flag(OwnLora, "added", not buggy)(model)
    return Setting(model, text())


@bug(
    "adapters",
    "the new classification head is frozen instead of the backbone",
    at="head",
    cause="frozen|requires_grad|not trained|no gradient",
    fix="requires_grad|unfreeze|train",
    mend=lambda m: [weight.requires_grad_("head" in name) for name, weight in m.named_parameters()],
)
def frozen_head(buggy: bool) -> Setting:
    model: Any = Vit()
    for name, weight in model.named_parameters():
        weight.requires_grad_(("head" in name) != buggy)
    pixels, wanted = images()
    return Setting(model, pixels, classified(wanted))


# -- contrastive


class Wrong(Clip):
    axis = -1

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        first, second = F.normalize(self.image(image), dim=self.axis), F.normalize(self.text(text), dim=self.axis)
        logits = self.logit_scale.exp() * first @ second.T
        return F.cross_entropy(logits, labels(len(logits), len(logits)))


@bug(
    "contrastive",
    "embeddings are normalized over the batch, not over their entries",
    at="image|text|normal|batch|linalg|output",
    cause="batch|axis|over the (examples|samples|rows)|dim",
    fix="dim|axis|each (example|sample|row)|last",
    mend=flag(Wrong, "axis", -1),
)
def normalized_over_batch(buggy: bool) -> Setting:
    model = Wrong()
    model.axis = 0 if buggy else -1
    return Setting(model, pairs())


# -- detection


class Boxes(nn.Module):
    """Four numbers between 0 and 1 for every image."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = he(nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()))
        self.box_head = nn.Linear(64, 4)
        nn.init.normal_(self.box_head.weight, 0.0, 0.01)
        nn.init.zeros_(self.box_head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.box_head(self.backbone(x).mean((2, 3))).sigmoid()


@bug(
    "detection",
    "boxes come in pixels, while the head ends in a sigmoid",
    at="target|loss|output|box_head",
    cause="target|scale|large|beyond|reach|starts at",
    fix="divide|normaliz|scale|target",
    mend=lambda m: None,
)
def boxes_in_pixels(buggy: bool) -> Setting:
    boxes = 0.2 + 0.6 * torch.rand(8, 4, generator=torch.Generator().manual_seed(4))
    wanted = 640.0 * boxes if buggy else boxes

    def loss(output: Tensor) -> Tensor:
        return F.l1_loss(output, wanted)

    return Setting(Boxes(), images()[0], loss)


class Twice(Detector):
    """Class scores of every cell against a map with few cells set."""

    twice = False

    def forward(self, images: Tensor) -> Tensor:
        logits = self.cls_head(self.backbone(images))
        wanted = torch.zeros_like(logits)
        wanted[:, 1, 1, 1] = 1.0
        given = logits.sigmoid() if self.twice else logits
        return F.binary_cross_entropy_with_logits(given, wanted)


@bug(
    "detection",
    "a sigmoid before the loss that takes one itself",
    at="sigmoid|loss|cls_head|logit",
    cause="sigmoid|twice|probabilit",
    fix="sigmoid|logits|binary_cross_entropy\\b",
    mend=flag(Twice, "twice", False),
)
def double_sigmoid(buggy: bool) -> Setting:
    model = Twice()
    model.twice = buggy
    return Setting(model, images()[0])


# -- recurrent and state space


class Reader(nn.Module):
    """A recurrent classifier."""

    place = -1

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.rnn = nn.Embedding(VOCABULARY, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.out = nn.Linear(WIDTH, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.rnn(self.emb(ids))[0][:, self.place])


@bug(
    "recurrent",
    "a one-way GRU is read at its first place, as one reads BERT: all later words are lost",
    at="rnn|ids|input|position|output",
    cause="position|first|place|token|does not depend|no effect",
    fix="last|-1|bidirectional|place|position|index",
    mend=flag(Reader, "place", -1),
)
def first_place(buggy: bool) -> Setting:
    model = Reader()
    model.place = 0 if buggy else -1
    return Setting(model, tokens(16, 24), classified(labels(16, 4)))


class Selective(nn.Module):
    """A small Mamba: a step for every channel, from softplus of a bias that is made for steps of 0.001 to 0.1."""

    def __init__(self, zeroed: bool):
        super().__init__()
        self.norm, self.enter, self.leave = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dt_proj = nn.Linear(WIDTH, WIDTH)
        self.A_log = nn.Parameter(torch.arange(1.0, 9.0).log().repeat(WIDTH // 8))
        small_weights(self)
        if not zeroed:
            self.steps()

    def steps(self) -> None:
        wanted = torch.exp(torch.linspace(math.log(1e-3), math.log(0.1), WIDTH))
        self.dt_proj.bias.data.copy_(wanted + torch.log(-torch.expm1(-wanted)))

    def forward(self, x: Tensor) -> Tensor:
        read = self.norm(x)
        given, step = self.enter(read), F.softplus(self.dt_proj(read))
        decay, state, made = torch.exp(-step * self.A_log.exp()), torch.zeros_like(x[:, 0]), []
        for place in range(x.shape[1]):
            state = decay[:, place] * state + step[:, place] * given[:, place]
            made.append(state)
        return x + self.leave(torch.stack(made, 1))


class Mamba(nn.Module):
    def __init__(self, zeroed: bool):
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([Selective(zeroed) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        nn.init.normal_(self.wte.weight, 0.0, 0.02)
        nn.init.normal_(self.head.weight, 0.0, 0.02)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(ids[:, :24])
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets[:, :24].flatten())


@bug(
    "state space",
    "the general initialization zeroes the bias of the step, so that states forget at once",
    at="dt_proj",
    cause="bias|step|dt|forget|softplus",
    fix="dt_proj.bias|bias",
    mend=lambda m: [layer.steps() for layer in m.layers],
)
def zeroed_steps(buggy: bool) -> Setting:
    return Setting(Mamba(buggy), text())


# -- experts


class OverTokens(Experts):
    axis, weighted = -1, True

    def forward(self, x: Tensor) -> Tensor:
        chances = self.router(x).softmax(self.axis)
        best, place = chances.topk(2, dim=-1)
        best = best / best.sum(-1, keepdim=True) if self.weighted else torch.ones_like(best) / 2
        weights = torch.zeros_like(chances).scatter(-1, place, best)
        made = torch.stack([expert(x) for expert in self.experts], dim=-1)
        return self.shared(x) + (made * weights.unsqueeze(-2)).sum(-1)


@bug(
    "experts",
    "the router's softmax runs over the tokens, so that a choice depends on words to come",
    at="router|mlp",
    cause="axis|over (the )?(tokens|positions)|future|later|come after|sum to|dim",
    fix="axis|dim|experts|last",
    mend=flag(OverTokens, "axis", -1),
)
def router_over_tokens(buggy: bool) -> Setting:
    model = Gpt(mlp=OverTokens, depth=3)
    flag(OverTokens, "axis", 1 if buggy else -1)(model)
    return Setting(model, text())


@bug(
    "experts",
    "chosen experts are averaged, not weighted: the router learns nothing",
    at="router",
    cause="no gradient|not differentiable|exactly zero|gets no|not reach|weigh",
    fix="weigh|gate|multipl|router|probabilit",
    mend=flag(OverTokens, "weighted", True),
)
def unweighted(buggy: bool) -> Setting:
    model = Gpt(mlp=OverTokens, depth=3)
    flag(OverTokens, "weighted", not buggy)(model)
    return Setting(model, text())


# -- generative


class Fooling(nn.Module):
    """The step of a generator: its images are to be taken for real ones."""

    cut = False

    def __init__(self) -> None:
        super().__init__()
        self.generator = he(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 48), nn.Tanh()))
        self.discriminator = he(nn.Sequential(nn.Linear(48, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)))
        nn.init.normal_(self.discriminator[-1].weight, 0.0, 0.02)  # type: ignore[arg-type]

    def forward(self, z: Tensor) -> Tensor:
        made = self.generator(z)
        logits = self.discriminator(made.detach() if self.cut else made)
        return F.binary_cross_entropy_with_logits(logits, torch.ones_like(logits))


@bug(
    "gan",
    "images are detached in the generator's step as in the discriminator's",
    at="generator",
    cause="detach|no gradient|cut",
    fix="detach",
    mend=flag(Fooling, "cut", False),
)
def detached_images(buggy: bool) -> Setting:
    model = Fooling()
    model.cut = buggy
    return Setting(model, noise(16, 16))


class Denoiser(nn.Module):
    """Told its step by sines whose frequencies are made for steps from 0 to 1000."""

    divided, inner = False, 1.0

    def __init__(self, width: int = WIDTH):
        super().__init__()
        self.enter = nn.Linear(48, width)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList([Block(width, None) for _ in range(2)])
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 48)
        he(self.time)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        step = t / 1000 if self.divided else t.float()
        angle = step[:, None] * torch.exp(-math.log(10_000.0) * torch.arange(WIDTH // 2) / (WIDTH // 2))
        told = self.time(torch.cat([angle.sin(), angle.cos()], -1))
        x = self.enter(self.inner * x) + told[:, None]
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


@bug(
    "diffusion",
    "steps from 0 to 1 enter sines that are made for steps from 0 to 1000: all look nearly the same",
    at="time|step|\\bt\\b",
    cause="nearly (the same|constant|equal)|hardly|no effect|little|does not depend|correlat|identical|weak",
    fix="1000|step|frequenc|scale|time|\\bt\\b",
    mend=flag(Denoiser, "divided", False),
)
def slow_sines(buggy: bool) -> Setting:
    model = Denoiser()
    model.divided = buggy
    batch = {"x": noise(8, 16, 48), "t": torch.arange(8) * 120 + 60}
    return Setting(model, batch, regressed(noise(8, 16, 48, seed=9)))


@bug(
    "diffusion",
    "images with noise of std 80 enter as they are, without the factor 1/sqrt(1 + sigma^2)",
    at="input|enter|\\bx\\b|batch",
    cause="input|batch|scale|large|drown|root mean square|variance",
    fix="divide|normaliz|scale|input|enter",
    mend=flag(Denoiser, "inner", 1 / math.hypot(1.0, 80.0)),
)
def unscaled_noise(buggy: bool) -> Setting:
    model = Denoiser()
    model.inner = 1.0 if buggy else 1 / math.hypot(1.0, 80.0)
    image = noise(8, 16, 48, seed=9)
    batch = {"x": image + 80.0 * noise(8, 16, 48), "t": torch.arange(8) * 120 + 60}
    return Setting(model, batch, regressed(image))


# -- graphs


class Batched(nn.Module):
    """A graph network over a list of edges; a node hears the mean of its neighbours."""

    def __init__(self, edges: Tensor, width: int = 32):
        super().__init__()
        self.register_buffer("edges", edges)
        self.layers = nn.ModuleList([he(nn.Linear(8 if i == 0 else width, width)) for i in range(2)])
        self.out = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        source, target = self.edges  # type: ignore[misc]
        degree = torch.zeros(len(x)).index_add(0, target, torch.ones(len(target))).clamp(min=1.0)
        for layer in self.layers:
            made = F.relu(layer(x))
            x = torch.zeros_like(made).index_add(0, target, made[source]) / degree[:, None]
        return self.out(x)


def edges_of(graphs: int, nodes: int, shifted: bool) -> Tensor:
    """A ring and itself in every graph; without the shift all edges point into the first graph."""
    here = torch.arange(nodes)
    ring = torch.stack([torch.cat([here, here, here]), torch.cat([here, (here + 1) % nodes, (here - 1) % nodes])])
    return torch.cat([ring + (nodes * place if shifted else 0) for place in range(graphs)], dim=1)


@bug(
    "graph",
    "edges of a batch of graphs are not shifted: all but the first graph hear nothing",
    at="input|node|output|edges|position|row|batch|layers",
    cause="does not depend|no effect|not reach|nothing|never|ignore|zero|constant",
    fix="edge|offset|shift|index|batch",
    mend=lambda m: setattr(m, "edges", edges_of(4, 6, True)),
)
def unshifted_edges(buggy: bool) -> Setting:
    wanted = labels(24, 4)
    return Setting(Batched(edges_of(4, 6, not buggy)), noise(24, 8), classified(wanted))


# -- policies and values


class Policy(nn.Module):
    """The policy gradient of actions that were taken."""

    twice, floor = False, 1e-8

    def __init__(self) -> None:
        super().__init__()
        self.body = he(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()))
        self.pi = nn.Linear(64, 6)
        nn.init.normal_(self.pi.weight, 0.0, 0.01)
        nn.init.zeros_(self.pi.bias)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))

    def forward(self, seen: Tensor, actions: Tensor, advantages: Tensor) -> Tensor:
        seen = (seen - self.mean) / torch.sqrt(self.var + self.floor)  # type: ignore[operator]
        logits = self.pi(self.body(seen))
        if self.twice:
            logits = logits.softmax(-1)
        taken = logits.log_softmax(-1).gather(1, actions[:, None])[:, 0]
        return -(advantages * taken).mean()


def steps() -> dict[str, Tensor]:
    return {"seen": noise(64, 8), "actions": labels(64, 6), "advantages": noise(64, seed=11)}


@bug(
    "policy",
    "probabilities go where logits are wanted: a softmax behind a softmax",
    at="softmax|\\bpi\\b|logit|output|model",
    cause="softmax|probabilit|twice",
    fix="softmax|logits|once",
    mend=flag(Policy, "twice", False),
)
def policy_of_probabilities(buggy: bool) -> Setting:
    model = Policy()
    model.twice = buggy
    return Setting(model, steps())


@bug(
    "policy",
    "the running variance of observations starts at 0, which 1e-8 does not save",
    at="var\\b|body.0|input|seen",
    cause="var\\b|variance|statistic|input|large|satur|divid",
    fix="var\\b|one|1\\b|eps|statistic|scale|body.0",
    mend=lambda m: m.var.fill_(1.0),
)
def no_variance_yet(buggy: bool) -> Setting:
    model: Any = Policy()
    model.var.fill_(0.0 if buggy else 1.0)
    return Setting(model, steps())


@bug(
    "policy",
    "values of shape (n, 1) meet returns of shape (n): every value is compared with every return",
    at="loss|target|output|return|value",
    cause="shape|broadcast|dimension|\\(\\d+, 1\\)|every",
    fix="squeeze|shape|flatten|view|unsqueeze|\\[:, 0\\]",
    mend=lambda m: m.append(nn.Flatten(0)),
)
def broadcast_returns(buggy: bool) -> Setting:
    critic = he(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
    nn.init.normal_(critic[-1].weight, 0.0, 0.05)
    if not buggy:
        critic.append(nn.Flatten(0))
    x = noise(32, 16)
    return Setting(critic, x, regressed((x[:, 0] * x[:, 1]).clone()))


# -- language


@bug(
    "language",
    "a list of layers made by multiplication: one block six times",
    at="blocks",
    cause="same (module|block|layer|object|weights|parameters)|shared|shares|one and the same|identical",
    fix="for |each|own|copy|list|new",
    mend=lambda m: setattr(m, "blocks", Gpt(depth=6).blocks),
)
def one_block(buggy: bool) -> Setting:
    model: Any = Gpt(depth=6)
    if buggy:
        model.blocks = nn.ModuleList([model.blocks[0]] * 6)
    return Setting(model, text())


class Multiplied(Attention):
    filled = True

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores, allowed = query @ key.transpose(-2, -1) * self.scale, causal(x.shape[1])
        scores = scores.masked_fill(~allowed, -math.inf) if self.filled else scores * allowed
        return self.proj((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


@bug(
    "masks",
    "scores are multiplied by the causal mask: what is masked gets the score 0 and is seen",
    at="attn",
    cause="future|mask|causal|later|come after|ahead",
    fix="mask|-inf|causal|is_causal",
    mend=flag(Multiplied, "filled", True),
)
def multiplied_mask(buggy: bool) -> Setting:
    model: Any = Gpt()
    for block in model.blocks:
        old, block.attn = block.attn, Multiplied()
        block.attn.qkv, block.attn.proj = old.qkv, old.proj
    flag(Multiplied, "filled", not buggy)(model)
    return Setting(model, text())


class Coarse(nn.Module):
    """Sines of positions, which 8 bits of mantissa cannot tell apart beyond 256."""

    kind: torch.dtype = torch.float32

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(WIDTH, None) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
        small_weights(self)

    def forward(self, ids: Tensor) -> Tensor:
        place = torch.arange(ids.shape[1], dtype=self.kind)
        pace = torch.exp(-math.log(10_000.0) * torch.arange(WIDTH // 2) / (WIDTH // 2)).to(self.kind)
        angle = place[:, None] * pace
        x = self.emb(ids) + 0.02 * torch.cat([angle.sin(), angle.cos()], -1).float()
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@bug(
    "language",
    "positions are counted in bfloat16: beyond 256 neighbours share one",
    at="position|arange|sin|emb",
    cause="bfloat16|round|same|equal|identical|precision",
    fix="float32|float\\(\\)|precision|dtype",
    mend=flag(Coarse, "kind", torch.float32),
)
def coarse_positions(buggy: bool) -> Setting:
    model = Coarse()
    model.kind = torch.bfloat16 if buggy else torch.float32
    ids = tokens(2, 384)

    def loss(output: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), ids.flip(1).flatten())

    return Setting(model, ids, loss)


class DeepPost(nn.Module):
    """DeepNorm: the skip is multiplied by (2 depth)^(1/4), and branches start smaller by (8 depth)^(-1/4)."""

    on_skip = True

    def __init__(self, depth: int = 12):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList([Block(WIDTH) for _ in range(depth)])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.alpha = (2 * depth) ** 0.25
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, 0.0, WIDTH**-0.5 if "blocks" in name else 0.02)
            if name.endswith(("proj.weight", "up.weight", "down.weight")):
                weight.data.mul_((8 * depth) ** -0.25)
            if name.endswith("down.weight"):
                weight.data.mul_(0.5)

    def added(self, x: Tensor, branch: Tensor) -> Tensor:
        return self.alpha * x + branch if self.on_skip else x + self.alpha * branch

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block.norm1(self.added(x, block.attn(x)))  # type: ignore[operator]
            x = block.norm2(self.added(x, block.mlp(x)))  # type: ignore[operator]
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


@bug(
    "language",
    "the factor alpha of DeepNorm stands at the branch in place of the skip",
    at="blocks|alpha",
    cause="skip|branch|post-ln|overwrit|alpha",
    fix="skip|branch|alpha|scale|proj|down",
    mend=flag(DeepPost, "on_skip", True),
)
def alpha_at_branch(buggy: bool) -> Setting:
    model = DeepPost()
    model.on_skip = not buggy
    return Setting(model, text())


@bug(
    "language",
    "normal_(weight, 0.02): 0.02 is the mean, and the std stays 1",
    at="qkv|mlp|blocks",
    cause="std|mean",
    fix="std|normal_",
    mend=small_weights,
)
def mean_for_std(buggy: bool) -> Setting:
    model = Gpt()
    if buggy:
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0.02)
    return Setting(model, text())


# -- vision and speech


class Rearranged(Vit):
    """Patches made a sequence by a transpose, or by a reshape that mixes channels and places."""

    reshaped = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        x = x.reshape(len(x), -1, x.shape[1]) if self.reshaped else x.flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


@bug(
    "vision",
    "patches are made a sequence by a reshape that mixes channels with places",
    at="patches|reshape",
    cause="reshape|view|mix|transpose|axes|channels|position",
    fix="transpose|permute|flatten",
    mend=flag(Rearranged, "reshaped", False),
)
def mixed_patches(buggy: bool) -> Setting:
    model = Rearranged()
    model.reshaped = buggy
    pixels, wanted = images()
    return Setting(model, pixels, classified(wanted))


class Segmenter(nn.Module):
    axis = 1

    def __init__(self, classes: int = 5):
        super().__init__()
        self.body = he(nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)))
        self.head = nn.Conv2d(32, classes, 1)
        nn.init.normal_(self.head.weight, 0.0, 0.02)
        nn.init.zeros_(self.head.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.body(x))).log_softmax(self.axis)


@bug(
    "vision",
    "the softmax of a segmentation runs over the columns, not over the classes",
    at="softmax|loss|output|head|model",
    cause="axis|dim|over|sum to|softmax|class",
    fix="axis|dim|class|cross_entropy",
    mend=flag(Segmenter, "axis", 1),
)
def softmax_over_columns(buggy: bool) -> Setting:
    model = Segmenter()
    model.axis = -1 if buggy else 1
    pixels = images()[0]
    wanted = (pixels.mean(1) * 2 + 2).long().clamp(0, 4)

    def loss(output: Tensor) -> Tensor:
        return F.nll_loss(output, wanted)

    return Setting(model, pixels, loss)


class Listener(nn.Module):
    """Frames to letters, by CTC."""

    logs = True

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(20, WIDTH, 3, 2, 1)
        self.blocks = nn.ModuleList([Block(WIDTH, None) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 12)
        he(self.enter)
        small_weights(self)

    def forward(self, frames: Tensor, letters: Tensor) -> Tensor:
        x = F.gelu(self.enter(frames)).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        given = logits.log_softmax(-1) if self.logs else logits
        batch, length = given.shape[:2]
        lengths = torch.full((batch,), length), torch.full((batch,), letters.shape[1])
        return F.ctc_loss(given.transpose(0, 1), letters, *lengths)


@bug(
    "speech",
    "logits go to the CTC loss without a log_softmax",
    at="ctc|loss|head|output|logit",
    cause="log_softmax|normaliz|probabilit|sum to|negative",
    fix="log_softmax",
    mend=flag(Listener, "logs", True),
)
def unnormalized_ctc(buggy: bool) -> Setting:
    model = Listener()
    model.logs = not buggy
    letters = torch.randint(1, 12, (4, 8), generator=torch.Generator().manual_seed(3))
    return Setting(model, {"frames": noise(4, 20, 64), "letters": letters})
