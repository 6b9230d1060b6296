"""A sixth held-out set of 24: what is used in the wrong place, norms that take away what they should keep, starts.

Written and committed before any of them was checked and without reading the checks; to be looked at once.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint

from studies.planted_bugs.adapters import Lora, adapted
from studies.planted_bugs.case import Setting, bug
from studies.planted_bugs.contrastive import Tower, pairs
from studies.planted_bugs.fifth import Hinge, given
from studies.planted_bugs.fourth import Batched, Boxes, edges_of, flag
from studies.planted_bugs.generative import Vae
from studies.planted_bugs.parts import (
    VOCABULARY,
    WIDTH,
    Block,
    Gpt,
    Mlp,
    classified,
    he,
    images,
    labels,
    noise,
    regressed,
    text,
    tokens,
)


def turned(x: Tensor) -> Tensor:
    """Rotary positions of (batch, places, heads, size)."""
    half = x.shape[-1] // 2
    pace = 10_000.0 ** (-torch.arange(half) / half)
    angle = torch.arange(x.shape[1])[:, None, None] * pace
    first, second = x.chunk(2, -1)
    return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], -1)


class Rotary(nn.Module):
    late = False

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (4, -1)) for part in self.qkv(x).chunk(3, -1))
        if not self.late:
            query, key = turned(query), turned(key)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        if self.late:
            query, key = turned(query), turned(key)
        return self.proj(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.blocks = nn.Embedding(4, WIDTH), nn.Sequential(*(Block() for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 8)
        for block in self.blocks:
            block.attn = Rotary()

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.emb(ids)))).flatten(0, 1)


@bug("language", "rotary positions are applied behind the transpose: heads are turned, not places",
    at="position|rotary|query|key|attn|token|blocks|emb", cause="position|order|permut|rotary|same|identical",
    fix="position|transpose|rotary|axis|dim|place|rope|order|shape", mend=flag(Rotary, "late", False),
)  # fmt: skip
def rotary_over_heads(buggy: bool) -> Setting:
    ids = torch.randint(4, (8, 32), generator=torch.Generator().manual_seed(3))
    model = Tagger()
    flag(Rotary, "late", buggy)(model)
    return Setting(model, ids, classified((torch.arange(32) // 4).repeat(8)))


class Overwritten(Block):
    kept = True

    def forward(self, x: Tensor) -> Tensor:
        if self.kept:
            return super().forward(x)
        x = self.attn(self.norm1(x))
        return self.mlp(self.norm2(x))


@bug("language", "x = attn(norm(x)): every branch of eight blocks overwrites the stream that it should be added to",
    at="blocks|attn|mlp|norm|proj|down|wte|wpe|token",
    cause="skip|residual|shrink|small|vanish|correlat|identical|same|collaps|lose|similar",
    fix="skip|residual|add|x \\+|\\+ x|std|scale|initiali", mend=flag(Overwritten, "kept", True),
)  # fmt: skip
def overwritten_stream(buggy: bool) -> Setting:
    model = Gpt(8, block=Overwritten)
    flag(Overwritten, "kept", not buggy)(model)
    return Setting(model, text())


class Captioner(nn.Module):
    own = False

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.place = nn.Linear(48, WIDTH), nn.Embedding(16, WIDTH)
        self.emb, self.encoder = nn.Embedding(32, WIDTH), nn.ModuleList([Block(diagonal=None) for _ in range(2)])
        self.norm, self.cross = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.decoder, self.last, self.head = Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32)

    def forward(self, patches: Tensor, ids: Tensor, targets: Tensor) -> Tensor:
        memory, x = self.patches(patches) + self.place.weight, self.emb(ids) + self.place.weight[: ids.shape[1]]
        for block in self.encoder:
            memory = block(memory)
        read = self.norm(x)
        x = x + (self.cross(read, read, read)[0] if self.own else self.cross(read, memory, memory)[0])
        return F.cross_entropy(self.head(self.last(self.decoder(x))).flatten(0, 1), targets.flatten())


@bug("encoder-decoder", "the cross attention of a captioner is given the words themselves: no word sees the image",
    at="encoder|patches|memory|cross|image",
    cause="no gradient|not used|unused|no effect|not reach|never|zero grad|exactly zero|gets no|does not depend|ignore",
    fix="memory|encoder|cross|pass|key|value|use|connect", mend=flag(Captioner, "own", False),
)  # fmt: skip
def own_words(buggy: bool) -> Setting:
    wanted = torch.randint(32, (16, 8), generator=torch.Generator().manual_seed(3))
    ids = torch.arange(8).repeat(16, 1)
    return Setting(given(Captioner(), "own", buggy), {"patches": noise(16, 16, 48), "ids": ids, "targets": wanted})


class Saving(nn.Module):
    reentrant = False

    def __init__(self, block: nn.Module):
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.block, x, use_reentrant=self.reentrant)


@bug("adapters", "reentrant checkpoints behind frozen embeddings: their input asks for no gradient, LoRAs get none",
    at="lora|block|checkpoint", cause="no gradient|not reach|gets no|never|none|cut|checkpoint|reentrant|exactly zero",
    fix="reentrant|checkpoint|requires_grad|enable_input|input", mend=flag(Saving, "reentrant", False),
)  # fmt: skip
def reentrant(buggy: bool) -> Setting:
    model = adapted(Lora, "lora")
    for name, weight in model.named_parameters():
        weight.requires_grad_("lora" in name or "norm" in name)
    model.blocks = nn.ModuleList([given(Saving(block), "reentrant", buggy) for block in model.blocks])
    return Setting(model, text())


@bug("vision", "an instance norm stands right before the mean over places: the mean of every channel is zero",
    at="norm|head|mean|pool|output|\\b(6|8|9|10|11)\\b",
    cause="zero|identical|same|equal|does not depend|no effect|cancel|constant|no gradient|erase|remove",
    fix="norm|group|layer|pool|before|behind|remove|relu", mend=lambda m: m.__setitem__(8, nn.Identity()),
)  # fmt: skip
def norm_before_mean(buggy: bool) -> Setting:
    body: list[nn.Module] = []
    for inputs, outputs, step in ((3, 32, 2), (32, 32, 1), (32, 64, 2)):
        body += [nn.Conv2d(inputs, outputs, 3, step, 1), nn.ReLU(), nn.InstanceNorm2d(outputs, affine=True)]
    if not buggy:
        body[8] = nn.Identity()
    model = nn.Sequential(*he(nn.Sequential(*body)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 4))
    pixels, wanted = images(16)
    return Setting(model, pixels, classified(wanted))


class Wasserstein(nn.Module):
    def __init__(self, last: nn.Module):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 48), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(48, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1), last)
        he(self).critic.requires_grad_(False)

    def forward(self, z: Tensor) -> Tensor:
        return -self.critic(self.generator(z)).mean()


@bug("gan", "a Wasserstein critic ends in a batch norm: its mean over the batch is a constant, whatever is generated",
    at="critic|generator|norm|output|loss|\\b3\\b",
    cause="zero|no gradient|constant|does not depend|no effect|cancel|mean|flat|not reach",
    fix="norm|remove|layer|last|critic", mend=lambda m: m.critic.__setitem__(3, nn.Identity()),
)  # fmt: skip
def critic_ends_in_norm(buggy: bool) -> Setting:
    return Setting(Wasserstein(nn.BatchNorm1d(1) if buggy else nn.Identity()), noise(32, 16))


class DeepHinge(Hinge):
    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(48, 64), nn.LeakyReLU(0.2))
        for _ in range(9):
            self.critic.extend([nn.Linear(64, 64), nn.LeakyReLU(0.2)])
        he(self.critic.append(nn.Linear(64, 1)))

    def without(self) -> None:
        for layer in self.critic[::2]:
            parametrize.remove_parametrizations(layer, "weight")
        he(self)


@bug("gan", "spectral norm on all of eleven plain layers: each shrinks the signal, and the critic says its bias",
    at="critic|weight|original|layers|\\b\\d+\\b",
    cause="shrink|small|vanish|spectral|identical|correlat|same|gain|does not depend",
    fix="spectral|gain|skip|residual|scale|std|initiali|norm|remove|fewer", mend=lambda m: m.without(),
)  # fmt: skip
def spectral_everywhere(buggy: bool) -> Setting:
    model = DeepHinge()
    if buggy:
        for layer in model.critic[::2]:
            spectral_norm(layer)
    return Setting(model, {"real": noise(32, 48) + 1.0, "made": noise(32, 48, seed=9)})


class Planner(nn.Module):
    def __init__(self, groups: int, width: int = 32):
        super().__init__()
        self.enter, self.out = nn.Conv1d(2, width, 3, padding=1), nn.Conv1d(width, 2, 3, padding=1)
        self.given = nn.Sequential(nn.Linear(32 + 8, width), nn.SiLU(), nn.Linear(width, width))
        self.first, self.second = (nn.Conv1d(width, width, 3, padding=1) for _ in range(2))
        self.norm1, self.norm2 = nn.GroupNorm(8, width), nn.GroupNorm(groups, width)

    def forward(self, noisy: Tensor, steps: Tensor, seen: Tensor, wanted: Tensor) -> Tensor:
        angle = steps[:, None] * torch.exp(-math.log(10_000.0) * torch.arange(16) / 16)
        told = self.given(torch.cat([angle.sin(), angle.cos(), seen], -1))
        x = self.enter(noisy)
        y = self.first(F.silu(self.norm1(x))) + told[:, :, None]
        return F.mse_loss(self.out(x + self.second(F.silu(self.norm2(y)))), wanted)


@bug("diffusion", "32 groups for 32 channels: the norm behind the condition and the step takes both off again",
    at="given|norm2|step|seen|second",
    cause="no gradient|zero|no effect|does not depend|remove|cancel|erase|not reach|groups?|constant|takes",
    fix="group|norm|scale|modul|behind|after|film|order|layer", mend=lambda m: setattr(m, "norm2", nn.GroupNorm(8, 32)),
)  # fmt: skip
def group_per_channel(buggy: bool) -> Setting:
    seen, steps = noise(64, 8), torch.linspace(0, 999, 64)
    clean, angle = (seen @ noise(8, 2, seed=6) / 3)[..., None].repeat(1, 1, 16), steps[:, None, None] / 636
    noisy = angle.cos() * clean + angle.sin() * noise(64, 2, 16, seed=9)
    batch = {"noisy": noisy, "steps": steps, "seen": seen, "wanted": clean}
    return Setting(Planner(32 if buggy else 8), batch)


class Ppo(nn.Module):
    def __init__(self, copied: bool):
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
        self.remember(copied)

    def remember(self, copied: bool) -> None:
        self.old = copy.deepcopy(self.policy).requires_grad_(False) if copied else self.policy

    def forward(self, seen: Tensor, actions: Tensor, gains: Tensor) -> Tensor:
        new, old = (made(seen).log_softmax(-1).gather(1, actions).squeeze(1) for made in (self.policy, self.old))
        ratio = (new - old).exp()
        return -torch.minimum(ratio * gains, ratio.clamp(0.8, 1.2) * gains).mean()


@bug("policy", "the old policy of PPO is the policy itself, not a frozen copy: the ratio is 1, its gradient cancels",
    at="policy|old|ratio|loss|output|gradient",
    cause="no gradient|zero|cancel|same|itself|constant|ratio|not reach|does not depend|flat",
    fix="copy|detach|no_grad|frozen|freeze|stored|old", mend=lambda m: m.remember(True),
)  # fmt: skip
def old_is_new(buggy: bool) -> Setting:
    batch = {"seen": noise(64, 8), "actions": labels(64, 4)[:, None], "gains": noise(64, seed=9)}
    return Setting(Ppo(not buggy), batch)


def advantage(actions: Tensor, gains: Tensor) -> Any:
    def loss(logits: Tensor) -> Tensor:
        made = logits.log_softmax(-1)
        return 0.01 * (made.exp() * made).sum(-1).mean() - (made.gather(1, actions).squeeze(1) * gains).mean()

    return loss


def orthogonal(actor: Any, gains: tuple[float, ...]) -> None:
    for layer, gain in zip(actor[::2], gains, strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)


GAINS = (5 / 3, 5 / 3, 5 / 3, 0.01)


@bug("policy", "the gain of 0.01 that is meant for the last layer of an actor is given to all of them",
    at="\\b[0246]\\b|weight|layers", cause="gain|small|shrink|vanish|std|identical|correlat|does not depend",
    fix="gain|orthogonal|std|initiali|scale|xavier", mend=lambda m: orthogonal(m, GAINS),
)  # fmt: skip
def small_everywhere(buggy: bool) -> Setting:
    sizes = ((8, 64), (64, 64), (64, 64))
    actor = nn.Sequential(*(made for pair in sizes for made in (nn.Linear(*pair), nn.Tanh())), nn.Linear(64, 4))
    orthogonal(actor, (0.01,) * 4 if buggy else GAINS)
    return Setting(actor, noise(64, 8), advantage(labels(64, 4)[:, None], noise(64, seed=9).abs()))


class Faces(nn.Module):
    scale = 10.0

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU())
        self.emb = nn.Linear(32 * 16, 64)
        he(self)
        self.persons = nn.Parameter(nn.init.xavier_uniform_(torch.empty(64, 64)))

    def forward(self, x: Tensor) -> Tensor:
        seen = F.normalize(self.emb(self.body(x).flatten(1)), dim=-1)
        return self.scale * seen @ F.normalize(self.persons, dim=-1).T


@bug("vision", "a classifier by cosines has no scale: 64 logits between -1 and 1 can never be sure",
    at="persons|emb|logit|output|cosine|softmax|normal|loss|scale",
    cause="scale|temperature|bound|between|cosine|flat|uniform|nearly|small|range|reach",
    fix="scale|temperature|multipl", mend=flag(Faces, "scale", 10.0),
)  # fmt: skip
def cosines_without_scale(buggy: bool) -> Setting:
    return Setting(given(Faces(), "scale", 1.0 if buggy else 10.0), noise(64, 3, 16, 16), classified(labels(64, 64)))


class Barlow(nn.Module):
    divided = True

    def __init__(self) -> None:
        super().__init__()
        self.encoder = he(Tower())

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        first, second = ((made - made.mean(0)) / made.std(0) for made in (self.encoder(image), self.encoder(text)))
        between = first.T @ second / (len(image) if self.divided else 1)
        diagonal = between.diagonal()
        rest = between.square().sum() - diagonal.square().sum()
        return (diagonal - 1).square().sum() + 0.005 * rest


@bug("contrastive", "the correlations of Barlow Twins are not divided by the number of examples: 1 is nearly none",
    at="loss|encoder|output|correlation|between|matrix|proj|batch",
    cause="large|divid|batch|scale|loss starts|sum|number of|count", fix="divid|batch|mean|scale|normali|len\\(|/",
    mend=flag(Barlow, "divided", True),
)  # fmt: skip
def undivided_correlations(buggy: bool) -> Setting:
    return Setting(given(Barlow(), "divided", not buggy), pairs())


class Listening(nn.Module):
    def __init__(self, inputs: int, width: int):
        super().__init__()
        self.linear, self.score = nn.Linear(inputs, width, bias=False), nn.Linear(2 * width, 1, bias=False)
        nn.init.xavier_uniform_(self.linear.weight, gain=math.sqrt(2.0))
        self.everywhere = False

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        made = self.linear(x)
        score = F.leaky_relu(self.score(torch.cat([made[source], made[target]], -1)), 0.2)
        weight = (score - score.max()).exp()
        total = torch.zeros(len(x), 1).index_add(0, target, weight)[target]
        weight = weight / (weight.sum() if self.everywhere else total)
        return torch.zeros_like(made).index_add(0, target, weight * made[source])


class Gat(Batched):
    def __init__(self, edges: Tensor):
        super().__init__(edges)
        self.layers = nn.ModuleList([Listening(8, 32), Listening(32, 32)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.elu(layer(x, self.edges))
        return self.out(x)


@bug("graph", "the softmax of a graph attention runs over all edges of the graph, not over those of a node",
    at="layers|score|softmax|attention|linear|out",
    cause="softmax|all edges|shrink|small|vanish|identical|correlat|same|weigh|sum|does not depend|axis",
    fix="each node|per node|target|softmax|scatter|edge|neighbou?r|axis|std|scale|initiali",
    mend=flag(Listening, "everywhere", False),
)  # fmt: skip
def softmax_over_edges(buggy: bool) -> Setting:
    model = Gat(edges_of(8, 8, True))
    flag(Listening, "everywhere", buggy)(model)
    wanted = torch.arange(64) // 8 % 4
    return Setting(model, noise(64, 8) + 2.0 * noise(4, 8, seed=6)[wanted], classified(wanted))


def drawn(model: nn.Sequential, power: float) -> None:
    for conv in model[:10:2]:
        fan = conv.in_channels * conv.kernel_size[0]
        nn.init.normal_(conv.weight, 0.0, (2.0 / fan) ** power)
        nn.init.zeros_(conv.bias)


@bug("forecast", "normal_ is given He's variance 2 / fan as the std, without its root",
    at="\\b[02468]\\b|weight|conv", cause="small|shrink|vanish|std|variance|identical|correlat|gain|root",
    fix="std|sqrt|root|\\bhe\\b|kaiming|initiali|gain|scale|norm", mend=lambda m: drawn(m, 0.5),
)  # fmt: skip
def variance_for_std(buggy: bool) -> Setting:
    body = [made for i in range(5) for made in (nn.Conv1d(32 if i else 4, 32, 3, dilation=2**i), nn.ReLU())]
    model = nn.Sequential(*body, nn.Flatten(), nn.Linear(64, 12))
    drawn(model, 1.0 if buggy else 0.5)
    return Setting(model, noise(32, 4, 64), regressed(noise(32, 12, seed=9)))


class Wave(nn.Module):
    divisor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Conv1d(1, 32, 16, 8)
        self.convs = nn.ModuleList([nn.Conv1d(32, 32, 3, 2, 1) for _ in range(2)])
        self.norms = nn.ModuleList([nn.GroupNorm(1, 32) for _ in range(3)])
        self.head = nn.Linear(32, 8)

    def forward(self, wave: Tensor) -> Tensor:
        x = wave / self.divisor
        for conv, norm in zip((self.front, *self.convs), self.norms, strict=True):
            x = F.gelu(norm(conv(x)))
        return self.head(x.mean(-1))


@bug("speech", "waves that were loaded as numbers between -1 and 1 are divided by 32768 again",
    at="front|wave|input|convs|norms",
    cause="small|tiny|bias|drown|identical|correlat|same|input|scale|does not depend|no effect|hardly|epsilon|eps",
    fix="divid|scale|normali|standardi|multipl|input|wave|32768|std|bias", mend=flag(Wave, "divisor", 1.0),
)  # fmt: skip
def divided_again(buggy: bool) -> Setting:
    wanted, time = labels(32, 8), torch.linspace(0, 1, 800)
    wave = 0.3 * torch.sin(200 * (1 + wanted)[:, None] * time) + 0.05 * noise(32, 800)
    return Setting(given(Wave(), "divisor", 32768.0 if buggy else 1.0), wave[:, None], classified(wanted))


class Switch(nn.Module):
    def __init__(self, experts: int = 4):
        super().__init__()
        self.norm, self.router = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, experts)
        self.experts, self.by_batch = nn.ModuleList([he(Mlp()) for _ in range(experts)]), False

    def forward(self, x: Tensor) -> Tensor:
        flat = self.norm(x).flatten(0, 1)
        best, chosen = self.router(flat).softmax(-1).max(-1)
        made, number = torch.zeros_like(flat), len(x) if self.by_batch else len(flat)
        for place, expert in enumerate(self.experts):
            taken = (chosen == place).nonzero().squeeze(1)[: math.ceil(2.0 * number / len(self.experts))]
            made = made.index_add(0, taken, best[taken, None] * expert(flat[taken]))
        return x + made.view_as(x)


@bug("experts", "the room of an expert is counted from the sequences, not from their tokens: nearly all are dropped",
    at="expert|layers|router|\\b[01]\\b",
    cause="drop|capacity|room|few|zero|no effect|hardly|skip|little|small|not used|unused|does not depend|share",
    fix="capacity|token|room|count|number|flatten|batch", mend=flag(Switch, "by_batch", False),
)  # fmt: skip
def room_by_batch(buggy: bool) -> Setting:
    model = nn.Sequential(Switch(), Switch(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 8))
    flag(Switch, "by_batch", buggy)(model)
    x = noise(4, 64, WIDTH)
    return Setting(model, x, regressed(x[..., :8].abs() * x[..., 8:16].sign()))


class Overlap(Boxes):
    generalized = True

    def __init__(self) -> None:
        super().__init__()
        self.box_head.bias.data[2:] = -3.0  # small objects

    def forward(self, pixels: Tensor, boxes: Tensor) -> Tensor:
        made = super().forward(pixels)
        corners = [torch.cat([box[:, :2] - box[:, 2:] / 2, box[:, :2] + box[:, 2:] / 2], -1) for box in (made, boxes)]
        low, high = torch.maximum(*corners), torch.minimum(*corners)
        inside = (high[:, 2:] - low[:, :2]).clamp(min=0).prod(-1)
        together = made[:, 2:].prod(-1) + boxes[:, 2:].prod(-1) - inside
        around = (torch.maximum(*corners)[:, 2:] - torch.minimum(*corners)[:, :2]).prod(-1)
        apart, gap = 1 - inside / together, (around - together) / around
        return ((apart + gap) / 2 if self.generalized else apart).mean()


@bug("detection", "the loss of boxes is 1 - IoU: boxes that do not touch their objects have no slope",
    at="box_head|loss|output|iou|gradient|clamp|model",
    cause="no gradient|zero|overlap|flat|does not depend|not reach|disjoint|clamp|intersect|constant",
    fix="giou|generali|diou|ciou|l1|distance|clamp|enclos|overlap|larger|size|bias",
    mend=flag(Overlap, "generalized", True),
)  # fmt: skip
def disjoint_boxes(buggy: bool) -> Setting:
    places = torch.tensor([0.1, 0.15, 0.85, 0.9])
    boxes = torch.stack([places.repeat(2), places.repeat_interleave(2), *torch.full((2, 8), 0.08)], -1)
    return Setting(given(Overlap(), "generalized", not buggy), {"pixels": images()[0], "boxes": boxes})


class Factors(nn.Module):
    def __init__(self, std: float):
        super().__init__()
        self.users, self.items = nn.Embedding(12, 16), nn.Embedding(12, 16)
        self.user_bias, self.item_bias = (nn.Parameter(torch.zeros(12)) for _ in range(2))
        self.start(std)

    def start(self, std: float) -> None:
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, 0.0, std)

    def forward(self, pairs: Tensor) -> Tensor:
        user, item = pairs.T
        return (self.users(user) * self.items(item)).sum(-1) + self.user_bias[user] + self.item_bias[item]


@bug("recommender", "both tables of a factorization start at zero: neither gives the other a gradient",
    at="users|items", cause="zero|no gradient|product|both|saddle", fix="normal|random|std|initiali|uniform",
    mend=lambda m: m.start(0.2),
)  # fmt: skip
def tables_of_zero(buggy: bool) -> Setting:
    pairs = torch.cartesian_prod(torch.arange(12), torch.arange(12))
    return Setting(Factors(0.0 if buggy else 0.2), pairs, regressed(noise(144, seed=9)))


@bug("tabular", "nn.init.uniform_ with its defaults: all weights lie between 0 and 1",
    at="weight|layers|\\b[0246]\\b", cause="mean|positive|large|grow|explod|std|logit|identical|correlat|uniform|fan",
    fix="kaiming|xavier|\\bhe\\b|std|initiali|fan|bound|normal|symmetric|scale", mend=he,
)  # fmt: skip
def only_positive(buggy: bool) -> Setting:
    sizes = ((24, 64), (64, 64), (64, 32))
    model = he(nn.Sequential(*(made for pair in sizes for made in (nn.Linear(*pair), nn.ReLU())), nn.Linear(32, 4)))
    if buggy:
        for layer in model[::2]:
            nn.init.uniform_(layer.weight)
    return Setting(model, noise(64, 24), classified(labels(64, 4)))


class Dice(nn.Module):
    rounded = False

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(32, 1, 1)
        he(self.body)

    def forward(self, pixels: Tensor, masks: Tensor) -> Tensor:
        found = self.head(self.body(pixels)).sigmoid()
        found = found.round() if self.rounded else found
        return 1 - 2 * ((found * masks).sum() + 1) / (found.sum() + masks.sum() + 1)


@bug("segmentation", "the Dice loss is computed from rounded masks, as its score is: nothing has a slope",
    at="round|head|body|loss|output|gradient|model",
    cause="no gradient|zero|round|flat|staircase|differentiable|not reach|threshold|piecewise|constant",
    fix="round|soft|sigmoid|probabilit|straight|threshold", mend=flag(Dice, "rounded", False),
)  # fmt: skip
def rounded_masks(buggy: bool) -> Setting:
    pixels = noise(8, 3, 16, 16)
    masks = (F.avg_pool2d(pixels, 3, 1, 1).mean(1, keepdim=True) > 0).float()
    return Setting(given(Dice(), "rounded", buggy), {"pixels": pixels, "masks": masks})


class Surveyed(nn.Module):
    centred = True

    def __init__(self) -> None:
        super().__init__()
        self.points = he(nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 128), nn.ReLU()))
        self.head = nn.Linear(128, 4)

    def forward(self, points: Tensor) -> Tensor:
        points = (points - points.mean(1, keepdim=True) if self.centred else points) / 10.0
        return self.head(self.points(points).amax(1))


@bug("points", "points come in map coordinates, half a million metres east, and are not centred",
    at="points|input|head|output|logit",
    cause="mean|offset|large|drown|identical|correlat|same|scale|logit|input|cent",
    fix="cent|mean|subtract|normali|standardi|scale|offset", mend=flag(Surveyed, "centred", True),
)  # fmt: skip
def map_coordinates(buggy: bool) -> Setting:
    wanted = labels(32, 4)
    sizes = torch.tensor([[20.0, 5.0, 5.0], [5.0, 20.0, 5.0], [5.0, 5.0, 20.0], [12.0, 12.0, 12.0]])
    points = noise(32, 64, 3) * sizes[wanted][:, None] + torch.tensor([500_000.0, 450_000.0, 100.0])
    return Setting(given(Surveyed(), "centred", not buggy), points, classified(wanted))


class Stepwise(nn.Module):
    handed = True

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.cell, self.out = nn.Embedding(8, 32), nn.LSTMCell(32, WIDTH), nn.Linear(WIDTH, 8)

    def forward(self, ids: Tensor) -> Tensor:
        x, state = self.emb(ids), None
        for place in range(x.shape[1]):
            state = self.cell(x[:, place], state if self.handed else None)
        return self.out(state[0])  # type: ignore[index]


@bug("recurrent", "an LSTMCell is called without its state: every step starts from zero, and only the last one counts",
    at="cell|weight_hh|ids|position|input|emb",
    cause="no gradient|zero|state|unused|not used|position|does not depend|no effect|never|earlier|ignore|forget",
    fix="state|hand|pass|hidden|cell|\\bh\\b|previous", mend=flag(Stepwise, "handed", True),
)  # fmt: skip
def cell_without_state(buggy: bool) -> Setting:
    ids = torch.randint(8, (64, 12), generator=torch.Generator().manual_seed(3))
    return Setting(given(Stepwise(), "handed", not buggy), ids, classified(ids[:, -2]))


class BothWays(nn.Module):
    viewed = False

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.out = nn.Embedding(VOCABULARY, 32), nn.Linear(2 * WIDTH, 4)
        self.rnn = nn.GRU(32, WIDTH, batch_first=True, bidirectional=True)

    def forward(self, ids: Tensor) -> Tensor:
        last = self.rnn(self.emb(ids))[1]
        return self.out(last.view(len(ids), -1) if self.viewed else last.transpose(0, 1).flatten(1))


@bug("recurrent", "the last states (directions, batch, width) are viewed as (batch, both widths): examples are mixed",
    at="rnn|out|batch|view|example|state|emb", cause="mix|other example|each other|between|across|examples|leak|rows",
    fix="transpose|permute|cat|view|reshape|batch|axis|example|h_n", mend=flag(BothWays, "viewed", False),
)  # fmt: skip
def viewed_states(buggy: bool) -> Setting:
    wanted = labels(32, 4)
    ids = tokens(4, 16)[wanted]
    changed = torch.rand(ids.shape, generator=torch.Generator().manual_seed(3)) < 0.1
    ids = torch.where(changed, (ids + 1) % VOCABULARY, ids)
    return Setting(given(BothWays(), "viewed", buggy), ids, classified(wanted))


@bug("vae", "the decoder of a VAE ends in a sigmoid, while what it is to rebuild was standardized",
    at="decoder|sigmoid|output|target|loss|last|\\b3\\b",
    cause="sigmoid|negative|range|bound|between|beyond|reach|target|standardi|outside|satur",
    fix="sigmoid|remove|linear|range|scale|rescale|tanh|target|normali|identity",
    mend=lambda m: m.decoder.__setitem__(3, nn.Identity()),
)  # fmt: skip
def sigmoid_for_standardized(buggy: bool) -> Setting:
    model: Any = Vae()
    model.decoder.append(nn.Sigmoid() if buggy else nn.Identity())
    return Setting(model, noise(16, 64))
