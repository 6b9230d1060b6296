"""Half of the twelfth set: 50 networks of sequences and language, 40 small and 10 of 90 to 160 million parameters.

As public repositories have them, with their initializations; listed before any of them was predicted.
"""

# ruff: noqa: E731

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.corpus.case import Case, ids, noise

V, BIG = 128, 16384
Map, RmsNorm, Trained = partial(nn.Linear, bias=False), partial(nn.RMSNorm, eps=1e-6), nn.Parameter
attended = F.scaled_dot_product_attention

# -- parts that several share


class Net(nn.Module):  # named parts and what the forward pass does with them
    def __init__(self, run: Callable[..., Any], **parts: Any):
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, nn.ModuleList(part) if isinstance(part, list) else part)

    def forward(self, *inputs: Any) -> Any:
        return self.run(self, *inputs)


class Residual(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:
        return input + super().forward(input)


heads_of = lambda width: max(4, width // 64)
split = lambda x, count: x.unflatten(-1, (count, -1)).transpose(-2, -3)
thirds = lambda x, count: [split(part, count) for part in x.chunk(3, -1)]
joined = lambda x: x.transpose(-2, -3).flatten(-2)
rms = lambda x: F.rms_norm(x, x.shape[-1:])
unit = partial(F.normalize, dim=-1)
uniform = lambda bound, *shape: Trained(torch.empty(*shape).uniform_(-bound, bound))
zeros = lambda *shape: Trained(torch.zeros(*shape))
ones = lambda *shape, value=1.0: Trained(torch.full(shape, value))
maps = lambda names, a, b, bias=False: {name: nn.Linear(a, b, bias=bias) for name in names.split()}
lists = lambda count, make: [make() for _ in range(count)]
angles = lambda places, width: places[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
sinusoids = lambda places, width: torch.cat([(turn := angles(places, width)).sin(), turn.cos()], -1)
later = lambda length: torch.ones(length, length, dtype=torch.bool).triu(1)
cut = lambda weight, std: nn.init.trunc_normal_(weight, std=std, a=-3 * std, b=3 * std)


def rotary(x: Tensor) -> Tensor:
    turn, (a, b) = angles(torch.arange(x.shape[-2]), x.shape[-1]), x.chunk(2, -1)
    return torch.cat([a * turn.cos() - b * turn.sin(), b * turn.cos() + a * turn.sin()], -1)


def initialized(model: Any, std: Any, fill: Callable[..., Any] = nn.init.normal_) -> Any:  # biases are zero
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Embedding, nn.Conv1d)):
            fill(module.weight, std=std(name, module) if callable(std) else std)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
    return model


def scan(step: Callable[..., Any], state: Any, *given: Tensor) -> Tensor:  # what a recurrence makes at each time
    made = []
    for t in range(given[0].shape[1]):
        state, out = step(state, *(x[:, t] for x in given))
        made.append(out)
    return torch.stack(made, 1)


def attention(width: int, causal: bool = True, bias: bool = False, turned: bool = True) -> Net:
    count, turn = heads_of(width), rotary if turned else lambda x: x

    def run(m: Any, x: Tensor, shown: Tensor | None = None) -> Tensor:
        q, k, v = turn(split(m.q(x), count)), turn(split(m.k(x), count)), split(m.v(x), count)
        return m.out(joined(attended(q, k, v, shown, is_causal=causal)))

    return Net(run, **maps("q k v out", width, width, bias))


def gated(width: int, hidden: int) -> Net:
    run = lambda m, x: m.down(F.silu(m.gate(x)) * m.up(x))
    return Net(run, **maps("gate up", width, hidden), **maps("down", hidden, width))


def mlp(*sizes: int, act: Callable[[], nn.Module] = nn.GELU, bias: bool = True) -> nn.Sequential:
    return nn.Sequential(*[p for a, b in pairwise(sizes) for p in (nn.Linear(a, b, bias=bias), act())][:-1])


def layers(depth: int, norm: Callable[[], nn.Module], mixer: Any, feed: Any) -> list[nn.Module]:  # of norms first
    return [Residual(norm(), make(n)) for n in range(depth) for make in (mixer, feed)]


def post(width: int, mixer: nn.Module, feed: nn.Module, alpha: float = 1.0) -> Net:  # the norms come after the sums
    def run(m: Any, x: Tensor, *more: Any) -> Tensor:
        x = m.norm1(alpha * x + m.mixer(x, *more))
        return m.norm2(alpha * x + m.feed(x))

    return Net(run, mixer=mixer, norm1=nn.LayerNorm(width), feed=feed, norm2=nn.LayerNorm(width))


def language(body: list[Any], width: int, words: int = V, norm: Any = None, tied: bool = False, places: int = 0) -> Net:
    at = lambda m, tokens: m.wte(tokens) + (m.wpe(torch.arange(tokens.shape[1])) if places else 0.0)
    parts: dict[str, Any] = {"wpe": nn.Embedding(places, width)} if places else {}
    parts |= {"body": nn.Sequential(*body), "norm": norm or RmsNorm(width), "head": Map(width, words)}
    model = Net(lambda m, tokens: m.head(m.norm(m.body(at(m, tokens)))), wte=nn.Embedding(words, width), **parts)
    if tied:
        model.head.weight = model.wte.weight
    return model


# -- language models of attention


def mpt(width: int = 64, depth: int = 3, words: int = V) -> Net:  # ALiBi, tied, He weights throughout
    count = heads_of(width)

    def run(m: Any, x: Tensor) -> Tensor:
        (q, k, v), at = thirds(m.Wqkv(x), count), torch.arange(x.shape[1])
        bias = 2.0 ** (-8.0 * torch.arange(1, count + 1) / count)[:, None, None] * (at - at[:, None])
        scores = q @ k.mT * q.shape[-1] ** -0.5 + bias.masked_fill(later(len(at)), float("-inf"))
        return m.out_proj(joined(scores.softmax(-1) @ v))

    mixer = lambda n: Net(run, Wqkv=Map(width, 3 * width), out_proj=Map(width, width))
    norm, feed = partial(nn.LayerNorm, width, bias=False), lambda n: mlp(width, 4 * width, width, bias=False)
    model = language(layers(depth, norm, mixer, feed), width, words, norm(), tied=True)
    shared = lambda name: 2 * depth if name.endswith(("out_proj", "1.2")) else 1
    return initialized(model, lambda name, m: math.sqrt(2.0 / m.weight.shape[1] / shared(name)))


def nano_chat(width: int = 64, depth: int = 4, words: int = V) -> Net:  # tables of values, a share of the first stream
    count, bound = heads_of(width), math.sqrt(3.0 / width)

    def layer(m: Any, x: Tensor, tokens: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = thirds(m.c_qkv(y := rms(x)), count)
        if hasattr(m, "values"):
            v = v + 2.0 * m.gate(y[..., :32]).sigmoid().mT[..., None] * split(m.values(tokens), count)
        x = x + m.c_proj(joined(attended(rms(rotary(q)), rms(rotary(k)), v, ~hidden)))
        return x + m.c_out(F.relu(m.c_fc(rms(x))).square())

    def make(n: int) -> Net:
        parts: Any = {name: Map(width, n * width) for name, n in (("c_qkv", 3), ("c_proj", 1), ("c_fc", 4))}
        parts |= maps("c_out", 4 * width, width)
        if n % 2 == (depth - 1) % 2:
            parts |= {"gate": Map(32, count), "values": nn.Embedding(words, width)}
        for name, part in parts.items():
            nn.init.uniform_(part.weight, *(0.0, 0.0) if name in ("c_proj", "c_out", "gate") else (-bound, bound))
        return Net(layer, **parts)

    def run(m: Any, tokens: Tensor) -> Tensor:
        x, after = rms(m.wte(tokens)), later(tokens.shape[1])
        first, near = x, after | torch.ones_like(after).tril(-(len(after) // 2))
        for n, block in enumerate(m.h):
            x = block(m.resid_lambdas[n] * x + m.x0_lambdas[n] * first, tokens, after if n % 4 == 3 else near)
        return 15.0 * torch.tanh(m.lm_head(rms(x)) / 15.0)

    shares = {"resid_lambdas": ones(depth), "x0_lambdas": ones(depth, value=0.1)}
    head = initialized(Map(width, words), 0.001)
    return Net(run, wte=nn.Embedding(words, width), h=[make(n) for n in range(depth)], lm_head=head, **shares)


def differential(width: int = 64, depth: int = 3, words: int = V) -> Net:  # one softmax less another
    count = heads_of(width) // 2
    size = width // count // 2

    def mixer(n: int) -> Net:
        start = 0.8 - 0.6 * math.exp(-0.3 * n)

        def run(m: Any, x: Tensor) -> Tensor:
            q, k = (rotary(split(f(x), 2 * count)) for f in (m.q, m.k))
            scores = (q @ k.mT * size**-0.5).masked_fill(later(x.shape[1]), float("-inf"))
            first, second = scores.softmax(-1).unflatten(1, (count, 2)).unbind(2)
            share = (m.lambda_q1 * m.lambda_k1).sum().exp() - (m.lambda_q2 * m.lambda_k2).sum().exp() + start
            return m.out(joined(m.subln((first - share * second) @ split(m.v(x), count)) * (1.0 - start)))

        shares = {f"lambda_{name}": Trained(0.1 * torch.randn(size)) for name in ("q1", "k1", "q2", "k2")}
        return Net(run, **maps("q k v out", width, width), **shares, subln=nn.RMSNorm(2 * size, eps=1e-5))

    body = layers(depth, partial(RmsNorm, width), mixer, lambda n: gated(width, width * 8 // 3))
    model = language(body, width, words)
    initialized(model.wte, width**-0.5)
    return model


def llama(width: int, depth: int) -> list[Any]:  # Lingua's: the deeper a layer, the less it adds
    body = layers(depth, partial(RmsNorm, width), lambda n: attention(width), lambda n: gated(width, 8 * width // 3))
    for n, layer in enumerate(body):
        less = dict.fromkeys(("1.out", "1.down"), math.sqrt(2 * (n // 2 + 1)))
        initialized(layer, lambda name, m, less=less: m.in_features**-0.5 / less.get(name, 1.0), cut)
    return body


def multi_token(width: int = 64) -> Net:  # a last layer for each of the next four words
    def run(m: Any, tokens: Tensor) -> Tensor:
        x = m.trunk(m.embed(tokens))
        return torch.stack([m.output(m.norm(layer(x))) for layer in m.ahead], 2)

    ends = initialized(nn.ModuleDict({"embed": nn.Embedding(V, width), "output": Map(width, V)}), width**-0.5, cut)
    body, pairs = llama(width, 6), lambda *at: [nn.Sequential(*body[n : n + 2]) for n in at]
    return Net(run, **ends, trunk=nn.Sequential(*pairs(0, 2)), ahead=pairs(4, 6, 8, 10), norm=RmsNorm(width))


def re_zero(width: int = 64, depth: int = 4) -> Net:  # each shortcut's other side begins at zero
    def run(m: Any, x: Tensor) -> Tensor:
        x = x + m.resweight * m.attn(x)
        return x + m.resweight * m.feed(x)

    attend, feed = partial(attention, width, True, True, False), partial(mlp, width, 4 * width, width, act=nn.ReLU)
    body = lists(depth, lambda: Net(run, attn=attend(), feed=feed(), resweight=zeros(1)))
    return language(body, width, norm=nn.Identity(), places=32)


def deep_norm(width: int = 64, depth: int = 6) -> Net:  # shortcuts weigh more, branches begin small
    part = lambda: (attention(width, bias=True, turned=False), mlp(width, 4 * width, width))
    body = [post(width, *part(), (2 * depth) ** 0.25) for _ in range(depth)]
    for name, module in nn.ModuleList(body).named_modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight, 1.0 if name.endswith(("q", "k")) else (8 * depth) ** -0.25)
            nn.init.zeros_(module.bias)
    model = language(body, width, norm=nn.Identity(), tied=True, places=32)
    initialized(nn.ModuleList([model.wte, model.wpe]), width**-0.5)
    return model


def primer(width: int = 64, depth: int = 3, words: int = V) -> Net:  # convolved queries, keys and values
    def run(m: Any, x: Tensor) -> Tensor:
        q, k, v = thirds(m.conv(m.qkv(x).mT)[..., : x.shape[1]].mT, heads_of(width))
        return m.out(joined(attended(rotary(q), rotary(k), v, is_causal=True)))

    conv = lambda: nn.Conv1d(3 * width, 3 * width, 3, padding=2, groups=3 * width)
    mixer = lambda n: Net(run, qkv=Map(width, 3 * width), conv=conv(), out=Map(width, width))
    square = lambda: Net(lambda m, x: F.relu(x).square())
    feed = lambda n: mlp(width, 4 * width, width, act=square, bias=False)
    return language(layers(depth, partial(nn.LayerNorm, width), mixer, feed), width, words, nn.LayerNorm(width))


# -- recurrences, state spaces and gates


def retnet(width: int = 64, depth: int = 3, words: int = V) -> Net:  # products fade with the distance
    count = heads_of(width)
    decay = torch.log(1 - 2.0 ** (-5.0 - torch.arange(count)))[:, None, None]

    def run(m: Any, x: Tensor) -> Tensor:
        q, k = (rotary(split(f(x), count)) for f in (m.q, m.k))
        apart = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        mask = torch.exp(apart * decay).masked_fill(apart < 0, 0.0)
        scores = q @ k.mT * q.shape[-1] ** -0.5 * mask / mask.sum(-1, keepdim=True).sqrt()
        scores = scores / scores.detach().abs().sum(-1, keepdim=True).clamp(1.0, 5e4)
        return m.out(F.silu(m.g(x)) * joined(rms(scores @ split(m.v(x), count))))

    def mixer(n: int) -> Net:
        made = Net(run, **maps("q k", width, width), **maps("v g", width, 2 * width), out=Map(2 * width, width))
        for name, part in made.named_children():
            nn.init.xavier_uniform_(part.weight, gain=0.5 if name == "out" else 2**-2.5)
        return made

    model = language(layers(depth, partial(RmsNorm, width), mixer, lambda n: gated(width, 2 * width)), width, words)
    initialized(nn.ModuleList([model.wte, model.head]), width**-0.5)
    return model


def lru(width: int = 48, states: int = 32) -> Net:  # complex diagonal recurrences
    def layer(m: Any, x: Tensor) -> Tensor:
        u, rate = m.norm(x), torch.exp(torch.complex(-m.nu_log.exp(), m.theta_log.exp()))
        given = u.to(rate.dtype) @ (torch.complex(*m.B) * m.gamma_log.exp()[:, None]).T
        seen = scan(lambda state, new: [rate * state + new] * 2, torch.zeros_like(given[:, 0]), given)
        y = F.gelu((seen @ torch.complex(*m.C).T).real + m.D * u)
        return x + m.out1(y) * m.out2(y).sigmoid()

    def make() -> Net:
        radius, b, c = torch.empty(states).uniform_(0.9**2, 0.999**2), (2 * width) ** -0.5, states**-0.5
        parts = {"nu_log": torch.log(-0.5 * radius.log()), "theta_log": torch.log(2 * math.pi * torch.rand(states))}
        parts |= {"B": torch.randn(2, states, width) * b, "C": torch.randn(2, width, states) * c}
        parts |= {"D": torch.randn(width), "gamma_log": 0.5 * torch.log(1.0 - radius)}
        named: dict[str, Any] = {name: Trained(part) for name, part in parts.items()}
        return Net(layer, **named, norm=nn.LayerNorm(width), **maps("out1 out2", width, width, True))

    run = lambda m, x: m.decoder(m.layers(m.encoder(x)).mean(1))
    model = Net(run, encoder=nn.Linear(3, width), layers=nn.Sequential(make(), make()), decoder=nn.Linear(width, 10))
    return initialized(model, lambda name, m: m.in_features**-0.5)


def g_mlp(width: int = 64, depth: int = 4, length: int = 16) -> Net:  # half gates half by a map of places
    def run(m: Any, x: Tensor) -> Tensor:
        kept, gate = x.chunk(2, -1)
        return kept * (m.weight.masked_fill(later(length), 0.0) @ m.norm(gate) + m.bias)

    parts = lambda: {"weight": uniform(1e-3 / length, length, length), "bias": ones(length, 1)}
    gate = lambda: Net(run, norm=nn.LayerNorm(2 * width), **parts())
    ends = lambda: (nn.Linear(width, 4 * width), nn.GELU(), gate(), nn.Linear(2 * width, width))
    return language(lists(depth, lambda: Residual(nn.LayerNorm(width), *ends())), width, norm=nn.LayerNorm(width))


# -- sources and targets, retrieval, classes and tags, adapters


def seq2seq(width: int = 64, depth: int = 2, words: int = V) -> Net:  # PyTorch's own transformer
    def run(m: Any, *tokens: Tensor) -> Tensor:
        texts = (m.dropout(m.table(x) * math.sqrt(width) + sinusoids(torch.arange(x.shape[1]), width)) for x in tokens)
        return m.generator(m.transformer(*texts, tgt_mask=later(tokens[1].shape[1])))

    body = nn.Transformer(width, heads_of(width), depth, depth, 4 * width, 0.1, batch_first=True)
    parts = {"table": nn.Embedding(words, width), "generator": nn.Linear(width, words), "dropout": nn.Dropout(0.1)}
    model = Net(run, **parts, transformer=body)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    return model


def listen_attend_spell(width: int = 32, mels: int = 40, letters: int = 30) -> Net:  # LSTMs of half the steps each
    def run(m: Any, x: Tensor, text: Tensor) -> Tensor:
        def step(state: Any, given: Tensor) -> tuple[Any, Tensor]:
            seen, cells = state
            first = m.speller[0](torch.cat([given, seen], -1), cells[0])
            second = m.speller[1](first[0], cells[1])
            seen = ((keys @ F.relu(m.phi(second[0]))[..., None]).softmax(1) * x).sum(1)
            return (seen, (first, second)), m.out(torch.cat([second[0], seen], -1)).log_softmax(-1)

        for rnn in m.listener:
            x = rnn(x.unflatten(1, (-1, 2)).flatten(2))[0]
        keys, zero = F.relu(m.psi(x)), torch.zeros_like(x[:, 0])
        return scan(step, (x[:, 0], ((zero, zero),) * 2), F.one_hot(text, letters).float())

    lstm = lambda a: nn.LSTM(2 * a, width, bidirectional=True, batch_first=True)
    cells = [nn.LSTMCell(letters + 2 * width, 2 * width), nn.LSTMCell(2 * width, 2 * width)]
    parts = maps("phi psi", 2 * width, 2 * width, True) | maps("out", 4 * width, letters, True)
    return Net(run, listener=[lstm(a) for a in (mels, 2 * width, 2 * width)], speller=cells, **parts)


def bert(width: int, depth: int, words: int) -> Net:
    def run(m: Any, tokens: Tensor, mask: Tensor) -> Tensor:
        x = m.norm(m.words(tokens) + m.places(torch.arange(tokens.shape[1])))
        for layer in m.layers:
            x = layer(x, mask[:, None, None])
        return x

    make = lambda: post(width, attention(width, False, True, False), mlp(width, 4 * width, width))
    tables = {"words": nn.Embedding(words, width), "places": nn.Embedding(512, width)}
    return Net(run, **tables, norm=nn.LayerNorm(width), layers=lists(depth, make))


def col_bert(width: int = 64, depth: int = 2, words: int = V, kept: int = 32) -> Net:  # each vector finds its best
    def run(m: Any, queries: Tensor, documents: Tensor, mask: Tensor) -> Tensor:
        q, d = (unit(m.linear(m.bert(x, on))) for x, on in ((queries, queries >= 0), (documents, mask)))
        return torch.einsum("aqf,bdf->abqd", q, d).masked_fill(~mask[:, None], -9999.0).amax(-1).sum(-1)

    return initialized(Net(run, bert=bert(width, depth, words), linear=Map(width, kept)), 0.02)


def splade(width: int = 64, depth: int = 2) -> Net:  # texts as weights of words
    scored = lambda m, x: F.linear(m.transform(m.bert(x, x >= 0)), m.bert.words.weight, m.bias)
    run = lambda m, *texts: tuple(torch.log1p(F.relu(scored(m, x))).amax(1) for x in texts)
    transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
    return initialized(Net(run, bert=bert(width, depth, V), transform=transform, bias=zeros(V)), 0.02)


def fast_text(width: int = 48, classes: int = 6) -> nn.Sequential:  # a mean of words and n-grams
    bag = nn.EmbeddingBag(500, width)
    nn.init.uniform_(bag.weight, -1 / width, 1 / width)
    return nn.Sequential(bag, initialized(Map(width, classes), 0.0))


def han(width: int = 32, classes: int = 5) -> Net:  # attention over words, then over sentences
    read = lambda m, x: (m.context(torch.tanh(m.attn(y := m.rnn(x)[0]))).softmax(1) * y).sum(1)
    run = lambda m, x: m.fc(m.sentence(m.word(m.embed(x).flatten(0, 1)).unflatten(0, x.shape[:2])))
    gru = lambda a: nn.GRU(a, width, bidirectional=True, batch_first=True)
    level = lambda a: Net(read, rnn=gru(a), attn=nn.Linear(2 * width, 2 * width), context=Map(2 * width, 1))
    ends = {"embed": nn.Embedding(V, width), "fc": nn.Linear(2 * width, classes)}
    return Net(run, **ends, word=level(width), sentence=level(2 * width))


def parser(width: int = 48, size: int = 64, labels: int = 12) -> Net:  # heads and their kinds, deep biaffine
    def run(m: Any, words: Tensor, tags: Tensor, heads: Tensor) -> tuple[Tensor, Tensor]:
        x = m.rnn(torch.cat([m.words(words), m.tags(tags)], -1))[0]
        arc_h, arc_c, type_h, type_c = (F.elu(getattr(m, name)(x)) for name in ("arc_h", "arc_c", "type_h", "type_c"))
        arcs = arc_c @ m.U @ arc_h.mT + (arc_c @ m.w_c)[..., None] + (arc_h @ m.w_h)[:, None]
        return arcs, m.types(type_h.gather(1, heads[..., None].expand_as(type_h)).contiguous(), type_c)

    parts = {"words": nn.Embedding(V, width), "tags": nn.Embedding(20, width), "types": nn.Bilinear(size, size, labels)}
    for part in (parts["words"], parts["tags"]):
        nn.init.uniform_(part.weight, -math.sqrt(3.0 / width), math.sqrt(3.0 / width))
    rnn = nn.LSTM(2 * width, width, 2, bidirectional=True, batch_first=True, dropout=0.33)
    linear = {"U": nn.init.xavier_uniform_(zeros(size, size)), "w_c": uniform(0.12, size), "w_h": uniform(0.12, size)}
    return Net(run, rnn=rnn, **parts, **linear, **maps("arc_h arc_c type_h type_c", 2 * width, size, True))


def ia3(width: int = 64, depth: int = 3) -> Net:  # trained scales of a frozen model
    after = lambda part: Net(lambda m, x: m.base(x) * m.ia3_l, base=part, ia3_l=ones(part.out_features))
    before = lambda part: Net(lambda m, x: m.base(x * m.ia3_l), base=part, ia3_l=ones(part.in_features))
    model = language(body := llama(width, depth), width).requires_grad_(False)
    for (_, mixer), (_, feed) in zip(body[::2], body[1::2], strict=True):
        mixer.k, mixer.v, feed.down = after(mixer.k), after(mixer.v), before(feed.down)
    return model


def dora(width: int = 64, depth: int = 3, rank: int = 4) -> Net:  # trained lengths and low ranks
    def adapted(base: nn.Linear) -> Net:
        long = lambda m: m.base.weight + 2.0 * m.B @ m.A
        run = lambda m, x: F.linear(x, m.magnitude[:, None] * long(m) / long(m).norm(dim=1, keepdim=True).detach())
        low = {"A": nn.init.kaiming_uniform_(zeros(rank, width), math.sqrt(5)), "B": zeros(base.out_features, rank)}
        return Net(run, base=base, **low, magnitude=Trained(base.weight.norm(dim=1).detach()))

    model = language(body := llama(width, depth), width).requires_grad_(False)
    for _, mixer in body[::2]:
        mixer.q, mixer.v = adapted(mixer.q), adapted(mixer.v)
    return model


# -- time series, proteins, speech, tables, shops and markets


def n_beats(length: int = 24, horizon: int = 8, width: int = 64, degree: int = 2) -> Net:  # trends, then seasons
    def run(m: Any, x: Tensor) -> Tensor:
        rest, made = x.flip(1), x[:, -1:]
        for n in range(6):
            ahead, behind = m.blocks[n // 3](rest).chunk(2, -1)
            made, rest = made + ahead @ bases[n // 3][1], rest - behind @ bases[n // 3][0]
        return made

    powers = lambda t: torch.stack([t**n for n in range(degree + 1)])
    waves = lambda t: torch.cat([(turn := 2 * math.pi * torch.arange(horizon // 2)[:, None] * t).cos(), turn.sin()])
    behind, ahead = torch.arange(length), torch.arange(horizon) / horizon
    bases = (powers(behind / length), powers(ahead)), (waves(-behind / horizon), waves(ahead))
    return Net(run, blocks=[mlp(length, *[width] * 4, 2 * len(basis), act=nn.ReLU) for basis, _ in bases])


def deep_ar(width: int = 40, kinds: int = 20) -> Net:  # a mean and a deviation at each time
    def run(m: Any, x: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
        seen = m.lstm(torch.cat([x, m.embedding(kind)[:, None].expand(-1, x.shape[1], -1)], -1))[0]
        return m.mu(seen).squeeze(-1), F.softplus(m.presigma(seen)).squeeze(-1)

    lstm = nn.LSTM(5 + 20, width, 3, batch_first=True, dropout=0.1)
    for name, parameter in lstm.named_parameters():
        parameter.data[width : 2 * width] = 1.0 if "bias" in name else parameter.data[width : 2 * width]
    return Net(run, lstm=lstm, embedding=nn.Embedding(kinds, 20), **maps("mu presigma", width, 1, True))


def i_transformer(length: int = 48, horizon: int = 24, width: int = 64) -> Net:  # whole series attend to each other
    def run(m: Any, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True).detach()
        deviation = torch.sqrt((x - mean).var(1, keepdim=True, unbiased=False) + 1e-5).detach()
        y = m.dropout(m.embedding(((x - mean) / deviation).mT))
        return m.projection(m.norm(m.body(y))).mT * deviation + mean

    feed = lambda: nn.Sequential(*mlp(width, 2 * width, width), nn.Dropout(0.1))
    body = lists(2, lambda: post(width, attention(width, False, True, False), feed()))
    parts = maps("embedding", length, width, True) | maps("projection", width, horizon, True)
    return Net(run, **parts, body=nn.Sequential(*body), norm=nn.LayerNorm(width), dropout=nn.Dropout(0.1))


def ts_mixer(length: int = 48, horizon: int = 12, series: int = 7, hidden: int = 32) -> Net:  # maps of both axes
    norm = lambda: Net(lambda m, x: m.norm(x.flatten(1)).view_as(x), norm=nn.BatchNorm1d(length * series))
    over_time = lambda n: Net(lambda m, x: m.body(x.mT).mT, body=nn.Sequential(nn.Linear(length, length), nn.ReLU()))
    body = nn.Sequential(*layers(3, norm, over_time, lambda n: mlp(series, hidden, series, act=nn.ReLU)))
    return Net(lambda m, x: m.head(m.body(x).mT).mT, body=body, head=nn.Linear(length, horizon))


def price_lstm(features: int = 5, width: int = 50) -> Net:  # the next price from the last days
    run, fc = lambda m, x: m.fc(m.dropout(m.lstm(x)[0][:, -1])), nn.Linear(width, 1)
    return Net(run, lstm=nn.LSTM(features, width, 2, batch_first=True, dropout=0.2), dropout=nn.Dropout(0.2), fc=fc)


def basset(tasks: int = 16) -> nn.Sequential:  # open chromatin from DNA
    conv = lambda a, b, size, pool: (nn.Conv1d(a, b, size), nn.BatchNorm1d(b), nn.ReLU(), nn.MaxPool1d(pool))
    convs = (*conv(4, 64, 19, 3), *conv(64, 96, 11, 4), *conv(96, 96, 7, 4))
    dense = lambda a, b: (nn.Linear(a, b), nn.ReLU(), nn.Dropout(0.3))
    return nn.Sequential(*convs, nn.Flatten(), *dense(192, 128), *dense(128, 128), nn.Linear(128, tasks))


def msa_transformer(width: int = 48, depth: int = 2, letters: int = 33) -> Net:  # rows share attention
    def row(m: Any, x: Tensor) -> Tensor:
        q, k, v = thirds(m.qkv(x), 4)
        scores = (q @ k.mT).sum(1, keepdim=True) * (q.shape[-1] * x.shape[1]) ** -0.5
        return m.out(joined(scores.softmax(-1) @ v))

    def run(m: Any, tokens: Tensor) -> Tensor:
        x = m.embed(tokens) + m.places(torch.arange(tokens.shape[2])) + m.rows[: tokens.shape[1], None]
        return F.linear(m.head(m.body(m.norm(x))), m.embed.weight, m.bias)

    rows = lambda: Net(row, qkv=nn.Linear(width, 3 * width), out=nn.Linear(width, width))
    turned = lambda part: Net(lambda m, x: m.part(x.transpose(1, 2)).transpose(1, 2), part=part)
    columns = lambda: turned(attention(width, False, True, False))
    parts = [part() for _ in range(depth) for part in (rows, columns, lambda: mlp(width, 4 * width, width))]
    body = nn.Sequential(*(Residual(nn.LayerNorm(width), part) for part in parts), nn.LayerNorm(width))
    head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
    tables = {"embed": nn.Embedding(letters, width), "places": nn.Embedding(64, width), "bias": zeros(letters)}
    tables |= {"rows": Trained(0.01 * torch.randn(64, width)), "norm": nn.LayerNorm(width)}
    return Net(run, **tables, body=body, head=head)


def conformer(width: int = 64, depth: int = 2, mels: int = 40, letters: int = 30, kernel: int = 15) -> Net:
    count, drop = heads_of(width), partial(nn.Dropout, 0.1)

    def relative(m: Any, x: Tensor) -> Tensor:
        (q, k, v), length = thirds(m.qkv(x), count), x.shape[1]
        places = split(m.pos(sinusoids(torch.arange(length - 1, -length, -1), width)), count)
        apart = F.pad((q + m.v_bias) @ places.mT, (1, 0))
        apart = apart.reshape(len(x), count, 2 * length, length)[:, :, 1:].reshape(len(x), count, length, -1)
        scores = ((q + m.u_bias) @ k.mT + apart[..., :length]) * q.shape[-1] ** -0.5
        return m.out(joined(scores.softmax(-1) @ v))

    def attend() -> Net:
        biases: Any = {n: nn.init.xavier_uniform_(zeros(count, 1, width // count)) for n in ("u_bias", "v_bias")}
        biases |= {"qkv": nn.Linear(width, 3 * width), "pos": Map(width, width), "out": nn.Linear(width, width)}
        return Net(relative, **biases)

    def convolve() -> Net:
        near = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width, bias=False)
        parts = (nn.Conv1d(width, 2 * width, 1), nn.GLU(1), near, nn.BatchNorm1d(width), nn.SiLU())
        return Net(lambda m, x: m.body(x.mT).mT, body=nn.Sequential(*parts, nn.Conv1d(width, width, 1)))

    norm, half = lambda: nn.LayerNorm(width), lambda m, x: x + 0.5 * m.feed(x)
    feed = lambda: Net(half, feed=nn.Sequential(norm(), *mlp(width, 4 * width, width, act=nn.SiLU), drop()))
    mixed = lambda part: Residual(norm(), part, drop())
    body = [part for _ in range(depth) for part in (feed(), mixed(attend()), mixed(convolve()), feed(), norm())]
    front = nn.Sequential(nn.Conv2d(1, width, 3, 2), nn.ReLU(), nn.Conv2d(width, width, 3, 2), nn.ReLU())
    into = nn.Sequential(nn.Linear(width * (((mels - 1) // 2 - 1) // 2), width), drop())
    run = lambda m, x: m.fc(m.body(m.into(m.front(x[:, None]).transpose(1, 2).flatten(2)))).log_softmax(-1)
    model = Net(run, front=front, into=into, body=nn.Sequential(*body), fc=Map(width, letters))
    return initialized(model, 1.0, lambda weight, std: nn.init.xavier_uniform_(weight))


def saint(width: int = 16, columns: int = 6, kinds: int = 3) -> Net:  # columns attend, then whole rows
    def run(m: Any, x: Tensor, kind: Tensor) -> Tensor:
        numbers = torch.stack([embed(x[:, n, None]) for n, embed in enumerate(m.numbers)], 1)
        x = torch.cat([m.table(kind + 10 * torch.arange(kinds)), numbers], 1)
        for columns, rows in zip(m.columns, m.rows, strict=True):
            x = rows(columns(x).flatten(1)[None])[0].unflatten(1, (-1, width))
        return m.head(x[:, 0])

    def block(w: int) -> nn.Sequential:
        gate = Net(lambda m, x: (y := x.chunk(2, -1))[0] * F.gelu(y[1]))
        feed = lambda n: nn.Sequential(nn.Linear(w, 8 * w), gate, nn.Linear(4 * w, w))
        return nn.Sequential(*layers(1, partial(nn.LayerNorm, w), lambda n: attention(w, False, turned=False), feed))

    numbers = lists(columns, lambda: mlp(1, 100, width, act=nn.ReLU))
    blocks = {"columns": lists(2, lambda: block(width)), "rows": lists(2, lambda: block(width * (kinds + columns)))}
    table, head = nn.Embedding(10 * kinds, width), mlp(width, 100, 2, act=nn.ReLU)
    return Net(run, numbers=numbers, table=table, **blocks, head=head)


def deep_lob() -> Net:  # up, down or still, from an order book
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.body(x)
        x = torch.cat([branch(x) for branch in m.branches], 1).squeeze(-1)
        return m.fc(m.lstm(x.mT)[0][:, -1]).softmax(-1)

    conv = lambda a, b, size, act=nn.LeakyReLU, **kw: [nn.Conv2d(a, b, size, **kw), act(), nn.BatchNorm2d(b)]
    body: list[nn.Module] = []
    for a, size, act in ((1, (1, 2), nn.LeakyReLU), (32, (1, 2), nn.Tanh), (32, (1, 10), nn.LeakyReLU)):
        body += conv(a, 32, size, act, stride=(1, 2)) + conv(32, 32, (4, 1), act) + conv(32, 32, (4, 1), act)
    point, near = lambda: conv(32, 64, 1), lambda size: conv(64, 64, (size, 1), padding="same")
    branches = [nn.Sequential(*point(), *near(3)), nn.Sequential(*point(), *near(5))]
    branches.append(nn.Sequential(nn.MaxPool2d((3, 1), 1, (1, 0)), *point()))
    lstm = nn.LSTM(192, 64, batch_first=True)
    return Net(run, body=nn.Sequential(*body), branches=branches, lstm=lstm, fc=nn.Linear(64, 3))


def lstm_autoencoder(width: int = 32, signals: int = 6) -> Net:  # a series in one vector, and back
    run = lambda m, x: m.out(m.decoder(m.encoder(x)[0][:, -1:].expand(-1, x.shape[1], -1))[0])
    lstm = lambda a: nn.LSTM(a, width, batch_first=True)
    return Net(run, encoder=lstm(signals), decoder=lstm(width), out=nn.Linear(width, signals))


def gru4rec(width: int = 64, items: int = 400) -> Net:  # items against those of other sessions
    run = lambda m, seen, taken: m.gru(m.items(seen))[0][:, -1] @ m.out(taken).T + m.bias(taken).T
    tables = {"items": nn.Embedding(items, width), "out": nn.Embedding(items, width), "bias": nn.Embedding(items, 1)}
    model = Net(run, **tables, gru=nn.GRU(width, width, batch_first=True))
    for name, parameter in model.named_parameters():
        bound = 0.0 if "bias" in name else math.sqrt(3.0 / width if "gru" in name else 6.0 / (items + width))
        nn.init.uniform_(parameter, -bound, bound)
    return model


def sas_rec(width: int = 48, items: int = 400, depth: int = 2, length: int = 16) -> Net:  # the next item, or another
    def layer(m: Any, x: Tensor, shown: Tensor) -> Tensor:
        y = m.norm1(x)
        y = m.norm2(y + m.attn(y, x, x, attn_mask=later(length), need_weights=False)[0])
        return (y + m.feed(y.mT).mT) * shown

    def run(m: Any, seen: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        shown = (seen != 0)[..., None]
        x = m.dropout(m.item_emb(seen) * math.sqrt(width) + m.pos_emb.weight) * shown
        for block in m.blocks:
            x = block(x, shown)
        return tuple((m.norm(x) * m.item_emb(other)).sum(-1) for other in others)

    conv, norm = lambda: (nn.Conv1d(width, width, 1), nn.Dropout(0.2)), partial(nn.LayerNorm, width, eps=1e-8)
    heads = lambda: nn.MultiheadAttention(width, 1, 0.2, batch_first=True)
    parts = lambda: {"norm1": norm(), "attn": heads(), "norm2": norm()}
    blocks = lists(depth, lambda: Net(layer, **parts(), feed=nn.Sequential(*conv(), nn.ReLU(), *conv())))
    tables = {"item_emb": nn.Embedding(items + 1, width, 0), "pos_emb": nn.Embedding(length, width)}
    model = Net(run, **tables, dropout=nn.Dropout(0.2), blocks=blocks, norm=norm())
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_normal_(parameter)
    model.item_emb.weight.data[0] = 0.0
    return model


# -- losses and the list

entropy = lambda o: F.cross_entropy(o.flatten(0, -2), ids(o.shape[-1], o[..., 0].numel(), seed=5))
next_four = lambda o: 4.0 * F.cross_entropy(o.flatten(0, -2), ids(V, 2, 19, seed=5).unfold(1, 4, 1).flatten())
matched = lambda o: F.cross_entropy(o, torch.arange(len(o)))
sparse = lambda o: matched(o[0] @ o[1].T) + 1e-3 * sum(x.mean(0).square().sum() for x in o)
parsed = lambda o: F.cross_entropy(o[0].flatten(0, -2), ids(12, 48, seed=2)) + entropy(o[1])
smape = lambda o: 200.0 * ((y := noise(*o.shape, seed=5).exp()) - o).abs().div(o.detach().abs() + y).mean()
likelihood = lambda o: -torch.distributions.Normal(*o).log_prob(noise(*o[0].shape, seed=5)).mean()
squared = lambda o, seed=5: F.mse_loss(o, noise(*o.shape, seed=seed))
letters = lambda o: F.ctc_loss(o.transpose(0, 1), 1 + ids(29, len(o), 4, seed=5), [o.shape[1]] * len(o), [4] * len(o))
taken = lambda o: sum(F.softplus(-side * x[:, 5:]).mean() for side, x in zip((1, -1), o, strict=True))

SIZES = {"vocab_size": V, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "pad_token_id": 0}
LLAMA = SIZES | {"num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96}
MOE = LLAMA | {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
SIDES = {"layers": 2, "attention_heads": 4, "ffn_dim": 128}
WHISPER = {f"{a}_{b}": size for a in ("encoder", "decoder") for b, size in SIDES.items()} | {"pad_token_id": 0}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt_oss": MOE | {"sliding_window": 8},
    "lfm2": LLAMA | {"layer_types": ["conv", "full_attention"]},
    "qwen3_next": MOE | {"num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4},
    "recurrent_gemma": LLAMA | {"num_hidden_layers": 3, "lru_width": 64, "attention_window_size": 8},
    "modernbert": LLAMA | {"global_attn_every_n_layers": 2, "local_attention": 8},
    "deberta-v2": SIZES | {"intermediate_size": 128, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "umt5": {"vocab_size": V, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
    "whisper": WHISPER | {"vocab_size": V, "d_model": 64, "max_source_positions": 16, "num_mel_bins": 16},
}  # fmt: skip


def family(name: str) -> nn.Module:
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    kind: Any = AutoModelForCausalLM if name in list(FAMILIES)[:4] else AutoModel
    return kind.from_config(AutoConfig.for_model(name, **FAMILIES[name]))


def given(name: str) -> dict[str, Tensor]:
    tokens, whisper = 3 + ids(V - 3, 2, 12), name == "whisper"
    first = {"input_features": noise(2, 16, 32)} if whisper else {"input_ids": tokens}
    return first | ({"decoder_input_ids": tokens} if whisper or name == "umt5" else {})


words, few = partial(ids, V, 2, 16), partial(ids, BIG, 2, 32)
pair = lambda v, n: lambda: (ids(v, 2, n), ids(v, 2, n, seed=1))
found = lambda v, n: lambda: (ids(v, 4, 6), ids(v, 4, n, seed=1), torch.arange(n) < torch.tensor([[n], [n], [7], [5]]))
played = lambda items: lambda: tuple((ids(items, 4, 16, seed=n) + 1) * (torch.arange(16) >= 5 - n) for n in range(3))
LISTED: list[tuple[str, Any, Any, Any]] = [
    ("mpt", mpt, words, entropy), ("nanochat", nano_chat, words, entropy), ("differential", differential, words, None),
    ("multi token", multi_token, words, next_four), ("rezero", re_zero, words, None), ("primer", primer, words, None),
    ("deepnorm", deep_norm, words, entropy), ("retnet", retnet, words, None), ("gmlp", g_mlp, words, None),
    ("lru", lru, partial(noise, 4, 24, 3), entropy), ("seq2seq", seq2seq, pair(V, 12), None), ("ia3", ia3, words, None),
    ("listen attend spell", listen_attend_spell, lambda: (noise(2, 48, 40), ids(30, 2, 8)), None),
    ("colbert", col_bert, found(V, 10), matched), ("fasttext", fast_text, partial(ids, 500, 16, 20), entropy),
    ("splade", splade, lambda: (ids(V, 8, 6), ids(V, 8, 16, seed=1)), sparse), ("dora", dora, words, entropy),
    ("han", han, partial(ids, V, 4, 5, 8), None), ("itransformer", i_transformer, partial(noise, 4, 48, 7), None),
    ("parser", parser, lambda: (ids(V, 4, 12), ids(20, 4, 12, seed=1), ids(12, 4, 12, seed=2)), parsed),
    ("n-beats", n_beats, lambda: noise(16, 24).exp(), smape), ("tsmixer", ts_mixer, partial(noise, 8, 48, 7), squared),
    ("deepar", deep_ar, lambda: (noise(8, 16, 5), ids(20, 8)), likelihood),
    ("price lstm", price_lstm, partial(noise, 16, 30, 5), None),
    ("conformer", conformer, partial(noise, 2, 64, 40), letters),
    ("deeplob", deep_lob, partial(noise, 4, 1, 48, 40), None), ("sasrec", sas_rec, played(400), taken),
    ("basset", basset, lambda: F.one_hot(ids(4, 4, 232)).mT.float(), None),
    ("msa transformer", msa_transformer, partial(ids, 33, 2, 6, 12), None),
    ("saint", saint, lambda: (noise(16, 6), ids(10, 16, 3)), None),
    ("lstm autoencoder", lstm_autoencoder, partial(noise, 8, 20, 6), partial(squared, seed=0)),
    ("gru4rec", gru4rec, lambda: (ids(400, 16, 10), ids(400, 16, seed=1)), matched),
    ("large mpt", partial(mpt, 768, 12, BIG), few, entropy), ("large retnet", partial(retnet, 768, 9, BIG), few, None),
    ("large nanochat", partial(nano_chat, 768, 8, 8192), partial(ids, 8192, 2, 32), None),
    ("large differential", partial(differential, 768, 10, BIG), few, None),
    ("large primer", partial(primer, 768, 12, BIG), few, entropy),
    ("large seq2seq", partial(seq2seq, 768, 6, BIG), pair(BIG, 16), None),
    ("large listen attend spell", partial(listen_attend_spell, 896), lambda: (noise(2, 64, 40), ids(30, 2, 8)), None),
    ("large colbert", partial(col_bert, 768, 12, 30522, 128), found(30522, 12), matched),
    ("large conformer", partial(conformer, 512, 17, 80), partial(noise, 2, 128, 80), letters),
    ("large sasrec", partial(sas_rec, 64, 1_600_000), played(1_600_000), taken),
]  # fmt: skip


def cases() -> Iterator[Case]:
    for name, make, batch, loss in LISTED:
        yield Case(f"twelfth/{name}", "own code", make, batch, loss)
    for number, name in enumerate(FAMILIES):
        loss = (lambda o: entropy(o["logits"])) if number < 3 else None
        yield Case(f"twelfth/{name}", "transformers", partial(family, name), partial(given, name), loss)
