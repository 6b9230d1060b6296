"""Constructs of every kind, small and plain: what people write themselves."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.corpus.case import Case, ids, noise

WIDTH = 48


class Made(nn.Module):
    """Parts by name and a function of them."""

    def __init__(self, parts: dict[str, Any], run: Callable[..., Any], prepare: Callable[[Any], None] | None = None):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._run = run
        if prepare is not None:
            prepare(self)

    def forward(self, *inputs: Any) -> Any:
        return self._run(self, *inputs)


def linear(width: int = WIDTH, out: int | None = None, **options: Any) -> nn.Linear:
    return nn.Linear(width, out or width, **options)


def stack(count: int = 3, make: Callable[[], nn.Module] = linear) -> nn.ModuleList:
    return nn.ModuleList(make() for _ in range(count))


def parameter(*shape: int, std: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) * std)


def tokens() -> Tensor:
    return noise(2, 12, WIDTH)


def rows() -> Tensor:
    return noise(16, WIDTH)


def pixels() -> Tensor:
    return noise(4, 3, 12, 12)


CASES: list[Case] = []


def simple(
    name: str,
    kind: str,
    parts: Callable[[], dict[str, Any]],
    run: Callable[..., Any],
    batch: Callable[[], Any] = rows,
    loss: Any = None,
    prepare: Callable[[Any], None] | None = None,
) -> None:
    """Add a construct of parts to the cases."""
    make = lambda: Made(parts(), run, prepare)  # noqa: E731
    CASES.append(Case(f"construct/{name}", kind, make, batch, loss))


def chain(function: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """The function applied with every layer in turn, then the head."""

    def run(self: Any, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = function(layer, x)
        return self.head(x)

    return run


def layers() -> dict[str, Any]:
    return {"layers": stack(), "head": linear(out=8)}


# -- initialization idioms
INITS: dict[str, Callable[[Tensor], Any]] = {
    "data normal": lambda w: w.data.normal_(0, 0.1),
    "data assigned": lambda w: setattr(w, "data", torch.randn_like(w) * 0.2),
    "data scaled": lambda w: w.data.mul_(2.0),
    "orthogonal": nn.init.orthogonal_,
    "identity": lambda w: nn.init.eye_(w),
    "identity and noise": lambda w: (nn.init.eye_(w), w.data.add_(torch.randn_like(w) * 0.05)),
    "sparse": lambda w: nn.init.sparse_(w, 0.8, std=0.3),
    "low rank": lambda w: w.data.copy_(torch.randn(WIDTH, 4) @ torch.randn(4, WIDTH) * 0.1),
    "with a mean": lambda w: nn.init.normal_(w, 0.05, 0.1),
    "truncated": lambda w: nn.init.trunc_normal_(w, std=0.1, a=-0.1, b=0.1),
    "rows normalized": lambda w: w.data.copy_(F.normalize(torch.randn_like(w), dim=1)),
    "copied from a sibling": lambda w: w.data.copy_(w.data.T.clone()),
}


def _initialized(fill: Callable[[Tensor], Any]) -> Callable[[Any], None]:
    def prepare(model: Any) -> None:
        with torch.no_grad():
            for layer in model.layers:
                fill(layer.weight)

    return prepare


for _name, _fill in INITS.items():
    simple(
        f"init {_name}", "initialization", layers, chain(lambda f, x: x + torch.relu(f(x))), prepare=_initialized(_fill)
    )


# -- what is not differentiated
class SignEstimator(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


def _no_grad_branch(f: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        side = f(x)
    return x + side


simple("detached branch", "stopped gradients", layers, chain(lambda f, x: f(x) + torch.tanh(x).detach()))
simple("detached sum", "stopped gradients", layers, chain(lambda f, x: x + F.relu(f(x.detach()))))
simple("no_grad branch", "stopped gradients", layers, chain(_no_grad_branch))
simple("straight-through sign", "stopped gradients", layers, chain(lambda f, x: (h := f(x)) + (h.sign() - h).detach()))
simple("custom function", "stopped gradients", layers, chain(lambda f, x: SignEstimator.apply(f(x))))
simple(
    "straight-through round", "stopped gradients", layers, chain(lambda f, x: (h := f(x)) + (h.round() - h).detach())
)

# -- weights used more than once
simple(
    "one layer thrice",
    "shared weights",
    lambda: {"f": linear(), "head": linear(out=8)},
    lambda m, x: m.head(torch.tanh(m.f(torch.tanh(m.f(torch.tanh(m.f(x))))))),
)
simple(
    "residual of one layer",
    "shared weights",
    lambda: {"f": linear(), "n": nn.LayerNorm(WIDTH), "head": linear(out=8)},
    lambda m, x: m.head((lambda s: [s := s + F.gelu(m.f(m.n(s))) for _ in range(4)][-1])(x)),
)
simple(
    "there and back",
    "shared weights",
    lambda: {"w": parameter(WIDTH, WIDTH, std=0.14), "head": linear(out=8)},
    lambda m, x: m.head(torch.tanh(x @ m.w) @ m.w.T),
)
simple(
    "tied query and key",
    "shared weights",
    lambda: {"q": linear(), "v": linear(), "head": linear(out=8)},
    lambda m, x: m.head(F.scaled_dot_product_attention(m.q(x), m.q(x), m.v(x))),
    tokens,
)
simple(
    "linear there and back",
    "shared weights",
    lambda: {"w": parameter(WIDTH, WIDTH, std=0.14), "head": linear(out=8)},
    lambda m, x: m.head(x @ m.w @ m.w.T + x),
)
simple(
    "albert-like",
    "shared weights",
    lambda: {"block": nn.TransformerEncoderLayer(WIDTH, 4, 96, dropout=0.0, batch_first=True), "head": linear(out=8)},
    lambda m, x: m.head(m.block(m.block(m.block(x)))),
    tokens,
)
simple(
    "torch encoder of copies",
    "shared weights",
    lambda: {
        "body": nn.TransformerEncoder(
            nn.TransformerEncoderLayer(WIDTH, 4, 96, dropout=0.0, batch_first=True), 3, enable_nested_tensor=False
        )
    },
    lambda m, x: m.body(x),
    tokens,
)

# -- residuals and concatenations that share summands
simple("sum minus relu", "shared randomness", layers, chain(lambda f, x: (x + f(x)) - F.relu(x)))
simple("pool mixer", "shared randomness", layers, chain(lambda f, x: f(x + x.mean(1, keepdim=True))), tokens)
simple(
    "cat of shared summand",
    "shared randomness",
    lambda: {"a": linear(), "b": linear(), "head": linear(2 * WIDTH, 8)},
    lambda m, x: m.head(torch.cat((m.a(x), m.a(x) + m.b(x)), -1)),
)
simple("token shift", "shared randomness", layers, chain(lambda f, x: f(x + F.pad(x, (0, 0, 1, -1)))), tokens)
simple(
    "dense connections",
    "shared randomness",
    lambda: {"a": linear(), "b": linear(2 * WIDTH, WIDTH), "c": linear(3 * WIDTH, 8)},
    lambda m, x: m.c(torch.cat((x, h := F.relu(m.a(x)), F.relu(m.b(torch.cat((x, h), -1)))), -1)),
)
simple("relu after sum", "shared randomness", layers, chain(lambda f, x: F.relu(x + f(x))))
simple("multiply by itself", "shared randomness", layers, chain(lambda f, x: (h := f(x)) * torch.sigmoid(h) + x))
simple(
    "highway",
    "shared randomness",
    lambda: {"layers": stack(), "gates": stack(), "head": linear(out=8)},
    lambda m, x: m.head(
        [x := (t := torch.sigmoid(g(x))) * F.relu(f(x)) + (1 - t) * x for f, g in zip(m.layers, m.gates, strict=True)][
            -1
        ]
    ),
)


# -- attention by hand
def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (4, -1)).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def attention_parts() -> dict[str, Any]:
    return {"q": linear(), "k": linear(), "v": linear(), "o": linear(), "n": nn.LayerNorm(WIDTH), "head": linear(out=8)}


def attended(way: Callable[[Any, Tensor, Tensor, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    def run(m: Any, x: Tensor) -> Tensor:
        y = m.n(x)
        return m.head(x + m.o(joined(way(m, heads(m.q(y)), heads(m.k(y)), heads(m.v(y))))))

    return run


def _linear_attention(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return q @ (k.mT @ v) / (q @ k.sum(-2)[..., None])


def _decayed(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    step = torch.arange(q.shape[-2])
    decay = torch.where(step[:, None] >= step, 0.9 ** (step[:, None] - step).clamp(min=0), 0.0)
    return (q @ k.mT * decay) @ v / math.sqrt(q.shape[-1])


simple(
    "softmax attention",
    "attention",
    attention_parts,
    attended(lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v)),
    tokens,
)
simple(
    "causal attention",
    "attention",
    attention_parts,
    attended(lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
    tokens,
)
simple("linear attention", "attention", attention_parts, attended(_linear_attention), tokens)
simple("retention", "attention", attention_parts, attended(_decayed), tokens)
simple(
    "sigmoid attention",
    "attention",
    attention_parts,
    attended(lambda m, q, k, v: torch.sigmoid(q @ k.mT / 4 - 2.0) @ v),
    tokens,
)
simple(
    "cosine attention",
    "attention",
    attention_parts,
    attended(lambda m, q, k, v: (10 * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT).softmax(-1) @ v),
    tokens,
)
simple(
    "values attended twice",
    "attention",
    attention_parts,
    attended(lambda m, q, k, v: (a := (q @ k.mT / 4).softmax(-1)) @ (a @ v)),
    tokens,
)
simple(
    "differential attention",
    "attention",
    attention_parts,
    attended(lambda m, q, k, v: ((q @ k.mT / 4).softmax(-1) - 0.5 * (k @ q.mT / 4).softmax(-1)) @ v),
    tokens,
)
simple(
    "attention on itself",
    "attention",
    lambda: {"head": linear(out=8), "f": linear()},
    lambda m, x: m.head((y := m.f(x)) + (y @ y.mT / 7).softmax(-1) @ y),
    tokens,
)
simple(
    "multihead module",
    "attention",
    lambda: {"a": nn.MultiheadAttention(WIDTH, 4, batch_first=True), "head": linear(out=8)},
    lambda m, x: m.head(x + m.a(x, x, x, need_weights=False)[0]),
    tokens,
)
simple(
    "slot queries",
    "attention",
    lambda: {"s": parameter(4, WIDTH), "k": linear(), "v": linear(), "head": linear(out=8)},
    lambda m, x: m.head((m.s @ m.k(x).mT / 7).softmax(-1) @ m.v(x)),
    tokens,
)

# -- recurrent
for _kind in ("LSTM", "GRU", "RNN"):
    simple(
        f"torch {_kind}",
        "recurrent",
        lambda kind=_kind: {"r": getattr(nn, kind)(WIDTH, 32, 2, batch_first=True), "head": linear(32, 8)},
        lambda m, x: m.head(m.r(x)[0]),
        tokens,
    )
simple(
    "bidirectional LSTM",
    "recurrent",
    lambda: {"r": nn.LSTM(WIDTH, 24, bidirectional=True, batch_first=True), "head": linear(48, 8)},
    lambda m, x: m.head(m.r(x)[0][:, -1]),
    tokens,
)


def _scanned(step: Callable[[Any, Tensor, Any], Any]) -> Callable[[Any, Tensor], Tensor]:
    """A recurrence over tokens by a plain loop; the head sees the states of all tokens."""

    def run(m: Any, x: Tensor) -> Tensor:
        state, found = None, []
        for t in range(x.shape[1]):
            state = step(m, x[:, t], state)
            found.append(state)
        return m.head(torch.stack(found, 1))

    return run


def _elman(m: Any, x: Tensor, state: Any) -> Tensor:
    return torch.tanh(m.a(x) + (m.b(state) if state is not None else 0))


def _gated_average(m: Any, x: Tensor, state: Any) -> Tensor:
    gate = torch.sigmoid(m.g(x))
    return gate * (state if state is not None else 0) + (1 - gate) * m.v(x)


simple(
    "GRU cell by hand",
    "recurrent",
    lambda: {"r": nn.GRUCell(WIDTH, 32), "head": linear(32, 8)},
    _scanned(lambda m, x, state: m.r(x, state)),
    tokens,
)
simple(
    "elman by hand",
    "recurrent",
    lambda: {"a": linear(), "b": linear(), "head": linear(out=8)},
    _scanned(_elman),
    tokens,
)


class DiagonalStates(nn.Module):
    """A diagonal state space (S4D-like) by recurrence, with learned decay."""

    def __init__(self, width: int = WIDTH, states: int = 8):
        super().__init__()
        self.rate = nn.Parameter(torch.log(torch.arange(1.0, states + 1)).repeat(width, 1))
        self.step = nn.Parameter(torch.rand(width) * 2 - 4)
        self.b, self.c = parameter(width, states), parameter(width, states, std=states**-0.5)
        self.mix = linear(width)

    def forward(self, x: Tensor) -> Tensor:
        step = self.step.exp()[:, None]
        decay = torch.exp(-self.rate.exp() * step)
        state, found = torch.zeros(x.shape[0], *decay.shape), []
        for t in range(x.shape[1]):
            state = decay * state + step * self.b * x[:, t, :, None]
            found.append((state * self.c).sum(-1))
        return x + self.mix(F.gelu(torch.stack(found, 1)))


simple(
    "state space",
    "state space",
    lambda: {"layers": stack(2, DiagonalStates), "head": linear(out=8)},
    chain(lambda f, x: f(x)),
    tokens,
)
simple(
    "long convolution by FFT",
    "state space",
    lambda: {"k": parameter(12, WIDTH, std=0.3), "f": linear(), "head": linear(out=8)},
    lambda m, x: m.head(
        torch.fft.irfft(torch.fft.rfft(m.f(x), 24, dim=1) * torch.fft.rfft(m.k, 24, dim=0), 24, dim=1)[:, :12]
    ),
    tokens,
)
simple(
    "cumulative average",
    "state space",
    layers,
    chain(lambda f, x: f(x).cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None] + x),
    tokens,
)
simple(
    "gated recurrence",
    "state space",
    lambda: {"g": linear(), "v": linear(), "head": linear(out=8)},
    _scanned(_gated_average),
    tokens,
)


# -- convolutions and norms of few entries
def conv(inside: int = 24, out: int = 24, size: int = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(inside, out, size, padding=size // 2, **options)


def images(norm: Callable[[], nn.Module], make: Callable[[], nn.Module] = conv) -> Callable[[], dict[str, Any]]:
    return lambda: {"first": conv(3), "layers": stack(3, make), "norms": stack(3, norm), "head": linear(24, 5)}


def convolved(act: Callable[[Tensor], Tensor] = F.relu, residual: bool = True) -> Callable[[Any, Tensor], Tensor]:
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.first(x)
        for layer, norm in zip(m.layers, m.norms, strict=True):
            x = act(norm(layer(x))) + (x if residual else 0)
        return m.head(x.mean((2, 3)))

    return run


NORMS: dict[str, Callable[[], nn.Module]] = {
    "BatchNorm": lambda: nn.BatchNorm2d(24),
    "InstanceNorm": lambda: nn.InstanceNorm2d(24, affine=True),
    "GroupNorm of one channel": lambda: nn.GroupNorm(24, 24),
    "GroupNorm": lambda: nn.GroupNorm(4, 24),
    "no norm": nn.Identity,
}
for _name, _norm in NORMS.items():
    simple(f"convolutions, {_name}", "convolutional", images(_norm), convolved(), pixels)
simple(
    "depthwise and BatchNorm", "convolutional", images(NORMS["BatchNorm"], lambda: conv(groups=24)), convolved(), pixels
)
simple(
    "transposed convolution",
    "convolutional",
    lambda: {"a": conv(3), "b": nn.ConvTranspose2d(24, 12, 4, 2, 1), "c": conv(12, 5)},
    lambda m, x: m.c(F.relu(m.b(F.relu(m.a(x))))),
    pixels,
)
simple(
    "squeeze and excitation",
    "convolutional",
    lambda: {"a": conv(3), "b": conv(), "s": linear(24, 8), "e": linear(8, 24), "head": linear(24, 5)},
    lambda m, x: m.head(
        ((h := F.relu(m.b(F.relu(m.a(x))))) * torch.sigmoid(m.e(F.relu(m.s(h.mean((2, 3))))))[..., None, None]).mean(
            (2, 3)
        )
    ),
    pixels,
)
simple(
    "max pooling",
    "convolutional",
    lambda: {"a": conv(3), "b": conv(), "head": linear(24 * 9, 5)},
    lambda m, x: m.head(F.max_pool2d(F.relu(m.b(F.max_pool2d(F.relu(m.a(x)), 2))), 2).flatten(1)),
    pixels,
)
simple(
    "weight-standardized",
    "convolutional",
    lambda: {"a": conv(3), "b": conv(), "head": linear(24, 5)},
    lambda m, x: m.head(
        F.relu(F.conv2d(F.relu(m.a(x)), (w := m.b.weight) / (w.std((1, 2, 3), keepdim=True) * 14), padding=1)).mean(
            (2, 3)
        )
    ),
    pixels,
)
simple(
    "pixel shuffle",
    "convolutional",
    lambda: {"a": conv(3, 24), "b": conv(6, 5)},
    lambda m, x: m.b(F.pixel_shuffle(F.relu(m.a(x)), 2)),
    pixels,
)
simple(
    "upsampled U",
    "convolutional",
    lambda: {"a": conv(3), "b": conv(), "c": conv(48, 5)},
    lambda m, x: m.c(
        torch.cat((h := F.relu(m.a(x)), F.interpolate(F.relu(m.b(F.avg_pool2d(h, 2))), scale_factor=2)), 1)
    ),
    pixels,
)


def _averaged(m: Any, x: Tensor) -> Tensor:
    seen = [x]
    for f in m.layers:
        seen.append(F.relu(f(torch.stack(seen).mean(0))))
    return functools.reduce(torch.add, seen)


simple("branch of the average", "residual", layers, lambda m, x: m.head(_averaged(m, x)))

# -- parametrizations and norms
simple(
    "weight norm",
    "parametrized",
    lambda: {"layers": stack(3, lambda: nn.utils.parametrizations.weight_norm(linear())), "head": linear(out=8)},
    chain(lambda f, x: F.relu(f(x))),
)
simple(
    "spectral norm",
    "parametrized",
    lambda: {"layers": stack(3, lambda: nn.utils.parametrizations.spectral_norm(linear())), "head": linear(out=8)},
    chain(lambda f, x: F.leaky_relu(f(x), 0.2)),
)
simple(
    "learned scalar before a norm",
    "parametrized",
    lambda: {"s": nn.Parameter(torch.tensor(3.0)), "f": linear(), "n": nn.LayerNorm(WIDTH), "head": linear(out=8)},
    lambda m, x: m.head(m.n(m.s * m.f(x))),
)
simple(
    "random gain then tanh",
    "parametrized",
    lambda: {"g": parameter(WIDTH), "f": linear(), "head": linear(out=8)},
    lambda m, x: m.head(torch.tanh(m.g * m.f(x))),
)
simple(
    "norm by hand",
    "parametrized",
    layers,
    chain(lambda f, x: F.gelu(f((x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)))),
)
simple(
    "norm of the input",
    "parametrized",
    lambda: {"n": nn.LayerNorm(WIDTH), **layers()},
    lambda m, x: m.head(F.relu(m.layers[0](m.n(x)))),
)
simple("softmax gate", "parametrized", layers, chain(lambda f, x: x * f(x).softmax(-1) * WIDTH))
simple(
    "glu",
    "parametrized",
    lambda: {"layers": stack(3, lambda: linear(WIDTH, 2 * WIDTH)), "head": linear(out=8)},
    chain(lambda f, x: F.glu(f(x)) + x),
)
simple(
    "maxout",
    "parametrized",
    lambda: {"layers": stack(3, lambda: linear(WIDTH, 2 * WIDTH)), "head": linear(out=8)},
    chain(lambda f, x: f(x).unflatten(-1, (2, -1)).amax(-2)),
)
simple(
    "one output", "parametrized", lambda: {"layers": stack(), "head": linear(out=1)}, chain(lambda f, x: F.relu(f(x)))
)
simple(
    "learned positions, rows and columns",
    "tables",
    lambda: {"r": parameter(3, 1, WIDTH), "c": parameter(1, 4, WIDTH), "f": linear(), "head": linear(out=8)},
    lambda m, x: m.head(F.relu(m.f(x + (m.r + m.c).reshape(12, WIDTH)))),
    tokens,
)


def sinusoids(count: int, width: int) -> Tensor:
    angle = torch.arange(count)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    return torch.cat((angle.sin(), angle.cos()), 1)


simple(
    "trainable sinusoids",
    "tables",
    lambda: {"p": nn.Parameter(sinusoids(12, WIDTH)), "f": linear(), "head": linear(out=8)},
    lambda m, x: m.head(F.relu(m.f(0.1 * x + m.p))),
    tokens,
)
simple(
    "sinusoids in an embedding",
    "tables",
    lambda: {
        "e": nn.Embedding(50, WIDTH),
        "p": nn.Embedding.from_pretrained(sinusoids(12, WIDTH)),
        "f": linear(),
        "head": linear(out=8),
    },
    lambda m, i: m.head(F.relu(m.f(m.e(i) + m.p(torch.arange(12))))),
    lambda: ids(50, 2, 12),
)
simple(
    "embedding bag and crossing",
    "tables",
    lambda: {"e": nn.Embedding(30, WIDTH), "head": linear(out=3)},
    lambda m, i: m.head(m.e(i).sum(1).square() - m.e(i).square().sum(1)),
    lambda: ids(30, 8, 5),
)

# -- routed and random features
simple(
    "mixture of experts",
    "routing",
    lambda: {"g": linear(out=4), "layers": stack(4), "head": linear(out=8)},
    lambda m, x: m.head(
        sum(p[..., e : e + 1] * F.relu(f(x)) for p in [m.g(x).softmax(-1)] for e, f in enumerate(m.layers))
    ),
)
simple(
    "top expert",
    "routing",
    lambda: {"g": linear(out=4), "layers": stack(4), "head": linear(out=8)},
    lambda m, x: m.head(
        x
        + torch.stack([F.relu(f(x)) for f in m.layers], -2)[torch.arange(len(x)), (s := m.g(x).softmax(-1)).argmax(-1)]
        * s.amax(-1, keepdim=True)
    ),
)
simple(
    "hyper-network",
    "routing",
    lambda: {"h": linear(WIDTH, WIDTH * 8), "f": linear(), "head": linear(8, 8)},
    lambda m, x: m.head((F.relu(m.f(x))[:, None] @ m.h(x).reshape(-1, WIDTH, 8) / 7)[:, 0]),
)
simple("sine network", "routing", layers, chain(lambda f, x: torch.sin(10 * f(x))))
simple(
    "bilinear",
    "routing",
    lambda: {"b": nn.Bilinear(WIDTH, WIDTH, 16), "head": linear(16, 8)},
    lambda m, x: m.head(F.relu(m.b(x, x))),
)
simple(
    "low-rank adapter",
    "routing",
    lambda: {
        "f": linear(),
        "a": parameter(4, WIDTH, std=0.1),
        "b": nn.Parameter(torch.zeros(WIDTH, 4)),
        "head": linear(out=8),
    },
    lambda m, x: m.head(F.relu(m.f(x) + x @ m.a.T @ m.b.T)),
)

# -- losses
LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "smoothed": lambda o: F.cross_entropy(o, torch.arange(len(o)) % 8, label_smoothing=0.3),
    "class weights": lambda o: F.cross_entropy(o, torch.arange(len(o)) % 8, weight=torch.linspace(0.1, 3, 8)),
    "mse": lambda o: F.mse_loss(o, torch.ones_like(o)),
    "l1": lambda o: F.l1_loss(o, torch.zeros_like(o)),
    "huber": lambda o: F.huber_loss(o, torch.ones_like(o)),
    "binary": lambda o: F.binary_cross_entropy_with_logits(o, (noise(*o.shape) > 0).float()),
    "distillation": lambda o: F.kl_div(F.log_softmax(o / 2, -1), F.softmax(noise(*o.shape), -1), reduction="batchmean"),
    "contrastive": lambda o: F.cross_entropy(
        F.normalize(o, dim=-1) @ F.normalize(o, dim=-1).T / 0.2, torch.arange(len(o)).roll(1)
    ),
    "cosine": lambda o: 1 - F.cosine_similarity(o, noise(*o.shape)).mean(),
    "sum of squares": lambda o: o.square().sum(),
    "margin": lambda o: F.relu(1 - o[:, :1] + o[:, 1:]).mean(),
}
for _name, _loss in LOSSES.items():
    simple(f"loss {_name}", "losses", layers, chain(lambda f, x: F.relu(f(x))), loss=_loss)


def cases() -> Iterator[Case]:
    yield from CASES
