"""Random networks of the usual parts in many spellings, for fuzzing: a strategy of `Recipe`s, each a list of words.

A recipe builds the same architecture whenever it is called, with freshly drawn weights; it prints as what to type.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

TOKENS, BATCH, HEADS = 4, 2, 2


class Attention(nn.Module):
    """Self-attention, spelled four ways."""

    def __init__(self, width, spelling, causal):
        super().__init__()
        self.spelling, self.causal = spelling, causal
        if spelling == "module":
            self.inner = nn.MultiheadAttention(width, HEADS, batch_first=True)
        else:
            self.fused = nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        if self.spelling == "module":
            return self.inner(x, x, x, attn_mask=hidden if self.causal else None, need_weights=False)[0]
        q, k, v = (part.view(batch, tokens, HEADS, -1).transpose(1, 2) for part in self.fused(x).chunk(3, -1))
        if self.spelling == "fused":
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scale = 1 / math.sqrt(q.shape[-1])
            scores = q @ k.mT * scale if self.spelling == "plain" else torch.einsum("bhqd,bhkd->bhqk", q, k) * scale
            scores = scores.masked_fill(hidden, -math.inf) if self.causal else scores
            weights = scores.softmax(-1)
            mixed = weights @ v if self.spelling == "plain" else torch.einsum("bhqk,bhkd->bhqd", weights, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))


class OneKey(nn.Module):
    """Attention with one head of keys and values for all heads of queries."""

    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width // 4), nn.Linear(width, width // 4)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        q = self.q(x).unflatten(-1, (4, -1)).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, self.k(x)[:, None], self.v(x)[:, None], is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class LinearAttention(nn.Module):
    """Without a softmax: keys and values are summed first."""

    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        q, k = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1
        return q @ (k.mT @ self.v(x)) / (q @ k.sum(1)[..., None])


class Gated(nn.Module):
    def __init__(self, width, gate):
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(width, 2 * width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )
        self.function = {"silu": F.silu, "sigmoid": torch.sigmoid, "gelu": F.gelu}[gate]

    def forward(self, x):
        return self.down(self.function(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    def __init__(self, width, top):
        super().__init__()
        self.router, self.top = nn.Linear(width, 3), top
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(3))

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        if self.top:
            kept = torch.zeros_like(weights).scatter(-1, weights.topk(2, -1).indices, 1.0)
            weights = weights * kept
        return sum(weights[..., number : number + 1] * expert(x) for number, expert in enumerate(self.experts))


class StackedExperts(nn.Module):
    """Weights of all experts in one tensor, called as Hugging Face calls them."""

    def __init__(self, width, count=4):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count, width, width) / math.sqrt(width))

    def forward(self, hidden_states, top_k_index, top_k_weights):
        total = torch.zeros_like(hidden_states)
        for number in top_k_index.unique():
            tokens, place = torch.where(top_k_index == number)
            found = F.gelu(F.linear(hidden_states[tokens], self.weight[number])) * top_k_weights[tokens, place, None]
            total.index_add_(0, tokens, found)
        return total


class Routed(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.router, self.experts = nn.Linear(width, 4, bias=False), StackedExperts(width)

    def forward(self, x):
        rows = x.flatten(0, 1)
        shares, index = self.router(rows).softmax(-1).topk(2, -1)
        return self.experts(rows, index, shares).view_as(x)


class Recurrent(nn.Module):
    def __init__(self, width, kind):
        super().__init__()
        self.inner = {"gru": nn.GRU, "lstm": nn.LSTM, "rnn": nn.RNN}[kind](width, width, batch_first=True)

    def forward(self, x):
        return self.inner(x)[0]


class Convolution(nn.Module):
    def __init__(self, width, groups):
        super().__init__()
        self.inner = nn.Conv1d(width, width, 3, padding=1, groups=width if groups else 1)

    def forward(self, x):
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


class Twice(nn.Module):
    """Shared weights: one layer used two times."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(torch.tanh(self.inner(x)))


class ThereAndBack(nn.Module):
    """Shared weights: a matrix and its transpose."""

    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width, bias=False)

    def forward(self, x):
        return torch.tanh(self.inner(x)) @ self.inner.weight


class NormByHand(nn.Module):
    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class OverChannels(nn.Module):
    """A norm that wants channels second."""

    def __init__(self, norm):
        super().__init__()
        self.inner = norm

    def forward(self, x):
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


class Residual(nn.Module):
    def __init__(self, inner, norm, place):
        super().__init__()
        self.inner, self.norm, self.place = inner, norm, place

    def forward(self, x):
        return x + self.inner(self.norm(x)) if self.place == "pre" else self.norm(x + self.inner(x))


class Branching(nn.Module):
    """One of two layers, by the sign of what comes in."""

    def __init__(self, width):
        super().__init__()
        self.one, self.other = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return self.one(x) if x.mean() > 0 else self.other(x).tanh()


class TwoLengths(nn.Module):
    """A network on sequences of two lengths at once."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, long, short):
        return self.inner(long).mean(1) + self.inner(short).mean(1)


WHOLE = {
    "branch": Branching,
    "dropout": lambda width: nn.Dropout(0.2),
    "attention:one key": OneKey,
    "attention:linear": LinearAttention,
    "experts:stacked": Routed,
    "there and back": ThereAndBack,
    "norm:by hand": lambda width: NormByHand(),
    "norm:group": lambda width: OverChannels(nn.GroupNorm(4, width)),
    "norm:batch": lambda width: OverChannels(nn.BatchNorm1d(width)),
}


def part(word, width):
    """One part by its word: `kind:argument`."""
    kind, _, argument = word.partition(":")
    if word in WHOLE:
        return WHOLE[word](width)
    if kind == "attention":
        return Attention(width, *argument.split("-")[:1], causal=argument.endswith("causal"))
    if kind == "act":
        return {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "silu": nn.SiLU}[argument]()
    if kind == "norm":
        return {"layer": nn.LayerNorm, "rms": nn.RMSNorm}[argument](width)
    if kind == "linear":
        return nn.Linear(width, width)
    made = {
        "gate": lambda: Gated(width, argument),
        "experts": lambda: Experts(width, argument == "top"),
        "recurrent": lambda: Recurrent(width, argument),
        "convolution": lambda: Convolution(width, argument == "depthwise"),
        "twice": lambda: Twice(nn.Linear(width, width)),
    }
    return made[kind]()


def initialize(model, idiom):
    """Every usual way to write an initialization."""
    for parameter in model.parameters():
        if parameter.dim() < 2:
            continue
        if idiom == "xavier":
            nn.init.xavier_uniform_(parameter)
        elif idiom == "normal":
            nn.init.normal_(parameter, std=0.1)
        elif idiom == "truncated":
            nn.init.trunc_normal_(parameter, std=0.2)
        elif idiom == "orthogonal" and parameter.dim() == 2:
            nn.init.orthogonal_(parameter)
        elif idiom == "scaled":
            parameter.data.mul_(0.7)
        elif idiom == "data":
            parameter.data = torch.randn_like(parameter) / math.sqrt(parameter[0].numel())
        elif idiom == "uniform":
            with torch.no_grad():
                parameter.uniform_(-0.2, 0.2)


@dataclass(frozen=True)
class Recipe:
    parts: tuple[str, ...]
    width: int
    norm: str
    place: str
    idiom: str
    factory: bool = False
    train: bool = False
    inputs: str = "long"

    def batch(self):
        """Token ids: 64 or 32 bits, or sequences of two lengths."""
        if self.inputs == "ragged":
            return ids(), ids()[:, :3]
        return ids().int() if self.inputs == "int" else ids()

    def brought(self):
        """What a user brings: a function that builds the network, or one with its weights drawn."""
        return self if self.factory else self()

    def __call__(self):
        layers = [
            Residual(part(word, self.width), part(f"norm:{self.norm}", self.width), self.place)
            if word.split(":")[0] in ("attention", "gate", "experts") and self.place != "none"
            else part(word, self.width)
            for word in self.parts
        ]
        model = nn.Sequential(nn.Embedding(40, self.width), *layers, nn.Linear(self.width, 10))
        initialize(model, self.idiom)
        return (TwoLengths(model) if self.inputs == "ragged" else model).train(self.train)


PARTS = [
    *(f"attention:{way}-{mask}" for way in ("module", "fused", "plain", "einsum") for mask in ("causal", "all")),
    *(f"act:{name}" for name in ("relu", "gelu", "tanh", "silu")),
    *("norm:layer", "norm:rms", "linear", "twice", "experts:all", "experts:top"),
    *(f"gate:{name}" for name in ("silu", "sigmoid", "gelu")),
    *WHOLE,
    *("recurrent:gru", "recurrent:lstm", "recurrent:rnn", "convolution:full", "convolution:depthwise"),
]
IDIOMS = ("torch", "xavier", "normal", "truncated", "orthogonal", "scaled", "data", "uniform")

COMMON = {
    "parts": st.lists(st.sampled_from(PARTS), min_size=1, max_size=4).map(tuple),
    "width": st.sampled_from([16, 32]),
    "norm": st.sampled_from(["layer", "rms"]),
    "place": st.sampled_from(["pre", "post", "none"]),
    "idiom": st.sampled_from(IDIOMS),
    "factory": st.booleans(),
}
recipes = st.builds(Recipe, **COMMON)
harder = st.builds(Recipe, **COMMON, train=st.booleans(), inputs=st.sampled_from(["long", "int", "ragged"]))
"""With dropout and norms in training mode, 32-bit ids and sequences of two lengths."""


def ids():
    return torch.randint(40, (BATCH, TOKENS), generator=torch.Generator().manual_seed(0))
