"""The seventh set: 60 models, listed before any of them was predicted; ten are too large to be run by default.

Own networks of other kinds than those of the sixth set, whose parts they use, families of `transformers` that it does
not have, and some of both at size. `studies.corpus.fresh --models seventh` predicts each once.
"""

# ruff: noqa: E501, E731

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.corpus.case import Case, ids, noise
from studies.corpus.sixth import SIZES, Attention, D, Net, block, conv, many, mlp, stack

LARGE = "seventh/large"
"""What the names of models that are judged on four initializations begin with."""


class Plus(nn.Module):
    """`after(scale * f(before(x)) + x)`."""

    def __init__(
        self, inner: nn.Module, before: nn.Module | None = None, after: nn.Module | None = None, scale: float = 1.0
    ):
        super().__init__()
        self.before, self.inner, self.after, self.scale = before or nn.Identity(), inner, after or nn.Identity(), scale

    def forward(self, x: Tensor) -> Tensor:
        return self.after(x + self.scale * self.inner(self.before(x)))


class Function(nn.Module):
    def __init__(self, run: Callable[[Tensor], Tensor]):
        super().__init__()
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


def pooled(*layers: nn.Module, width: int = 32) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def res_net() -> nn.Module:
    each = lambda: Plus(nn.Sequential(block(32, 32), conv(32, 32, bias=False), nn.BatchNorm2d(32)), after=nn.ReLU())
    return pooled(block(3, 32), each(), each())


def pre_activated() -> nn.Module:
    half = lambda: nn.Sequential(nn.BatchNorm2d(32), nn.ReLU(), conv(32, 32, bias=False))
    return pooled(
        conv(3, 32),
        Plus(nn.Sequential(half(), half())),
        Plus(nn.Sequential(half(), half())),
        nn.BatchNorm2d(32),
        nn.ReLU(),
    )


def shuffled() -> nn.Module:
    mix = Function(lambda x: x.unflatten(1, (4, -1)).transpose(1, 2).flatten(1, 2))
    half = lambda: nn.Sequential(conv(32, 32, 1, groups=4, bias=False), nn.BatchNorm2d(32), nn.ReLU(), mix)
    return pooled(block(3, 32), Plus(nn.Sequential(half(), half())), Plus(half()))


def fire() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        for small, one, three in zip(m.small, m.one, m.three, strict=True):
            y = F.relu(small(x))
            x = F.relu(torch.cat([one(y), three(y)], 1))
        return m.out(x)

    parts = {"small": nn.ModuleList([conv(3, 16, 1), conv(64, 16, 1)]), "out": conv(64, 6, 1)}
    return Net(run, one=many(2, lambda: conv(16, 32, 1)), three=many(2, lambda: conv(16, 32)), **parts)


def styled() -> nn.Module:
    each = lambda a, b: nn.Sequential(conv(a, b), nn.InstanceNorm2d(b, affine=True), nn.Tanh())
    return nn.Sequential(each(3, 32), each(32, 32), conv(32, 3))


def conv_mixer() -> nn.Module:
    def half(*layers: nn.Module) -> nn.Module:
        return nn.Sequential(*layers, nn.GELU(), nn.BatchNorm2d(32))

    each = lambda: nn.Sequential(Plus(half(conv(32, 32, 5, groups=32))), half(conv(32, 32, 1)))
    return pooled(half(conv(3, 32, 2, stride=2, padding=0)), each(), each())


def vision_transformer() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.patches(x).flatten(2).mT
        x = torch.cat([m.token.expand(len(x), -1, -1), x], 1) + m.places
        return m.head(m.encoder(x)[:, 0])

    layer = lambda: nn.TransformerEncoderLayer(D, 4, 96, 0.0, "gelu", batch_first=True, norm_first=True)
    token, places = nn.Parameter(0.02 * torch.randn(1, 1, D)), nn.Parameter(0.02 * torch.randn(17, D))
    return Net(
        run,
        patches=conv(3, D, 4, stride=4, padding=0),
        encoder=nn.Sequential(layer(), layer()),
        token=token,
        places=places,
        head=nn.Linear(D, 10),
    )


def plain_vgg() -> nn.Module:
    return nn.Sequential(
        conv(3, 32),
        nn.ReLU(),
        conv(32, 32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        conv(32, 48),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        mlp(48 * 16, 64, 10),
    )


def dilated() -> nn.Module:
    each = lambda n: nn.Sequential(conv(32, 32, padding=n, dilation=n), nn.GroupNorm(4, 32), nn.SiLU())
    return nn.Sequential(conv(3, 32), *(Plus(each(n)) for n in (1, 2, 4)), conv(32, 5, 1))


def placed_pixels() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        lines = torch.linspace(-1.0, 1.0, 16)
        grid = torch.stack(torch.meshgrid(lines, lines, indexing="ij")).expand(len(x), -1, -1, -1)
        return m.net(torch.cat([x, grid], 1))

    return Net(run, net=nn.Sequential(conv(5, 32), nn.GELU(), conv(32, 32), nn.GELU(), conv(32, 4)))


# -- text


class RootNorm(nn.Module):
    def __init__(self, width: int = D):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.gain


class Gated(nn.Module):
    def __init__(self, width: int = D, hidden: int = 96, act: Callable[[Tensor], Tensor] = F.silu):
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(width, hidden, bias=False),
            nn.Linear(width, hidden, bias=False),
            nn.Linear(hidden, width, bias=False),
        )
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


def text(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Embedding(100, D), *layers, nn.Linear(D, 100))


def root_normed() -> nn.Module:
    return text(*(Plus(part(), before=RootNorm()) for part in (Attention, Gated, Attention, Gated)), RootNorm())


def post_normed() -> nn.Module:
    feed = lambda: mlp(D, 96, D)
    return text(*(Plus(part(), after=nn.LayerNorm(D)) for part in (Attention, feed, Attention, feed)))


class Parallel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention, self.feed = nn.LayerNorm(D), Attention("rotary"), mlp(D, 96, D, act=nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.attention(y) + self.feed(y)


def sandwiched() -> nn.Module:
    feed = lambda: mlp(D, 96, D, act=nn.GELU)
    return text(
        *(
            Plus(nn.Sequential(part(), nn.LayerNorm(D)), before=nn.LayerNorm(D))
            for part in (Attention, feed, Attention, feed)
        ),
        nn.LayerNorm(D),
    )


def re_zero() -> nn.Module:
    def run(m: Any, tokens: Tensor) -> Tensor:
        x = m.table(tokens)
        for number, part in enumerate(m.parts):
            x = x + m.sizes[number] * part(x)
        return m.head(x)

    parts = nn.ModuleList([Attention(), mlp(D, 96, D), Attention(), mlp(D, 96, D)])
    return Net(
        run, table=nn.Embedding(100, D), parts=parts, sizes=nn.Parameter(torch.full((4,), 0.1)), head=nn.Linear(D, 100)
    )


def tied_readout() -> nn.Module:
    def run(m: Any, tokens: Tensor) -> Tensor:
        return F.linear(m.last(m.feed(m.mix(m.table(tokens)))), m.table.weight)

    table = nn.Embedding(100, D)
    nn.init.normal_(table.weight, std=0.02)
    return Net(
        run,
        table=table,
        mix=Plus(Attention(), before=nn.LayerNorm(D)),
        feed=Plus(mlp(D, 96, D, act=nn.GELU), before=nn.LayerNorm(D)),
        last=nn.LayerNorm(D),
    )


def gated_unit() -> nn.Module:
    class Unit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.into, self.out = nn.LayerNorm(D), nn.Linear(D, 2 * 96 + 32), nn.Linear(96, D)
            self.gamma, self.beta = nn.Parameter(0.5 * torch.randn(2, 32)), nn.Parameter(torch.zeros(2, 32))

        def forward(self, x: Tensor) -> Tensor:
            u, v, z = F.silu(self.into(self.norm(x))).split((96, 96, 32), -1)
            q, k = (z[..., None, :] * self.gamma + self.beta).unbind(-2)
            shares = F.relu(q @ k.mT / x.shape[1]).square()
            return x + self.out(u * (shares @ v))

    return text(Unit(), Unit())


def decayed() -> nn.Module:
    class Mix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.key, self.value, self.open, self.out = (nn.Linear(D, D, bias=False) for _ in range(4))
            self.speed = nn.Parameter(torch.linspace(-5.0, 1.0, D))

        def forward(self, x: Tensor) -> Tensor:
            past = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
            decay = torch.exp(-past[..., None].clamp_min(0) * self.speed.exp()) * (past >= 0)[..., None]
            weight = decay * self.key(x).clamp_max(10.0).exp()[:, None]
            mixed = (weight * self.value(x)[:, None]).sum(2) / weight.sum(2)
            return self.out(self.open(x).sigmoid() * mixed)

    return text(Plus(Mix(), before=nn.LayerNorm(D)), Plus(Mix(), before=nn.LayerNorm(D)))


def minimal_gru() -> nn.Module:
    class Recurrence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.new = nn.Linear(D, D), nn.Linear(D, D)

        def forward(self, x: Tensor) -> Tensor:
            gate, new, state, states = self.gate(x).sigmoid(), self.new(x), torch.zeros_like(x[:, 0]), []
            for step in range(x.shape[1]):
                state = (1.0 - gate[:, step]) * state + gate[:, step] * new[:, step]
                states.append(state)
            return torch.stack(states, 1)

    return text(Plus(Recurrence(), before=nn.LayerNorm(D)), nn.LayerNorm(D))


def switched() -> nn.Module:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.experts = nn.Linear(D, 4, bias=False), many(4, lambda: mlp(D, 96, D, act=nn.GELU))

        def forward(self, x: Tensor) -> Tensor:
            share, chosen = self.router(x).softmax(-1).max(-1, keepdim=True)
            made = [share * (chosen == number).float() * expert(x) for number, expert in enumerate(self.experts)]
            return torch.stack(made).sum(0)

    return text(Plus(Attention(), before=nn.LayerNorm(D)), Plus(Experts(), before=nn.LayerNorm(D)), nn.LayerNorm(D))


def latent_reader() -> nn.Module:
    def run(m: Any, tokens: Tensor) -> Tensor:
        x, latents = m.table(tokens), m.latents.expand(len(tokens), -1, -1)
        latents = latents + m.reads(m.n1(latents), x, x, need_weights=False)[0]
        return m.head((latents + m.feed(m.n2(latents))).mean(1))

    return Net(
        run,
        table=nn.Embedding(100, D),
        latents=nn.Parameter(torch.randn(6, D)),
        reads=nn.MultiheadAttention(D, 4, batch_first=True),
        n1=nn.LayerNorm(D),
        n2=nn.LayerNorm(D),
        feed=mlp(D, 96, D, act=nn.GELU),
        head=nn.Linear(D, 10),
    )


def windows_over_time() -> nn.Module:
    def run(m: Any, tokens: Tensor) -> Tensor:
        x = m.table(tokens).mT
        return m.head(torch.cat([F.relu(part(x)).amax(-1) for part in m.parts], -1))

    return Net(
        run,
        table=nn.Embedding(100, D),
        parts=nn.ModuleList(nn.Conv1d(D, 32, n) for n in (3, 4, 5)),
        head=nn.Linear(96, 5),
    )


def normed_queries() -> nn.Module:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.maps, self.out, self.nq, self.nk = (
                nn.Linear(D, 3 * D),
                nn.Linear(D, D),
                nn.LayerNorm(12),
                nn.LayerNorm(12),
            )

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (item.unflatten(-1, (4, 12)).transpose(1, 2) for item in self.maps(x).chunk(3, -1))
            y = F.scaled_dot_product_attention(self.nq(q), self.nk(k), v, is_causal=True)
            return self.out(y.transpose(1, 2).flatten(2))

    return text(Plus(Attending(), before=nn.LayerNorm(D)), Plus(Gated(), before=nn.LayerNorm(D)), nn.LayerNorm(D))


def bag() -> nn.Module:
    return Net(
        lambda m, tokens: m.net(m.table(tokens).mean(1)), table=nn.Embedding(100, D), net=mlp(D, 64, 64, 5, act=nn.Tanh)
    )


# -- tables, sets, graphs


def residual_batch_normed() -> nn.Module:
    each = lambda: Plus(nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)))
    return nn.Sequential(nn.Linear(32, 64), each(), each(), nn.ReLU(), nn.Linear(64, 3))


def stepped() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.first(x)
        for _ in range(4):
            x = x + 0.25 * m.field(x)
        return m.last(x)

    return Net(run, first=nn.Linear(32, D), field=mlp(D, 96, D, act=nn.Tanh), last=nn.Linear(D, 4))


def conditioned() -> nn.Module:
    def run(m: Any, x: Tensor, c: Tensor) -> Tensor:
        x = m.first(x)
        for norm, layer, film in zip(m.norms, m.layers, m.films, strict=True):
            scale, shift = film(c).chunk(2, -1)
            x = x + F.relu(layer(norm(x) * (1 + scale) + shift))
        return m.last(x)

    lists = {
        "norms": many(2, lambda: nn.LayerNorm(D)),
        "layers": many(2, lambda: nn.Linear(D, D)),
        "films": many(2, lambda: nn.Linear(32, 2 * D)),
    }
    return Net(run, first=nn.Linear(32, D), last=nn.Linear(D, 4), **lists)


def bilinear() -> nn.Module:
    return Net(
        lambda m, x, y: m.last(F.relu(m.both(torch.tanh(m.one(x)), torch.tanh(m.two(y))))),
        one=nn.Linear(32, 24),
        two=nn.Linear(32, 24),
        both=nn.Bilinear(24, 24, D),
        last=nn.Linear(D, 3),
    )


def waves() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        y = m.fixed(x)
        return m.net(torch.cat([y.sin(), y.cos()], -1))

    return Net(run, fixed=nn.Linear(32, 48), net=mlp(96, 64, 64, 3, act=nn.SiLU))


def siren() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        for layer in m.layers:
            x = torch.sin(3.0 * layer(x))
        return m.last(x)

    return Net(
        run, layers=nn.ModuleList([nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 64)]), last=nn.Linear(64, 3)
    )


def bells() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        centres = torch.linspace(-2.0, 2.0, 6)
        for layer in m.layers:
            x = layer(torch.exp(-((torch.tanh(x)[..., None] * 2.0 - centres) ** 2)).flatten(-2))
        return x

    return Net(run, layers=nn.ModuleList([nn.Linear(192, 32), nn.Linear(192, 32), nn.Linear(192, 4)]))


def deep_set() -> nn.Module:
    return Net(lambda m, x: m.after(m.each(x).sum(1)), each=mlp(8, 64, 64), after=mlp(64, 64, 3))


def point_net() -> nn.Module:
    return Net(lambda m, x: m.after(m.each(x).amax(1)), each=mlp(8, 64, 64), after=mlp(64, 64, 3))


def set_transformer() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.first(x)
        x = x + m.one(x, x, x, need_weights=False)[0]
        seed = m.seed.expand(len(x), -1, -1)
        return m.last(F.relu(seed + m.two(seed, x, x, need_weights=False)[0]).flatten(1))

    attend = partial(nn.MultiheadAttention, D, 4, batch_first=True)
    return Net(
        run,
        first=nn.Linear(8, D),
        one=attend(),
        two=attend(),
        seed=nn.Parameter(torch.randn(2, D)),
        last=nn.Linear(2 * D, 3),
    )


def attending_graph() -> nn.Module:
    edges = (ids(20, 20, 20, seed=9) < 4).float().fill_diagonal_(1.0)

    def run(m: Any, x: Tensor) -> Tensor:
        for layer, left, right in zip(m.layers, m.left, m.right, strict=True):
            x = layer(x)
            scores = F.leaky_relu(left(x) + right(x).mT, 0.2).masked_fill(edges == 0, -1e9)
            x = F.elu(scores.softmax(-1) @ x)
        return m.last(x)

    ends = {side: many(2, lambda: nn.Linear(D, 1, bias=False)) for side in ("left", "right")}
    return Net(run, layers=nn.ModuleList([nn.Linear(16, D), nn.Linear(D, D)]), last=nn.Linear(D, 4), **ends)


# -- the list

FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "gemma", "gpt_neox", "granite", "bert", "electra", "albert", "olmo3", "olmo", "mixtral", "helium"]  # fmt: skip
LARGE_SIZES = {
    "vocab_size": 8192, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8, "num_attention_heads": 16,
    "num_key_value_heads": 16, "head_dim": 64, "n_embd": 1024, "n_layer": 8, "n_head": 16, "embedding_size": 1024,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LARGE_FAMILIES = ["llama", "gpt_neox", "bert", "qwen2", "gpt2", "phi", "olmo", "gemma"]  # fmt: skip


def family(name: str, sizes: dict[str, int]) -> nn.Module:
    from transformers import AutoConfig, AutoModel

    return AutoModel.from_config(AutoConfig.for_model(name, **sizes)).eval()


def wide_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(32, 4096),
        *(Plus(mlp(4096, 4096, 4096), before=nn.LayerNorm(4096)) for _ in range(3)),
        nn.LayerNorm(4096),
        nn.Linear(4096, 10),
    )


def wide_mixer() -> nn.Module:
    feed = partial(mlp, 2048, 8192, 2048, act=nn.GELU)
    return nn.Sequential(
        nn.Embedding(100, 2048),
        *(Plus(feed(), before=nn.LayerNorm(2048)) for _ in range(3)),
        nn.LayerNorm(2048),
        nn.Linear(2048, 100),
    )


def own_cases() -> Iterator[tuple[Callable[[], nn.Module], Callable[[], Any]]]:
    image, words, table = partial(noise, 4, 3, 16, 16), partial(ids, 100, 2, 16), partial(noise, 16, 32)
    for make in (
        res_net,
        pre_activated,
        shuffled,
        fire,
        styled,
        conv_mixer,
        vision_transformer,
        plain_vgg,
        dilated,
        placed_pixels,
    ):
        yield make, image
    for make in (
        root_normed,
        post_normed,
        sandwiched,
        re_zero,
        tied_readout,
        gated_unit,
        decayed,
        minimal_gru,
        switched,
        latent_reader,
        windows_over_time,
        normed_queries,
        bag,
    ):
        yield make, words
    for make in (residual_batch_normed, stepped, waves, siren, bells):
        yield make, table
    for make in (conditioned, bilinear):
        yield make, lambda: (noise(16, 32), noise(16, 32, seed=1))
    for make in (deep_set, point_net, set_transformer):
        yield make, partial(noise, 3, 12, 8)
    yield attending_graph, partial(noise, 20, 16)


def cases() -> Iterator[Case]:
    words = lambda: {"input_ids": 3 + ids(90, 2, 12)}
    for make, batch in own_cases():
        yield Case(f"seventh/{make.__name__}", "own code", make, batch)
    yield Case(
        "seventh/parallel", "own code", lambda: text(Parallel(), Parallel(), nn.LayerNorm(D)), partial(ids, 100, 2, 16)
    )
    yield Case(
        "seventh/stack of cosine heads",
        "own code",
        partial(stack, partial(Attention, "cosine"), 2),
        partial(ids, 100, 2, 16),
    )
    for name in FAMILIES:
        yield Case(f"seventh/{name}", "transformers", partial(family, name, SIZES), words)
    for name in LARGE_FAMILIES:
        yield Case(f"{LARGE} {name}", "transformers", partial(family, name, LARGE_SIZES), words)
    yield Case(f"{LARGE} wide_mlp", "own code", wide_mlp, partial(noise, 16, 32))
    yield Case(f"{LARGE} wide_mixer", "own code", wide_mixer, partial(ids, 100, 2, 16))
