"""A third set of constructs, of kinds that the first two lack; written before any of them was predicted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.corpus.case import Case, ids, noise
from studies.corpus.constructs import (
    WIDTH,
    attended,
    attention_parts,
    chain,
    conv,
    layers,
    linear,
    parameter,
    pixels,
    registering,
    stack,
    tokens,
)

CASES: list[Case] = []
simple = registering(CASES, added=3)


# -- randomness of the model's own
simple("dropout in training", "own randomness", layers, chain(lambda f, x: x + F.dropout(F.gelu(f(x)), 0.2)))
simple("stochastic depth", "own randomness", layers, chain(lambda f, x: x + f(x) * (torch.rand(len(x), 1) < 0.7) / 0.7))
simple(
    "noisy layers",
    "own randomness",
    lambda: {"layers": stack(), "scale": parameter(3, WIDTH, std=0.2), "head": linear(out=8)},
    lambda m, x: m.head(_noisy(m, x)),
)
simple(
    "reparametrized",
    "own randomness",
    lambda: {"e": linear(out=24), "d": linear(12, 24), "head": linear(24, 8)},
    lambda m, x: m.head(torch.relu(m.d((p := m.e(x))[:, :12] + p[:, 12:].exp() * torch.randn(len(x), 12)))),
)
simple(
    "gumbel choice",
    "own randomness",
    lambda: {"f": linear(out=6), "codes": parameter(6, WIDTH), "head": linear(out=8)},
    lambda m, x: m.head(F.gumbel_softmax(m.f(x), tau=0.7) @ m.codes),
)
simple("random signs", "own randomness", layers, chain(lambda f, x: F.relu(f(x)) * torch.randn(x.shape).sign()))


def _noisy(m: Any, x: Tensor) -> Tensor:
    for number, layer in enumerate(m.layers):
        x = F.relu(layer(x) + m.scale[number] * torch.randn(WIDTH) * torch.randn(len(x), 1))
    return x


# -- equations solved in the pass
def _rk4(m: Any, x: Tensor) -> Tensor:
    for _ in range(2):
        a = torch.tanh(m.f(x))
        b = torch.tanh(m.f(x + 0.25 * a))
        c = torch.tanh(m.f(x + 0.25 * b))
        x = x + 0.5 * (a + 2 * b + 2 * c + torch.tanh(m.f(x + 0.5 * c))) / 6
    return m.head(x)


def _leapfrog(m: Any, x: Tensor) -> Tensor:
    q, p = x.chunk(2, -1)
    for f, g in zip(m.f, m.g, strict=True):
        p = p - 0.5 * torch.tanh(f(q)) @ f.weight
        q = q + 0.5 * torch.tanh(g(p)) @ g.weight
    return m.head(torch.cat((q, p), -1))


def _inner_step(m: Any, x: Tensor) -> Tensor:
    weight = m.w
    for _ in range(2):
        with torch.enable_grad():
            energy = (x @ weight - m.t(x)).square().mean()
            weight = weight - 5.0 * torch.autograd.grad(energy, weight, create_graph=True)[0]
    return m.head(torch.tanh(x @ weight))


simple("runge kutta", "equations", lambda: {"f": linear(), "head": linear(out=8)}, _rk4)
simple(
    "hamiltonian steps",
    "equations",
    lambda: {"f": stack(2, lambda: linear(24)), "g": stack(2, lambda: linear(24)), "head": linear(out=8)},
    _leapfrog,
)
simple(
    "inner gradient step",
    "equations",
    lambda: {"w": parameter(WIDTH, WIDTH, std=0.14), "t": linear(), "head": linear(out=8)},
    _inner_step,
)
simple(
    "ridge regression inside",
    "equations",
    lambda: {"f": linear(out=8), "g": linear(out=4), "head": linear(4, 8)},
    lambda m, x: m.head(m.f(x) @ torch.linalg.solve((h := m.f(x)).T @ h + torch.eye(8), h.T @ m.g(x))),
)
simple(
    "sinkhorn balanced",
    "equations",
    lambda: {"f": linear(), "g": linear(), "v": linear(), "head": linear(out=8)},
    lambda m, x: m.head(_balanced(m.f(x) @ m.g(x).T / 7) @ m.v(x)),
)


def _balanced(scores: Tensor) -> Tensor:
    for _ in range(3):
        scores = scores - scores.logsumexp(-1, keepdim=True)
        scores = scores - scores.logsumexp(-2, keepdim=True)
    return scores.exp()


# -- sets, points and graphs by hand
EDGES = ids(16, 2, 60, seed=3)


def _messages(m: Any, x: Tensor) -> Tensor:
    source, target = EDGES
    for layer in m.layers:
        sent = F.relu(layer(x[source] - x[target]))
        x = x + torch.zeros_like(x).index_add(0, target, sent) / 3
    return m.head(x)


def _edge_softmax(m: Any, x: Tensor) -> Tensor:
    source, target = EDGES
    weight = (m.q(x)[target] * m.k(x)[source]).sum(-1).div(7).exp()
    total = torch.zeros(len(x)).index_add(0, target, weight) + 1e-6
    return m.head(x + torch.zeros_like(x).index_add(0, target, (weight / total[target])[:, None] * m.v(x)[source]))


simple("messages over edges", "graph by hand", layers, _messages)
simple(
    "softmax over edges",
    "graph by hand",
    lambda: {"q": linear(), "k": linear(), "v": linear(), "head": linear(out=8)},
    _edge_softmax,
)
simple(
    "deep set",
    "graph by hand",
    lambda: {"a": linear(), "b": linear(), "c": linear(), "head": linear(out=8)},
    lambda m, x: m.head(F.relu(m.c(F.relu(m.b(F.relu(m.a(x)))).sum(1)))),
    tokens,
)
simple(
    "largest over points",
    "graph by hand",
    lambda: {"a": linear(3, 32), "t": linear(3, 9), "b": linear(32), "head": linear(32, 8)},
    lambda m, x: m.head(m.b(F.relu(m.a(x @ (torch.eye(3) + 0.3 * m.t(x.mean(1)).unflatten(-1, (3, 3)))))).amax(1)),
    lambda: noise(4, 20, 3),
)
simple(
    "pairs of tokens",
    "graph by hand",
    lambda: {"a": linear(2 * WIDTH, WIDTH), "b": linear(), "head": linear(out=8)},
    lambda m, x: m.head(
        F.relu(
            m.b(
                F.relu(
                    m.a(
                        torch.cat(
                            (x[:, :, None].expand(-1, -1, 12, -1), x[:, None].expand(-1, 12, -1, -1)),
                            -1,
                        )
                    )
                )
            )
        ).sum((1, 2))
        / 12
    ),
    tokens,
)

# -- recommendation and tables of features
FIELDS = lambda: ids(20, 16, 5)  # noqa: E731
simple(
    "factorization machine",
    "recommendation",
    lambda: {"e": nn.Embedding(20, 16), "w": nn.Embedding(20, 1), "deep": linear(80, 32), "head": linear(32, 1)},
    lambda m, i: (
        m.w(i).sum(1)
        + 0.5 * ((e := m.e(i)).sum(1).square() - e.square().sum(1)).sum(-1, keepdim=True)
        + m.head(F.relu(m.deep(e.flatten(1))))
    ),
    FIELDS,
)
simple(
    "crossed features",
    "recommendation",
    layers,
    lambda m, x: m.head(_crossed(m, x)),
)
simple(
    "dot products of fields",
    "recommendation",
    lambda: {"e": nn.Embedding(20, 16), "a": linear(25, 32), "head": linear(32, 1)},
    lambda m, i: m.head(F.relu(m.a(((e := m.e(i)) @ e.mT).flatten(1)))),
    FIELDS,
)
simple(
    "two towers",
    "recommendation",
    lambda: {"u": nn.Embedding(30, 24), "v": nn.Embedding(30, 24), "f": linear(24), "g": linear(24)},
    lambda m, i: (m.f(F.relu(m.u(i[:, 0]))) * m.g(F.relu(m.v(i[:, 1])))).sum(-1, keepdim=True),
    lambda: ids(30, 16, 2),
)


def _crossed(m: Any, x: Tensor) -> Tensor:
    first = x
    for layer in m.layers:
        x = first * layer(x) + x
    return x


# -- weights with a structure
def _circulant(w: Tensor, x: Tensor) -> Tensor:
    return torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(w), n=WIDTH)


simple(
    "circulant",
    "structured weights",
    lambda: {"w": parameter(3, WIDTH, std=0.14), "head": linear(out=8)},
    lambda m, x: m.head(torch.relu(_circulant(m.w[1], torch.relu(_circulant(m.w[0], x))))),
)
simple(
    "kronecker",
    "structured weights",
    lambda: {"a": parameter(6, 6, std=0.4), "b": parameter(8, 8, std=0.35), "head": linear(out=8)},
    lambda m, x: m.head(F.gelu(torch.einsum("bij,ik,jl->bkl", x.unflatten(-1, (6, 8)), m.a, m.b).flatten(1))),
)
simple(
    "low rank added",
    "structured weights",
    lambda: {
        "layers": stack(),
        "a": nn.ParameterList(parameter(4, WIDTH, std=0.14) for _ in range(3)),
        "b": nn.ParameterList(nn.Parameter(torch.zeros(WIDTH, 4)) for _ in range(3)),
        "head": linear(out=8),
    },
    lambda m, x: m.head(_adapted(m, x)),
)
simple(
    "quantized weights",
    "structured weights",
    layers,
    chain(lambda f, x: F.relu(F.linear(F.rms_norm(x, (WIDTH,)), f.weight + (_ternary(f.weight) - f.weight).detach()))),
)
simple(
    "reflections",
    "structured weights",
    lambda: {"v": parameter(4, WIDTH), "head": linear(out=8)},
    lambda m, x: m.head(torch.tanh(_reflected(m.v, x))),
)
simple(
    "complex layers",
    "structured weights",
    lambda: {"a": parameter(2, 24, 24, std=0.14), "head": linear(out=8)},
    lambda m, x: m.head(
        torch.view_as_real(torch.complex(x[:, :24], x[:, 24:]) @ torch.complex(m.a[0], m.a[1])).flatten(1).tanh()
    ),
)
simple(
    "permuted and blocked",
    "structured weights",
    lambda: {"a": parameter(6, 8, 8, std=0.35), "b": parameter(8, 6, 6, std=0.4), "head": linear(out=8)},
    lambda m, x: m.head(
        torch.einsum("bij,ijk->bik", torch.einsum("bij,ijk->bik", x.unflatten(-1, (6, 8)), m.a).mT, m.b).flatten(1)
    ),
)


def _adapted(m: Any, x: Tensor) -> Tensor:
    for f, a, b in zip(m.layers, m.a, m.b, strict=True):
        x = x + F.silu(f(x) + F.linear(F.linear(x, a), b))
    return x


def _ternary(w: Tensor) -> Tensor:
    size = w.abs().mean()
    return (w / size).round().clamp(-1, 1) * size


def _reflected(vectors: Tensor, x: Tensor) -> Tensor:
    for v in vectors:
        x = x - 2 * (x @ v)[:, None] * v / v.square().sum()
    return x


# -- residual streams
simple(
    "started from zero",
    "residual",
    lambda: {
        "layers": stack(),
        "a": nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(3)),
        "head": linear(),
    },
    lambda m, x: m.head(_weighted(m, x)),
)
simple(
    "unit sphere",
    "residual",
    lambda: {"layers": stack(), "head": linear(out=8)},
    chain(lambda f, x: F.normalize(F.normalize(x, dim=-1) + 0.3 * F.normalize(F.silu(f(x)), dim=-1), dim=-1)),
)
simple(
    "attention and perceptron side by side",
    "residual",
    lambda: {"up": linear(out=96), "down": linear(96, WIDTH), **attention_parts()},
    lambda m, x: m.head(x + m.down(F.gelu(m.up(y := m.n(x)))) + m.o((m.q(y) @ m.k(y).mT / 7).softmax(-1) @ m.v(y))),
    tokens,
)
simple(
    "four streams mixed",
    "residual",
    lambda: {"layers": stack(), "mix": parameter(3, 4, 4, std=0.5), "head": linear(out=8)},
    lambda m, x: m.head(_streams(m, x)),
)
simple("branch of the average", "residual", layers, lambda m, x: m.head(_averaged(m, x)))


def _weighted(m: Any, x: Tensor) -> Tensor:
    for f, a in zip(m.layers, m.a, strict=True):
        x = x + a * F.relu(f(x))
    return x


def _streams(m: Any, x: Tensor) -> Tensor:
    streams = x[None].expand(4, -1, -1)
    for f, mix in zip(m.layers, m.mix, strict=True):
        streams = torch.einsum("ij,jbd->ibd", torch.eye(4) + 0.2 * mix, streams)
        streams = torch.cat((streams[:1] + F.gelu(f(streams.mean(0)))[None], streams[1:]))
    return streams.sum(0)


def _averaged(m: Any, x: Tensor) -> Tensor:
    seen = [x]
    for f in m.layers:
        seen.append(F.relu(f(torch.stack(seen).mean(0))))
    return sum(seen[1:], seen[0])


# -- attention of other kinds
def _rotated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * 0.5 ** torch.arange(half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1)


def _random_features(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w = noise(q.shape[-1], 16, seed=9)
    q, k = (torch.exp(z @ w / 2 - z.square().sum(-1, keepdim=True) / 8) + 1e-4 for z in (q, k))
    return q @ (k.mT @ v) / (q @ k.sum(-2)[..., None])


def _kernel(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).relu().square()
    return scores / (scores.sum(-1, keepdim=True) + 1e-3) @ v


OTHERS: dict[str, Callable[[Any, Tensor, Tensor, Tensor], Tensor]] = {
    "rotary by hand": lambda m, q, k, v: (_rotated(q) @ _rotated(k).mT / 3.5).softmax(-1) @ v,
    "random features": _random_features,
    "squared relu kernel": _kernel,
    "with linear bias": lambda m, q, k, v: (
        (q @ k.mT / 3.5 - 0.3 * (torch.arange(12)[:, None] - torch.arange(12)).abs()).softmax(-1) @ v
    ),
    "of twelve pairs": lambda m, q, k, v: torch.einsum("bhqk,bhkd->bhqd", (q @ k.mT / 3.5).softmax(-2), v),
    "softmax plus one": lambda m, q, k, v: (e := (q @ k.mT / 3.5).exp()) / (1 + e.sum(-1, keepdim=True)) @ v,
}
for _name, _way in OTHERS.items():
    simple(f"attention {_name}", "attention", attention_parts, attended(_way), tokens)
simple(
    "latent keys and values",
    "attention",
    lambda: {
        "down": linear(out=8),
        "up": linear(8, 2 * WIDTH),
        "q": linear(),
        "n": nn.RMSNorm(8),
        "head": linear(out=8),
    },
    lambda m, x: m.head(x + F.scaled_dot_product_attention(m.q(x), *m.up(m.n(m.down(x))).chunk(2, -1), is_causal=True)),
    tokens,
)
simple(
    "pooled by a query",
    "attention",
    lambda: {"q": parameter(1, WIDTH), "a": nn.MultiheadAttention(WIDTH, 4, batch_first=True), "head": linear(out=8)},
    lambda m, x: m.head(m.a(m.q.expand(len(x), 1, WIDTH), x, x, need_weights=False)[0][:, 0]),
    tokens,
)
simple(
    "memory of patterns",
    "attention",
    lambda: {"memory": parameter(20, WIDTH), "f": linear(), "head": linear(out=8)},
    lambda m, x: m.head(_recalled(m.f(x), m.memory)),
)


def _recalled(x: Tensor, memory: Tensor) -> Tensor:
    for _ in range(3):
        x = (x @ memory.T / 4).softmax(-1) @ memory
    return x


# -- recurrences of other kinds
def _scan(step: Callable[[Any, Tensor, Tensor], Tensor], start: int = WIDTH) -> Callable[[Any, Tensor], Tensor]:
    def run(m: Any, x: Tensor) -> Tensor:
        state, seen = torch.zeros(len(x), start), []
        for t in range(x.shape[1]):
            state = step(m, x[:, t], state)
            seen.append(state)
        return m.head(torch.stack(seen, 1))

    return run


simple(
    "independent recurrence",
    "recurrent",
    lambda: {"f": linear(), "u": nn.Parameter(torch.rand(WIDTH)), "head": linear(out=8)},
    _scan(lambda m, x, s: F.relu(m.f(x) + m.u * s)),
    tokens,
)
simple(
    "normed recurrence",
    "recurrent",
    lambda: {"f": linear(), "g": linear(bias=False), "n": nn.LayerNorm(WIDTH), "head": linear(out=8)},
    _scan(lambda m, x, s: torch.tanh(m.n(m.f(x) + m.g(s)))),
    tokens,
)
simple(
    "selective state",
    "state space",
    lambda: {
        "step": linear(),
        "b": linear(out=4),
        "c": linear(out=4),
        "a": nn.Parameter(torch.log(torch.arange(1.0, 5.0)).repeat(WIDTH, 1)),
        "head": linear(out=8),
    },
    lambda m, x: m.head(_selective(m, x)),
    tokens,
)
simple(
    "oscillating state",
    "state space",
    lambda: {"f": linear(out=24), "w": nn.Parameter(torch.rand(24) * 3), "g": linear(WIDTH), "head": linear(out=8)},
    lambda m, x: m.head(F.gelu(m.g(_oscillating(m, x)))),
    tokens,
)
simple(
    "fast weights",
    "state space",
    lambda: {"q": linear(out=12), "k": linear(out=12), "v": linear(), "g": linear(out=1), "head": linear(out=8)},
    lambda m, x: m.head(_fast(m, x)),
    tokens,
)
simple(
    "spiking",
    "recurrent",
    lambda: {"f": linear(), "g": linear(), "head": linear(out=8)},
    lambda m, x: m.head(_spikes(m.g(_spikes(m.f(x)))).mean(1)),
    tokens,
)


def _selective(m: Any, x: Tensor) -> Tensor:
    delta, b, c = F.softplus(m.step(x)), m.b(x), m.c(x)
    state, seen = torch.zeros(len(x), WIDTH, 4), []
    for t in range(x.shape[1]):
        state = torch.exp(-delta[:, t, :, None] * m.a.exp()) * state + (delta * x)[:, t, :, None] * b[:, t, None]
        seen.append((state * c[:, t, None]).sum(-1))
    return torch.stack(seen, 1) + x


def _oscillating(m: Any, x: Tensor) -> Tensor:
    turn = torch.polar(torch.full((24,), 0.9), m.w)
    inputs, state, seen = m.f(x), torch.zeros(len(x), 24, dtype=torch.complex64), []
    for t in range(x.shape[1]):
        state = turn * state + inputs[:, t]
        seen.append(torch.cat((state.real, state.imag), -1))
    return torch.stack(seen, 1)


def _fast(m: Any, x: Tensor) -> Tensor:
    q, k, v, g = m.q(x), m.k(x).softmax(-1), m.v(x), torch.sigmoid(m.g(x))
    memory, seen = torch.zeros(len(x), 12, WIDTH), []
    for t in range(x.shape[1]):
        memory = g[:, t, :, None] * memory + k[:, t, :, None] * v[:, t, None]
        seen.append((q[:, t, None] @ memory)[:, 0])
    return torch.stack(seen, 1)


class Spike(torch.autograd.Function):
    """A step forward, a smooth slope backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] / (1 + 2 * x.abs()) ** 2


def _spikes(x: Tensor) -> Tensor:
    voltage, seen = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        voltage = 0.8 * voltage + x[:, t]
        fired = Spike.apply(voltage - 0.5)
        voltage = voltage - 0.5 * fired
        seen.append(fired)
    return torch.stack(seen, 1)


# -- images of other kinds
def _modulated(m: Any, x: Tensor) -> Tensor:
    style = m.style(x.mean((2, 3))) + 1
    weight = m.w[None] * style[:, None, :, None, None]
    weight = weight * (weight.square().sum((2, 3, 4), keepdim=True) + 1e-8).rsqrt()
    made = F.conv2d(x.reshape(1, -1, *x.shape[2:]), weight.flatten(0, 1), padding=1, groups=len(x))
    return F.leaky_relu(made.reshape(len(x), -1, *x.shape[2:]), 0.2)


def _pyramid(x: Tensor) -> Tensor:
    return torch.cat([F.adaptive_avg_pool2d(x, size).flatten(1) for size in (1, 2, 3)], 1)


simple(
    "modulated convolution",
    "convolutional",
    lambda: {"a": conv(3), "style": linear(24), "w": parameter(24, 24, 3, 3), "head": linear(24, 5)},
    lambda m, x: m.head(_modulated(m, F.leaky_relu(m.a(x), 0.2)).mean((2, 3))),
    pixels,
)
simple(
    "mixed kernels",
    "convolutional",
    lambda: {"a": conv(3), "g": linear(24, 4), "w": parameter(4, 24, 24, 3, 3, std=0.1), "head": linear(24, 5)},
    lambda m, x: m.head(F.relu(_mixed(m, F.relu(m.a(x)))).mean((2, 3))),
    pixels,
)
simple(
    "masked convolution",
    "convolutional",
    lambda: {"a": conv(3), "b": conv(), "head": nn.Conv2d(24, 3, 1)},
    lambda m, x: m.head(F.relu(F.conv2d(F.relu(m.a(x)), m.b.weight * _upper(), m.b.bias, padding=1))),
    pixels,
)
simple(
    "pyramid of pools",
    "convolutional",
    lambda: {"a": conv(3), "b": conv(), "head": linear(24 * 14, 5)},
    lambda m, x: m.head(_pyramid(F.relu(m.b(F.relu(m.a(x)))))),
    pixels,
)
simple(
    "adapted statistics",
    "convolutional",
    lambda: {"a": conv(3), "s": linear(12, 48), "b": conv(), "head": nn.Conv2d(24, 3, 1)},
    lambda m, x, z: m.head(F.relu(m.b(_adapted_statistics(m.a(x), m.s(z))))),
    lambda: (noise(4, 3, 12, 12), noise(4, 12, seed=1)),
)
simple(
    "local response norm",
    "convolutional",
    lambda: {"a": conv(3), "b": conv(), "n": nn.LocalResponseNorm(5, alpha=1.0), "head": linear(24, 5)},
    lambda m, x: m.head(F.relu(m.b(m.n(F.relu(m.a(x))))).mean((2, 3))),
    pixels,
)
simple(
    "unpooled by index",
    "convolutional",
    lambda: {"a": conv(3), "b": conv(), "c": conv(), "head": nn.Conv2d(24, 3, 1)},
    lambda m, x: m.head(F.relu(m.c(_unpooled(m, F.relu(m.a(x)))))),
    pixels,
)
simple(
    "signs of both kinds",
    "convolutional",
    lambda: {"a": conv(3, 12), "b": nn.Conv2d(24, 12, 3, padding=1), "head": linear(24, 5)},
    lambda m, x: m.head(F.relu(torch.cat(((h := m.b(F.relu(torch.cat((g := m.a(x), -g), 1)))), -h), 1)).mean((2, 3))),
    pixels,
)
simple(
    "fourier operator",
    "convolutional",
    lambda: {"up": linear(2, 24), "w": parameter(2, 24, 24, 4, std=0.2), "s": linear(24), "head": linear(24, 1)},
    lambda m, x: m.head(_operator(m, m.up(x))),
    lambda: noise(4, 16, 2),
)


def _mixed(m: Any, x: Tensor) -> Tensor:
    weight = torch.einsum("be,eoihw->boihw", m.g(x.mean((2, 3))).softmax(-1), m.w)
    made = F.conv2d(x.reshape(1, -1, *x.shape[2:]), weight.flatten(0, 1), padding=1, groups=len(x))
    return made.reshape(x.shape)


def _upper() -> Tensor:
    return torch.tensor([[1.0, 1, 1], [1, 1, 0], [0, 0, 0]])


def _adapted_statistics(x: Tensor, style: Tensor) -> Tensor:
    scale, shift = style[..., None, None].chunk(2, 1)
    return F.instance_norm(x) * (1 + scale) + shift


def _unpooled(m: Any, x: Tensor) -> Tensor:
    small, where = F.max_pool2d(x, 2, return_indices=True)
    return F.max_unpool2d(F.relu(m.b(small)), where, 2)


def _operator(m: Any, x: Tensor) -> Tensor:
    modes = torch.fft.rfft(x, dim=1)
    kept = torch.einsum("bki,iok->bko", modes[:, :4], torch.complex(m.w[0], m.w[1]))
    return F.gelu(torch.fft.irfft(F.pad(kept, (0, 0, 0, 5)), n=16, dim=1) + m.s(x))


# -- language
simple(
    "convolved words",
    "language",
    lambda: {"e": nn.Embedding(40, 32), "c": nn.Conv1d(32, 48, 3), "d": nn.Conv1d(32, 48, 4), "head": linear(96, 4)},
    lambda m, i: m.head(torch.cat([F.relu(c(m.e(i).mT)).amax(-1) for c in (m.c, m.d)], -1)),
    lambda: ids(40, 4, 14),
)
simple(
    "pairs by two matrices",
    "language",
    lambda: {"r": nn.LSTM(24, 24, batch_first=True), "e": nn.Embedding(40, 24), "w": parameter(25, 24, std=0.2)},
    lambda m, i: F.pad(h := m.r(m.e(i))[0], (0, 1), value=1.0) @ m.w @ h.mT,
    lambda: ids(40, 2, 10),
)
simple(
    "pointer to the input",
    "language",
    lambda: {
        "e": nn.Embedding(40, 32),
        "r": nn.GRU(32, 32, batch_first=True),
        "a": linear(32),
        "b": linear(32),
        "v": parameter(32),
    },
    lambda m, i: torch.tanh(m.a(h := m.r(m.e(i))[0])[:, :, None] + m.b(h)[:, None]) @ m.v,
    lambda: ids(40, 2, 10),
)
simple(
    "labels in a chain",
    "language",
    lambda: {"e": nn.Embedding(40, 32), "f": linear(32, 5), "t": parameter(5, 5, std=0.5)},
    lambda m, i: _all_paths(m.f(torch.tanh(m.e(i))), m.t),
    lambda: ids(40, 6, 8),
)
simple(
    "mixture of softmaxes",
    "language",
    lambda: {"e": nn.Embedding(40, 32), "g": linear(32, 3), "p": linear(32, 96), "o": linear(32, 40)},
    lambda m, i: (
        m.g(x := m.e(i)).softmax(-1)[..., None] * m.o(torch.tanh(m.p(x)).unflatten(-1, (3, 32))).softmax(-1)
    ).sum(-2),
    lambda: ids(40, 2, 8),
    lambda o: -o[..., 0].log().mean(),
)


def _all_paths(scores: Tensor, steps: Tensor) -> Tensor:
    total = scores[:, 0]
    for t in range(1, scores.shape[1]):
        total = (total[:, :, None] + steps).logsumexp(1) + scores[:, t]
    return total.logsumexp(-1)


# -- activations and gates of other kinds
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "snake": lambda h: h + torch.sin(2 * h).square() / 2,
    "sorted pairs": lambda h: h.unflatten(-1, (-1, 2)).sort(-1).values.flatten(-2),
    "hard shrink": lambda h: F.hardshrink(2 * h, 0.5),
    "erf of a norm": lambda h: torch.erf(h) * h.norm(dim=-1, keepdim=True) / 7,
    "largest four": lambda h: torch.where(h >= h.topk(4, -1).values[..., -1:], h, 0.0) * 3,
    "bent identity": lambda h: ((h.square() + 1).sqrt() - 1) / 2 + h,
    "log of one and abs": lambda h: torch.log1p(h.abs()) * h.sign(),
    "cumulative sum": lambda h: torch.tanh(h.cumsum(-1) / 7),
}
for _name, _function in ACTIVATIONS.items():
    simple(f"activation {_name}", "activations", layers, chain(lambda f, x, g=_function: g(f(x))))


# -- outputs and losses of other kinds
def _mixture_density(out: Tensor) -> Tensor:
    weight, mean, width = out[:, :3].log_softmax(-1), out[:, 3:6], F.softplus(out[:, 6:]).clamp_min(0.05)
    likelihood = weight[:, :2] - 0.5 * ((0.5 - mean[:, :2]) / width) ** 2 - width.log()
    return -likelihood.logsumexp(-1).mean()


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "mixture density": _mixture_density,
    "wasserstein critic": lambda o: o[::2].mean() - o[1::2].mean(),
    "quantiles": lambda o: (lambda e: torch.maximum(0.9 * e, -0.1 * e).mean())(0.5 - o),
    "cosine to a target": lambda o: 1 - F.cosine_similarity(o, noise(*o.shape, seed=4), -1).mean(),
    "spectrum": lambda o: torch.fft.rfft(o, dim=0).abs().log1p().mean(),
    "barlow twins": lambda o: ((a := (o - o.mean(0)) / o.std(0)).T @ a.roll(1, 0) / len(o)).square().sum(),
    "ordered": lambda o: F.binary_cross_entropy_with_logits(o.cumsum(-1), (noise(*o.shape, seed=5) > 0).float()),
    "evidence bound": lambda o: (0.5 * (o[:, :4].square() + o[:, 4:].exp() - o[:, 4:] - 1)).sum(-1).mean(),
}
for _name, _loss in LOSSES.items():
    simple(f"loss {_name}", "losses", layers, chain(lambda f, x: F.silu(f(x))), loss=_loss)


def cases() -> Iterator[Case]:
    yield from CASES
