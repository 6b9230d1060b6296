"""A fifth held-out set of 24: initializations, what a forward does, losses and heads, and what cannot learn.

Written and committed before any of them was checked and without reading the checks; to be looked at once.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from studies.planted_bugs.case import Setting, bug
from studies.planted_bugs.contrastive import SimClr, pairs
from studies.planted_bugs.fourth import Batched, Boxes, Coarse, Denoiser, Mamba, edges_of, flag
from studies.planted_bugs.parts import (
    TOKENS,
    VOCABULARY,
    WIDTH,
    Block,
    Gpt,
    Vit,
    classified,
    each,
    he,
    images,
    labels,
    noise,
    regressed,
    text,
    tokens,
)


def given(model: Any, name: str, value: Any) -> Any:
    """The model with this attribute."""
    setattr(model, name, value)
    return model


class Pyramid(nn.Module):
    """Its weights are held as (in, out), as those of GPT-2."""

    def __init__(self, mode: Any):
        super().__init__()
        self.weights = nn.ParameterList([torch.empty(*sizes) for sizes in ((512, 64), (64, 16), (16, 4))])
        self.initialize(mode)

    def initialize(self, mode: Any) -> None:
        for weight in self.weights:
            nn.init.kaiming_normal_(weight, mode=mode, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(F.relu(x @ self.weights[0]) @ self.weights[1]) @ self.weights[2]


@bug("tabular", "weights are held as (in, out), and kaiming_normal_ takes the outputs for the fan-in",
    at="weights", cause="fan|std|gain|grow|large|logit|transpos",
    fix="fan|std|initiali|kaiming|transpos|normal_|scale", mend=lambda m: m.initialize("fan_out"),
)  # fmt: skip
def transposed_fan(buggy: bool) -> Setting:
    return Setting(Pyramid("fan_in" if buggy else "fan_out"), noise(32, 512), regressed(noise(32, 4, seed=9)))


class Vocoder(nn.Module):
    """Convolutions with weight norm: directions, and magnitudes of shape (out, 1, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(32 if i else 20, 32, 3, padding=1) for i in range(7)])
        self.out = nn.Conv1d(32, 1, 1)
        he(self)
        for conv in self.convs:
            weight_norm(conv)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)
        return self.out(x)


@bug("audio", "Xavier for every parameter with more than one axis hits the magnitudes of weight norm",
    at="original0|weight_g|magnitude|convs", cause="magnitude|gain|shrink|small|vanish|std|weight.?norm",
    fix="original0|weight_g|magnitude|initiali|std|norm|scale",
    mend=lambda m: [conv.parametrizations.weight.original0.fill_(math.sqrt(2.0)) for conv in m.convs],
)  # fmt: skip
def xavier_for_magnitudes(buggy: bool) -> Setting:
    model = Vocoder()
    if buggy:
        for weight in model.convs.parameters():
            if weight.dim() > 1:
                nn.init.xavier_uniform_(weight)
    return Setting(model, noise(4, 20, 64), regressed(noise(4, 1, 64, seed=9)))


class Rememberer(nn.Module):
    """An LSTM that is to tell the first word of a sequence after its last one."""

    def __init__(self, long: bool):
        super().__init__()
        self.emb, self.rnn = nn.Embedding(VOCABULARY, WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.out = nn.Linear(WIDTH, 8)
        self.remember(1 if long else 2)

    def remember(self, quarter: int) -> None:
        """PyTorch orders input, forget, cell, output; TensorFlow input, cell, forget, output."""
        first, second = each(self.rnn, "bias_ih_l0") + each(self.rnn, "bias_hh_l0")
        nn.init.zeros_(second)
        first.data.zero_().view(4, WIDTH)[quarter] = 4.0

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.rnn(self.emb(ids))[0][:, -1])


@bug("recurrent", "the bias of the forget gates of an LSTM is set in the third quarter, where TensorFlow holds it",
    at="rnn|bias_(ih|hh)", cause="gate|forget|bias|satur|candidate|vanish|shrink|memory|\\btime\\b",
    fix="bias|forget|gate|quarter|order|chunk|slice", mend=lambda m: m.remember(1),
)  # fmt: skip
def forget_in_third_quarter(buggy: bool) -> Setting:
    ids = torch.randint(8, (64, 24), generator=torch.Generator().manual_seed(3))
    return Setting(Rememberer(not buggy), ids, classified(ids[:, 0]))


class Mixture(nn.Module):
    """The experts of a layer stand in one tensor (experts, in, out); all of them are mixed."""

    def __init__(self, apart: bool):
        super().__init__()
        self.routers = nn.ModuleList([nn.Linear(WIDTH, 4) for _ in range(3)])
        self.up = nn.ParameterList([torch.empty(4, WIDTH, 128) for _ in range(3)])
        self.down = nn.ParameterList([torch.empty(4, 128, WIDTH) for _ in range(3)])
        self.out = nn.Linear(WIDTH, 4)
        self.initialize(apart)

    def initialize(self, apart: bool) -> None:
        for weight in (*self.up, *self.down):
            nn.init.normal_(weight, 0.0, math.sqrt(2 / weight.shape[1])) if apart else nn.init.kaiming_normal_(weight)

    def forward(self, x: Tensor) -> Tensor:
        for router, up, down in zip(self.routers, self.up, self.down, strict=True):
            made = torch.einsum("beh,eho->beo", F.relu(torch.einsum("bi,eih->beh", x, up)), down)
            x = (router(x).softmax(-1)[..., None] * made).sum(1)
        return self.out(x)


@bug("experts", "experts held in one tensor (experts, in, out): kaiming_normal_ takes in times out for the fan-in",
    at="\\bup\\b|\\bdown\\b|experts", cause="fan|small|shrink|std|vanish|gain|three|3-?d",
    fix="std|fan|initiali|sqrt|kaiming|each expert|normal_|scale", mend=lambda m: m.initialize(True),
)  # fmt: skip
def fan_of_all_experts(buggy: bool) -> Setting:
    return Setting(Mixture(not buggy), noise(32, WIDTH), classified(labels(32, 4)))


@bug("adapters", "rows of new tokens are appended with std 1 to a tied table of std 0.02",
    at="wte|head|emb|table|row", cause="row|std|larger|logit|uneven|loss starts|differ",
    fix="row|wte|std|mean|initiali|scale|head", mend=lambda m: nn.init.normal_(m.wte.weight[100:], 0.0, 0.02),
)  # fmt: skip
def new_rows(buggy: bool) -> Setting:
    model: Any = Gpt()
    model.head.weight = model.wte.weight
    if buggy:
        with torch.no_grad():
            model.wte.weight[100:].normal_()
    return Setting(model, text())


class Einsum(nn.Module):
    """Attention in the notation of JAX, with a matrix for every head."""

    def __init__(self, std: float, heads: int = 4):
        super().__init__()
        size = WIDTH // heads
        self.query, self.key, self.value = (nn.Parameter(std * torch.randn(heads, WIDTH, size)) for _ in range(3))
        self.merge = nn.Parameter(std * torch.randn(heads, size, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (torch.einsum("bld,hdk->bhlk", x, w) for w in (self.query, self.key, self.value))
        mixed = (query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])).softmax(-1) @ value
        return torch.einsum("bhlk,hkd->bld", mixed, self.merge)


@bug("vision", "the matrices of every head come from torch.randn, and a loop over nn.Linear does not meet them",
    at="query|key|attn|merge|value", cause="std|satur|one-hot|large|scores|drown|fan",
    fix="std|initiali|scale|sqrt|normal_|fan|query|key",
    mend=lambda m: [w.mul_(WIDTH**-0.5) for block in m.blocks for w in block.attn.parameters()],
)  # fmt: skip
def unscaled_heads(buggy: bool) -> Setting:
    model: Any = Vit()
    for block in model.blocks:
        block.attn = Einsum(1.0 if buggy else WIDTH**-0.5)
    pixels, wanted = images()
    return Setting(model, pixels, classified(wanted))


@bug("chain", "twenty ReLU layers keep PyTorch's default, a sixth of the variance that they need",
    at="\\d+\\.(weight|bias)|\\b\\d+\\b|layers|relu|output|model",
    cause="shrink|small|vanish|identical|correlat|same|gain|default|std|does not depend",
    fix="\\bhe\\b|kaiming|gain|std|initiali|norm|skip|residual", mend=he,
)  # fmt: skip
def left_at_default(buggy: bool) -> Setting:
    model = nn.Sequential(nn.Linear(16, WIDTH), nn.ReLU())
    for _ in range(19):
        model.extend([nn.Linear(WIDTH, WIDTH), nn.ReLU()])
    model.append(nn.Linear(WIDTH, 4))
    return Setting(model if buggy else he(model), noise(32, 16), classified(labels(32, 4)))


class Physics(nn.Module):
    """The equation u'' = -sin(pi x), and zero at both ends."""

    def __init__(self, activation: Any):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 32), activation(), nn.Linear(32, 32), activation(), nn.Linear(32, 1))
        for layer in (self.body[0], self.body[2]):
            nn.init.xavier_normal_(layer.weight, gain=5 / 3)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        slope = torch.autograd.grad(self.body(x).sum(), x, create_graph=True)[0]
        curve = torch.autograd.grad(slope.sum(), x, create_graph=True)[0]
        ends = self.body(torch.tensor([[-1.0], [1.0]]))
        return (curve + torch.sin(math.pi * x)).square().mean() + ends.square().mean()


@bug("physics", "a network with ReLU is to solve an equation of second order: its second derivative is zero",
    at="relu|activation|body|loss|grad",
    cause="second deriv|zero|piecewise|no gradient|does not depend|not reach|curv|flat",
    fix="tanh|\\bsin|smooth|gelu|silu|softplus|activation",
    mend=lambda m: [m.body.__setitem__(place, nn.Tanh()) for place in (1, 3)],
)  # fmt: skip
def relu_for_poisson(buggy: bool) -> Setting:
    return Setting(Physics(nn.ReLU if buggy else nn.Tanh), torch.linspace(-1, 1, 32)[:, None])


class Tutorial(Coarse):
    """Positions in a table (length, 1, width), as in the tutorial whose batches are the second axis."""

    first = False

    def forward(self, ids: Tensor) -> Tensor:
        pace = torch.exp(-math.log(10_000.0) * torch.arange(0, WIDTH, 2) / WIDTH)
        angle = torch.arange(TOKENS)[:, None, None] * pace
        pe = torch.cat([angle.sin(), angle.cos()], -1)
        x = self.emb(ids) + 0.02 * (pe[: ids.shape[0]] if self.first else pe[: ids.shape[1]].transpose(0, 1))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


@bug("language", "a table of positions (length, 1, width) is laid along the batch, which comes first here",
    at="position|emb|batch|token", cause="position|order|permut|same|identical|batch|example",
    fix="position|transpose|batch|token|\\bpe\\b|axis|shape|broadcast", mend=flag(Tutorial, "first", False),
)  # fmt: skip
def positions_along_batch(buggy: bool) -> Setting:
    ids = tokens(8, 32)
    wanted = ids % 2 + torch.arange(32) // 8 * 2
    return Setting(given(Tutorial(), "first", buggy), ids, classified(wanted.flatten()))


class WaveNet(nn.Module):
    """Each sample from those before it."""

    both = False

    def __init__(self, width: int = 32):
        super().__init__()
        self.emb, self.out = nn.Embedding(VOCABULARY, width), nn.Conv1d(width, VOCABULARY, 1)
        self.convs = nn.ModuleList([nn.Conv1d(width, 2 * width, 3, dilation=2**place) for place in range(4)])
        he(self.convs)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.emb(ids).transpose(1, 2)
        for place, conv in enumerate(self.convs):
            room = 2**place
            value, gate = conv(F.pad(x, (room, room) if self.both else (2 * room, 0))).chunk(2, 1)
            x = x + value.tanh() * gate.sigmoid()
        return F.cross_entropy(self.out(x), targets)


@bug("audio", "the convolutions of a WaveNet are padded on both sides: they hear what they are to predict",
    at="conv|pad", cause="future|causal|later|come after|ahead|follow", fix="pad|causal|left|shift",
    mend=flag(WaveNet, "both", False),
)  # fmt: skip
def padded_both_sides(buggy: bool) -> Setting:
    return Setting(given(WaveNet(), "both", buggy), text())


class Deep(nn.Module):
    chained = True

    def __init__(self, width: int = 16):
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, 2, 1)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()) for _ in range(5)]
        )
        self.head = nn.Linear(width, 8)
        he(self)

    def forward(self, x: Tensor) -> Tensor:
        x = y = self.enter(x)
        for block in self.blocks:
            y = block(y if self.chained else x)
        return self.head(y.mean((2, 3)))


@bug("vision", "in the loop every block is given the input of the first: only the last one counts",
    at="blocks", cause="not used|unused|no gradient|no effect|zero grad|exactly zero|not reach|never|does not",
    fix="loop|chain|pass|input|output of|previous|feed|\\bx\\b", mend=flag(Deep, "chained", True),
)  # fmt: skip
def only_last_counts(buggy: bool) -> Setting:
    pixels = noise(64, 3, 16, 16)
    far = (pixels[:, 0, :8].mean((1, 2)) > 0).long() + 2 * (pixels[:, 1, :, :8].std((1, 2)) > 1).long()
    return Setting(given(Deep(), "chained", not buggy), pixels, classified(far))


class Diagonal(nn.Module):
    """S4D-Real: decays 1 to 32, steps of 0.001 to 0.1 for every channel."""

    exact, states = True, 32

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.leave = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.A_log = nn.Parameter(torch.arange(1.0, self.states + 1).log().repeat(WIDTH, 1))
        self.log_dt = nn.Parameter(torch.linspace(math.log(1e-3), math.log(0.1), WIDTH))
        self.C = nn.Parameter(torch.randn(WIDTH, self.states) / math.sqrt(self.states))

    def forward(self, x: Tensor) -> Tensor:
        given, dt, rate = self.norm(x), self.log_dt.exp()[:, None], -self.A_log.exp()
        decay = torch.exp(dt * rate) if self.exact else 1 + dt * rate
        state, made = torch.zeros(len(x), WIDTH, self.states), []
        for place in range(x.shape[1]):
            state = decay * state + dt * given[:, place, :, None]
            made.append((state * self.C).sum(-1))
        return x + self.leave(F.gelu(torch.stack(made, 1)))


@bug("state space", "a state space is discretized by Euler's rule, 1 + dt A, which is below -1 for its fast states",
    at="A_log|dt|state|layers|norm|leave", cause="grow|explod|unstable|overflow|large|drown|amplif|euler",
    fix="exp|step|dt|decay|discreti|zero-order|smaller|A_log", mend=flag(Diagonal, "exact", True),
)  # fmt: skip
def euler_steps(buggy: bool) -> Setting:
    model: Any = Mamba(False)
    model.layers = nn.ModuleList([given(Diagonal(), "exact", not buggy) for _ in range(2)])
    return Setting(model, text())


class Actor(nn.Module):
    limit, inside = 50.0, False

    def __init__(self) -> None:
        super().__init__()
        self.actor = he(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)))
        self.critic = he(nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 1)))
        self.critic.requires_grad_(False)

    def forward(self, seen: Tensor) -> Tensor:
        given = self.actor(seen)
        action = torch.tanh(self.limit * given) if self.inside else self.limit * torch.tanh(given)
        return -self.critic(torch.cat([seen, action / self.limit], -1)).mean()


@bug("policy", "the bound of the actions stands inside the tanh of an actor, not before it",
    at="actor|tanh|action|limit", cause="satur|tanh|bound|vanish|flat|small grad|no gradient",
    fix="outside|scale|limit|divide|std|bound|multipl|smaller|last layer", mend=flag(Actor, "inside", False),
)  # fmt: skip
def bound_inside_tanh(buggy: bool) -> Setting:
    return Setting(given(Actor(), "inside", buggy), noise(64, 8))


class Preconditioned(Denoiser):
    """The network of EDM inside its four factors, for images of std 0.5."""

    swapped = False

    def forward(self, noisy: Tensor, sigma: Tensor, clean: Tensor) -> Tensor:
        total = sigma.square() + 0.25
        c_skip, c_out, c_in = 0.25 / total, 0.5 * sigma / total.sqrt(), 1 / total.sqrt()
        weight = 1 / c_out.square()
        if self.swapped:
            c_skip, c_out = c_out, c_skip
        made = super().forward(c_in * noisy, 100 * sigma.flatten().log())
        return (weight * (c_skip * noisy + c_out * made - clean).square()).mean()


@bug("diffusion", "c_skip and c_out of EDM are exchanged: the noise passes, and the network is shut off",
    at="output|loss|c_skip|c_out|skip|enter|out|noisy",
    cause="large|scale|drown|no effect|little|skip|loss starts|swap|exchang",
    fix="c_skip|c_out|skip|swap|exchang|scale|precondition", mend=flag(Preconditioned, "swapped", False),
)  # fmt: skip
def swapped_factors(buggy: bool) -> Setting:
    clean, sigma = 0.5 * noise(8, 16, 48, seed=9), torch.logspace(-1, 1.9, 8)[:, None, None]
    batch = {"noisy": clean + sigma * noise(8, 16, 48), "sigma": sigma, "clean": clean}
    return Setting(given(Preconditioned(), "swapped", buggy), batch)


class Molecules(Batched):
    together = False

    def forward(self, x: Tensor) -> Tensor:
        nodes = super().forward(x).view(-1, 6, 4)
        return nodes.mean((0, 1)).expand(len(nodes), -1) if self.together else nodes.mean(1)


@bug("graph", "the readout averages the nodes of all graphs of the batch: each graph gets the same answer",
    at="out|readout|pool|mean|batch|layers", cause="identical|same|equal|batch|example|correlat",
    fix="each graph|per graph|batch|index|scatter|axis|dim|readout|pool|mean", mend=flag(Molecules, "together", False),
)  # fmt: skip
def readout_of_all(buggy: bool) -> Setting:
    return Setting(given(Molecules(edges_of(8, 6, True)), "together", buggy), noise(48, 8), classified(labels(8, 4)))


class History(nn.Module):
    masked = True

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(VOCABULARY, WIDTH)
        self.body = he(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 8)))

    def forward(self, history: Tensor) -> Tensor:
        x, real = self.items(history), (history != 0).float()[..., None]
        return self.body((x * real).sum(1) / real.sum(1) if self.masked else x.mean(1))


@bug("recommender", "pads are averaged with the items: users of three items in a hundred places look the same",
    at="items|mean|pool|hist|input|output|body|user|pad|mask",
    cause="pad|identical|correlat|same|similar|nearly|mask|little|hardly", fix="mask|pad|length|mean|divide|pool",
    mend=flag(History, "masked", True),
)  # fmt: skip
def pads_in_mean(buggy: bool) -> Setting:
    history = torch.zeros(32, 96, dtype=torch.long)
    history[:, :3] = torch.randint(1, VOCABULARY, (32, 3), generator=torch.Generator().manual_seed(3))
    return Setting(given(History(), "masked", not buggy), history, classified(labels(32, 8)))


class Hinge(nn.Module):
    turned = False

    def __init__(self) -> None:
        super().__init__()
        self.critic = he(nn.Sequential(nn.Linear(48, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)))
        nn.init.normal_(self.critic[-1].weight, 0.0, 0.02)  # type: ignore[arg-type]

    def forward(self, real: Tensor, made: Tensor) -> Tensor:
        real, made = self.critic(real), self.critic(made)
        if self.turned:
            return F.relu(-1 + real).mean() + F.relu(-1 - made).mean()
        return F.relu(1 - real).mean() + F.relu(1 + made).mean()


@bug("gan", "min(0, -1 + x) of the hinge became relu(-1 + x): the critic's loss and its gradient are zero at once",
    at="loss|critic|relu|output", cause="zero|no gradient|dead|hinge|does not depend|flat|margin",
    fix="hinge|sign|1 -|relu|margin|minus", mend=flag(Hinge, "turned", False),
)  # fmt: skip
def turned_hinge(buggy: bool) -> Setting:
    return Setting(given(Hinge(), "turned", buggy), {"real": noise(32, 48) + 1.0, "made": noise(32, 48, seed=9)})


class WithItself(SimClr):
    masked = True

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        features = F.normalize(self.encoder(torch.cat([image, text])), dim=-1)
        logits = features @ features.T / self.temperature
        if self.masked:
            logits = logits.masked_fill(torch.eye(len(logits), dtype=torch.bool), -1e9)
        return F.cross_entropy(logits, torch.arange(len(logits)).roll(len(image)))


@bug("contrastive", "the diagonal of SimCLR's similarities is not masked: each view is most like itself",
    at="simil|logit|loss|encoder|output|softmax", cause="itself|self|diagonal|\\bown\\b|mask",
    fix="mask|diagonal|-inf|itself|fill", mend=flag(WithItself, "masked", True),
)  # fmt: skip
def unmasked_diagonal(buggy: bool) -> Setting:
    return Setting(given(WithItself(0.1), "masked", not buggy), pairs())


@bug("forecast", "the last layer of a forecast keeps the ReLU of the others, and half of the values are negative",
    at="relu|output|last|target|\\b[45]\\b", cause="negative|relu|zero|dead|half|below|reach|bound|range",
    fix="remove|relu|without|activation|softplus|linear output|last layer", mend=lambda m: m.__delitem__(5),
)  # fmt: skip
def relu_at_end(buggy: bool) -> Setting:
    sizes = ((48, 64), (64, 64), (64, 12))
    model = he(nn.Sequential(*(made for pair in sizes for made in (nn.Linear(*pair), nn.ReLU()))))
    if not buggy:
        del model[5]
    return Setting(model, noise(64, 48), regressed(noise(64, 12, seed=9)))


class Writer(nn.Module):
    """The next stroke as a mixture of five normal distributions; a lifted pen jumps far."""

    inside = True

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.mixture = nn.GRU(1, WIDTH, batch_first=True), nn.Linear(WIDTH, 15)

    def forward(self, strokes: Tensor) -> Tensor:
        share, mean, log_std = self.mixture(self.rnn(strokes[:, :-1])[0]).chunk(3, -1)
        log_normal = -0.5 * ((strokes[:, 1:] - mean) / log_std.exp()).square() - log_std
        if self.inside:
            return -(share.log_softmax(-1) + log_normal).logsumexp(-1).mean()
        return -(share.softmax(-1) * log_normal.exp()).sum(-1).log().mean()


@bug("recurrent", "densities of a mixture are summed before the logarithm: far strokes underflow to log(0)",
    at="loss|log|exp|mixture|output|gradient", cause="infin|not finite|\\bnan\\b|underflow|log of|zero",
    fix="logsumexp|log_softmax|\\beps|clamp|log space|scale|logarithm", mend=flag(Writer, "inside", True),
)  # fmt: skip
def underflowing_mixture(buggy: bool) -> Setting:
    strokes = noise(8, 33, 1)
    strokes[:, ::16] *= 20.0
    return Setting(given(Writer(), "inside", not buggy), strokes)


class Translator(nn.Module):
    def __init__(self, held: Any):
        super().__init__()
        self.emb, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.encoder = held([Block(WIDTH, None) for _ in range(3)])
        self.norm, self.cross = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.decoder, self.head = Block(), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, source: Tensor, ids: Tensor, targets: Tensor) -> Tensor:
        place = self.place.weight[: ids.shape[1]]
        memory, x = self.emb(source) + place, self.emb(ids) + place
        for block in self.encoder:
            memory = block(memory)
        x = x + self.cross(self.norm(x), memory, memory)[0]
        return F.cross_entropy(self.head(self.decoder(x)).flatten(0, 1), targets.flatten())


@bug("encoder-decoder", "the layers of an encoder stand in a plain list: no optimizer is given them",
    at="encoder|list|parameter",
    cause="regist|list|not (a|among) (the )?(module|parameter)|not trained|optimizer|parameters\\(\\)|unknown|hidden",
    fix="ModuleList|regist|nn\\.Module|add_module|parameter",
    mend=lambda m: setattr(m, "encoder", nn.ModuleList(m.encoder)),
)  # fmt: skip
def plain_list(buggy: bool) -> Setting:
    model, given = Translator(list if buggy else nn.ModuleList), text()
    return Setting(model, {"source": given["ids"].flip(1), **given})


class Quantized(nn.Module):
    """VQ-VAE: codes are pulled to what is encoded, and what is encoded to its codes."""

    one_sided = False

    def __init__(self) -> None:
        super().__init__()
        self.encoder = he(nn.Sequential(nn.Linear(48, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 16)))
        self.decoder = he(nn.Sequential(nn.Linear(16, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 48)))
        self.codebook = nn.Embedding(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        made = self.encoder(x)
        code = self.codebook(torch.cdist(made, self.codebook.weight).argmin(-1))
        codes = F.mse_loss(code.detach(), made) if self.one_sided else F.mse_loss(code, made.detach())
        commitment = 0.25 * F.mse_loss(code.detach(), made)
        return F.mse_loss(self.decoder(made + (code - made).detach()), x) + codes + commitment


@bug("vae", "both terms of a VQ-VAE detach the codes: nothing moves the codebook",
    at="codebook|code", cause="no gradient|exactly zero|zero gradient|detach|not reach|never|gets no|cut",
    fix="detach|codebook|\\bema\\b", mend=flag(Quantized, "one_sided", False),
)  # fmt: skip
def one_sided_codes(buggy: bool) -> Setting:
    return Setting(given(Quantized(), "one_sided", buggy), noise(64, 48))


class TwoTasks(Boxes):
    number = False

    def __init__(self) -> None:
        super().__init__()
        self.cls_head = nn.Linear(64, 4)

    def forward(self, pixels: Tensor, wanted: Tensor, boxes: Tensor) -> Tensor:
        seen = self.backbone(pixels).mean((2, 3))
        found, place = F.cross_entropy(self.cls_head(seen), wanted), F.l1_loss(self.box_head(seen), boxes)
        return found + 5.0 * (place.item() if self.number else place)


@bug("detection", "the loss of the boxes is added as a number, by .item()",
    at="box_head", cause="no gradient|exactly zero|zero gradient|detach|item|not reach|not used|unused|gets no|cut",
    fix="item|detach|tensor|graph|\\bloss\\b", mend=flag(TwoTasks, "number", False),
)  # fmt: skip
def added_as_number(buggy: bool) -> Setting:
    pixels, wanted = images()
    batch = {"pixels": pixels, "wanted": wanted, "boxes": 0.5 + 0.2 * noise(8, 4)}
    return Setting(given(TwoTasks(), "number", buggy), batch)


class Rounded(nn.Conv2d):
    through = True

    def forward(self, input: Tensor) -> Tensor:
        step = self.weight.detach().abs().max() / 7
        near = torch.round(self.weight / step) * step
        weight = self.weight + (near - self.weight).detach() if self.through else near
        return self._conv_forward(input, weight, self.bias)


@bug("vision", "weights are rounded to four bits without a straight-through estimator",
    at="weight|round|\\b[024]\\b",
    cause="round|no gradient|exactly zero|zero gradient|differentiable|staircase|flat|gets no",
    fix="straight|detach|\\bste\\b|round|gradient", mend=flag(Rounded, "through", True),
)  # fmt: skip
def rounded_weights(buggy: bool) -> Setting:
    body = [Rounded(3, 32, 3, 2, 1), nn.ReLU(), Rounded(32, 32, 3, padding=1), nn.ReLU(), Rounded(32, 64, 3, 2, 1)]
    model = he(nn.Sequential(*body, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 4)))
    flag(Rounded, "through", not buggy)(model)
    pixels, wanted = images(32)
    return Setting(model, pixels, classified(wanted))
