"""Bugs in graph networks, state space models, recommenders, policies, hypernetworks and plain chains."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.planted_bugs.case import Setting, bug
from studies.planted_bugs.parts import VOCABULARY, WIDTH, classified, fill, labels, noise, normal, text

NODES = 24


def adjacency(chance: float = 0.3) -> Tensor:
    drawn = (torch.rand((NODES, NODES), generator=torch.Generator().manual_seed(2)) < chance).float()
    return ((drawn + drawn.T) > 0).float()


class Gcn(nn.Module):
    """Graph convolutions with normalized neighbours."""

    skip, loops, mean = True, True, True

    def __init__(self, depth: int = 4):
        super().__init__()
        self.enter, self.fc = nn.Linear(16, WIDTH), nn.Linear(WIDTH, 4)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(depth)])
        self.register_buffer("neighbours", adjacency())
        for layer in self.layers:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        links: Any = self.neighbours
        links = links + torch.eye(NODES) if self.loops else links
        degree = links.sum(1)
        near = degree.rsqrt()[:, None] * links * degree.rsqrt()[None] if self.mean else links
        x = self.enter(x)
        for layer in self.layers:
            made = F.relu(near @ layer(x))
            x = x + made if self.skip else made
        return self.fc(F.layer_norm(x, x.shape[-1:]))


def nodes(model: nn.Module) -> Setting:
    return Setting(model, noise(NODES, 16), classified(labels(NODES, 4)))


@bug(
    "graph",
    "24 graph convolutions without skips: all nodes become identical",
    at="layers",
    cause="identical|correlat|collapse|smooth|same",
    fix="skip|residual|fewer|layers",
    mend=lambda m: setattr(m, "skip", True),
)
def oversmoothed(buggy: bool) -> Setting:
    model: Any = Gcn(24)
    model.skip = not buggy
    if not buggy:
        for layer in model.layers:
            layer.weight.data.mul_(0.2)
    return nodes(model)


@bug(
    "graph",
    "neighbours are summed, not averaged",
    at="layers",
    cause="grow|sum|neighbour|degree|gain",
    fix="mean|divide|degree|layers|std",
    mend=lambda m: setattr(m, "mean", True),
)
def summed_neighbours(buggy: bool) -> Setting:
    model: Any = Gcn(5)
    model.skip, model.mean = False, not buggy
    return nodes(model)


@bug(
    "graph",
    "a node without neighbours has degree zero",
    at="layers|neighbours|forward|loss",
    cause="not finite|nan|infin|0 \\*|division",
    fix="degree|loop|clamp|zero|eps",
    mend=lambda m: setattr(m, "loops", True),
)
def lonely_node(buggy: bool) -> Setting:
    model: Any = Gcn(3)
    model.loops = not buggy
    model.neighbours[3, :] = 0.0
    model.neighbours[:, 3] = 0.0
    return nodes(model)


class Ssm(nn.Module):
    """A diagonal state space layer in a loop, with a step size that is learned."""

    def __init__(self, sign: float = -1.0, step: float = -2.0):
        super().__init__()
        self.emb, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.LayerNorm(WIDTH)
        self.a_log, self.dt_bias = nn.Parameter(torch.zeros(WIDTH, 4)), nn.Parameter(torch.full((WIDTH,), step))
        self.b, self.c, self.out = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4), nn.Linear(WIDTH, WIDTH)
        self.head, self.sign = nn.Linear(WIDTH, VOCABULARY), sign

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.emb(ids)
        inner, states = self.norm(x), []
        step = F.softplus(self.dt_bias)
        decay = torch.exp(self.sign * step[:, None] * self.a_log.exp())
        state = x.new_zeros(len(ids), WIDTH, 4)
        for place in inner.unbind(1):
            state = decay * state + (step * place)[..., None] * self.b(place)[:, None]
            states.append((state * self.c(place)[:, None]).sum(-1))
        x = x + self.out(torch.stack(states, 1))
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


@bug(
    "state space",
    "A is positive: the state grows along the sequence",
    at="a_log|norm|out",
    cause="grow|time|sequence|positive|state|decay",
    fix="sign|negative|a_log|decay",
    mend=lambda m: setattr(m, "sign", -1.0),
)
def growing_state(buggy: bool) -> Setting:
    return Setting(Ssm(sign=1.0 if buggy else -1.0, step=0.5 if buggy else -2.0), text())


@bug(
    "state space",
    "step sizes of 1e-9: the layer adds nothing",
    at="dt_bias|out",
    cause="dt|step|nothing|small|drown|vanish",
    fix="dt_bias",
    mend=lambda m: fill(m, "dt_bias", -2.0),
)
def no_steps(buggy: bool) -> Setting:
    return Setting(Ssm(step=-20.0 if buggy else -2.0), text())


class Linear(nn.Module):
    """Linear attention with elu(x) + 1."""

    offset = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.qkv, self.out = (
            nn.Embedding(VOCABULARY, WIDTH),
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )
        self.norm, self.final, self.head = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.emb(ids)
        query, key, value = self.qkv(self.norm(x)).chunk(3, dim=-1)
        query, key = F.elu(query) + self.offset, F.elu(key) + self.offset
        state = (key[..., None] * value[:, :, None]).cumsum(1)
        total = (query * key.cumsum(1)).sum(-1, keepdim=True)
        x = x + self.out((query[..., None] * state).sum(2) / total)
        return F.cross_entropy(self.head(self.final(x)).flatten(0, 1), targets.flatten())


@bug(
    "state space",
    "linear attention divides by a sum that changes sign",
    at="out|qkv",
    cause="divi|denominator|large|heavy|outlier|grow",
    fix="\\+ ?1|positive|elu|denominator",
    mend=lambda m: setattr(m, "offset", 1.0),
)
def signed_total(buggy: bool) -> Setting:
    model: Any = Linear()
    model.offset = 0.0 if buggy else 1.0
    return Setting(model, text())


class Recommender(nn.Module):
    """Users and items; numbers that describe them."""

    def __init__(self, std: float = 0.1):
        super().__init__()
        self.users, self.items = nn.Embedding(40, 128), nn.Embedding(60, 128)
        self.numbers, self.last = nn.Linear(6, 32), nn.Linear(32, 1)
        nn.init.normal_(self.users.weight, 0.0, std)
        nn.init.normal_(self.items.weight, 0.0, std)

    def forward(self, user: Tensor, item: Tensor, numbers: Tensor) -> Tensor:
        score = (self.users(user) * self.items(item)).sum(-1) + self.last(F.relu(self.numbers(numbers)))[:, 0]
        return F.binary_cross_entropy_with_logits(score, (user % 2 == item % 2).float())


def visits(scale: float = 1.0) -> dict[str, Tensor]:
    place = torch.arange(64)
    return {"user": place % 40, "item": place * 7 % 60, "numbers": scale * noise(64, 6).abs()}


@bug(
    "recommender",
    "embeddings of std 2: scores of std 45",
    at="users|items",
    cause="std|large|logit|score|loss",
    fix="users|items|std",
    mend=lambda m: normal(m, "users.weight", 0.1) or normal(m, "items.weight", 0.1),
)
def loud_factors(buggy: bool) -> Setting:
    return Setting(Recommender(2.0 if buggy else 0.1), visits())


@bug(
    "recommender",
    "counts up to a million enter as they are",
    at="numbers|input",
    cause="input|batch|large|logit|loss",
    fix="log|normaliz|scale|divide|input",
    mend=lambda m: m.numbers.weight.div_(1e6),
)
def raw_counts(buggy: bool) -> Setting:
    return Setting(Recommender(), visits(1e6 if buggy else 1.0))


class Policy(nn.Module):
    """A Gaussian policy with a standard deviation of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.mean = (
            nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()),
            nn.Linear(64, 3),
        )
        self.log_std = nn.Parameter(torch.zeros(3))

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        error = (action - self.mean(self.trunk(state))) * torch.exp(-self.log_std)
        return (0.5 * error.square() + self.log_std).sum(-1).mean()


@bug(
    "policy",
    "the logarithm of a policy's std is -12",
    at="log_std",
    cause="log_std|exp|loss|large",
    fix="log_std",
    mend=lambda m: fill(m, "log_std", 0.0),
)
def certain_policy(buggy: bool) -> Setting:
    model: Any = Policy()
    fill(model, "log_std", -12.0 if buggy else 0.0)
    return Setting(model, {"state": noise(32, 12), "action": noise(32, 3, seed=6)})


class Chooser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.actor = (
            nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()),
            nn.Linear(64, 6),
        )

    def forward(self, state: Tensor) -> Tensor:
        return self.actor(self.trunk(state))


@bug(
    "policy",
    "the last layer of an actor has gain 100",
    at="actor",
    cause="logit|readout|large|std",
    fix="actor|0\\.01|std",
    mend=lambda m: nn.init.orthogonal_(m.actor.weight, 0.01),
)
def certain_actor(buggy: bool) -> Setting:
    model: Any = Chooser()
    nn.init.orthogonal_(model.actor.weight, 100.0 if buggy else 0.01)
    return Setting(model, noise(36, 12), classified(labels(36, 6)))


class Hyper(nn.Module):
    """A network that makes the weights of another."""

    def __init__(self, scale: float):
        super().__init__()
        self.make1, self.make2 = nn.Linear(8, 64 * 64), nn.Linear(8, 64 * 64)
        self.enter, self.fc, self.task, self.scale = (
            nn.Linear(12, 64),
            nn.Linear(64, 4),
            nn.Parameter(torch.ones(8)),
            scale,
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for make in (self.make1, self.make2):
            x = F.relu(x @ (self.scale * make(self.task)).view(64, 64))
        return self.fc(x)


@bug(
    "hypernetwork",
    "made weights that ignore their fan-in",
    at="make",
    cause="fan|make|std|gain|grow|large",
    fix="make|scale|std|fan",
    mend=lambda m: setattr(m, "scale", 0.15),
)
def fanless(buggy: bool) -> Setting:
    return Setting(Hyper(10.0 if buggy else 0.15), noise(32, 12), classified(labels(32, 4)))


class Chain(nn.Module):
    def __init__(self, depth: int = 10, std: float = 0.0, classes: int = 4):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(12 if i == 0 else 64, 64) for i in range(depth)])
        self.last = nn.Linear(64, classes)
        for layer in self.layers:
            nn.init.xavier_normal_(layer.weight) if std == 0.0 else nn.init.normal_(layer.weight, 0.0, std)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.last(x)


@bug(
    "chain",
    "ten tanh layers of std 0.01",
    at="layers",
    cause="shrink|small|vanish|std|gain",
    fix="xavier|std|gain|sqrt",
    mend=lambda m: [nn.init.xavier_normal_(layer.weight) for layer in m.layers],
)
def small_chain(buggy: bool) -> Setting:
    return Setting(Chain(std=0.01 if buggy else 0.0), noise(32, 12), classified(labels(32, 4)))


class Chances(Chain):
    """One output, and a softmax over it."""

    softmaxed = True

    def forward(self, x: Tensor) -> Tensor:
        made = super().forward(x)
        return made.softmax(-1) if self.softmaxed else made.sigmoid()


@bug(
    "loss",
    "a softmax over a single class is always one",
    at="last|softmax|layers",
    cause="softmax|single|one class|constant|no gradient|does not depend|zero gradient|exactly zero",
    fix="sigmoid|class|softmax",
    mend=lambda m: setattr(m, "softmaxed", False),
)
def lone_class(buggy: bool) -> Setting:
    model: Any = Chances(3, classes=1)
    model.softmaxed = buggy
    x = noise(32, 12)
    wanted = (x[:, :1] > 0).float()
    return Setting(model, x, lambda output: F.mse_loss(output, wanted))


class Mixer(nn.Module):
    """A hand-written residual stack, `x - f(x)`, with a weight that is transposed by mistake and rescaled by hand."""

    def __init__(self, std: float, depth: int = 12):
        super().__init__()
        self.enter, self.fc = nn.Linear(12, 64), nn.Linear(64, 4)
        self.up = nn.ModuleList([nn.Linear(64, 256) for _ in range(depth)])
        self.down = nn.ModuleList([nn.Linear(256, 64) for _ in range(depth)])
        normal(self, "weight", 0.1)
        for layer in self.down:
            nn.init.normal_(layer.weight, 0.0, std)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for up, down in zip(self.up, self.down, strict=True):
            x = x - down(F.relu(up(x)))
        return self.fc(x)


@bug(
    "chain",
    "a residual chain `x - f(x)` without norms whose branches are ten times too large",
    at="down",
    cause="branch|norm|grow",
    fix="down|std|scale",
    mend=lambda m: normal(m, "weight", 0.1) or [normal(layer, "weight", 0.01) for layer in m.down],
)
def minus_chain(buggy: bool) -> Setting:
    return Setting(Mixer(0.2 if buggy else 0.01), noise(32, 12), classified(labels(32, 4)))


class Energies(nn.Module):
    """A chain in double precision with a matrix whose memory was never written."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(12, 64), nn.Linear(64, 64), nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.three(F.silu(self.two(F.silu(self.one(x)))))


@bug(
    "dtype",
    "a matrix of int8 numbers that were loaded without their scale",
    at="two.weight",
    cause="std|large|integer|scale",
    fix="two.weight|std|scale",
    mend=lambda m: m.two.weight.normal_(0.0, 0.125),
)
def unscaled_integers(buggy: bool) -> Setting:
    model: Any = Energies()
    if buggy:
        model.two.weight.data = torch.randint(-127, 128, (64, 64), generator=torch.Generator().manual_seed(1)).float()
    x = noise(32, 12)
    return Setting(model, x, lambda output: F.mse_loss(output, x.square().mean(-1, keepdim=True)))
