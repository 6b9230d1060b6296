"""Networks of the ablation table, in plain PyTorch with torch's own initialization unless said otherwise."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer": nn.LayerNorm,
    "rms": nn.RMSNorm,
    "batch": nn.BatchNorm1d,
    "none": lambda width: nn.Identity(),
}


def he(module: nn.Module, gain: float = 2.0) -> nn.Module:
    """Weights of variance `gain / fan_in`, no biases."""
    for item in module.modules():
        if isinstance(item, (nn.Linear, nn.Conv2d)):
            nn.init.normal_(item.weight, 0.0, (gain / item.weight[0].numel()) ** 0.5)
            if item.bias is not None:
                nn.init.zeros_(item.bias)
    return module


def mlp(norm: str, act: str, width: int, depth: int, gain: float = 0.0) -> nn.Module:
    """`Linear, (norm, activation, Linear) x depth`."""
    layers: list[nn.Module] = [nn.Linear(width, width)]
    for _ in range(depth):
        layers += [NORMS[norm](width), ACTIVATIONS[act](), nn.Linear(width, width)]
    if norm == "none":
        layers = [item for item in layers if not isinstance(item, nn.Identity)]
    made = nn.Sequential(*layers)
    return he(made, gain) if gain else made


class ResidualMLP(nn.Module):
    """`x + Linear(act(Linear(norm(x))))`; `visits` of the same blocks."""

    def __init__(self, width: int, depth: int, act: str = "relu", norm: str = "layer", visits: int = 1):
        super().__init__()
        self.visits = visits
        self.input = nn.Linear(width, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(NORMS[norm](width), nn.Linear(width, width), ACTIVATIONS[act](), nn.Linear(width, width))
            for _ in range(depth)
        )
        self.final = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.input(x)
        for _ in range(self.visits):
            for block in self.blocks:
                x = x + block(x)
        return self.head(self.final(x))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (item.unflatten(-1, (self.heads, -1)).transpose(1, 2) for item in self.qkv(x).chunk(3, -1))
        made = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(made.transpose(1, 2).flatten(2))


class Feedforward(nn.Sequential):
    def __init__(self, width: int):
        super().__init__(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class SwiGLU(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Four experts, the best two of each token by a softmax."""

    def __init__(self, width: int):
        super().__init__()
        self.router = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(Feedforward(width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weight, index = self.router(x).softmax(-1).topk(2, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        made = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            share = (weight * (index == number)).sum(-1, keepdim=True)
            made = made + share * expert(x)
        return made


class Scan(nn.Module):
    """A selective state space as in Mamba: convolution, gates, a diagonal recurrence."""

    def __init__(self, width: int, states: int = 4):
        super().__init__()
        inner = 2 * width
        self.input, self.output = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)
        self.conv = nn.Conv1d(inner, inner, 4, padding=3, groups=inner)
        self.select, self.step = nn.Linear(inner, 2 * states, bias=False), nn.Linear(inner, inner)
        self.rates = nn.Parameter(torch.log(torch.arange(1.0, states + 1)).expand(inner, -1).clone())

    def forward(self, x: Tensor) -> Tensor:
        inner, gate = self.input(x).chunk(2, -1)
        inner = F.silu(self.conv(inner.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        b, c = self.select(inner).chunk(2, -1)
        step = F.softplus(self.step(inner))
        decay = torch.exp(-step[..., None] * self.rates.exp())
        state, made = torch.zeros_like(decay[:, 0]), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + (step[:, t] * inner[:, t])[..., None] * b[:, t, None]
            made.append((state * c[:, t, None]).sum(-1))
        return self.output(torch.stack(made, 1) * F.silu(gate))


class Language(nn.Module):
    """Token ids to logits, blocks attached as `pre`, `post` or `peri` say."""

    def __init__(
        self,
        width: int,
        depth: int,
        place: str = "pre",
        heads: int = 4,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
        mixer: Callable[[int], nn.Module] | None = None,
        feedforward: Callable[[int], nn.Module] | None = Feedforward,
        tied: bool = False,
    ):
        super().__init__()
        self.place = place
        self.embed, self.positions = nn.Embedding(64, width), nn.Embedding(32, width)
        for table in (self.embed, self.positions):
            nn.init.normal_(table.weight, 0.0, 0.5 if not tied else 0.02)
        made = mixer or (lambda width: Attention(width, heads, causal=True))
        self.branches = nn.ModuleList()
        for _ in range(depth):
            self.branches.append(made(width))
            if feedforward is not None:
                self.branches.append(feedforward(width))
        self.norms = nn.ModuleList(norm(width) for _ in self.branches)
        self.outer = nn.ModuleList(norm(width) for _ in self.branches) if place == "peri" else None
        self.final = norm(width) if place != "post" else nn.Identity()
        self.head = nn.Linear(width, 64, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.positions(torch.arange(ids.shape[1]))
        for number, (branch, norm) in enumerate(zip(self.branches, self.norms, strict=True)):
            if self.place == "post":
                x = norm(x + branch(x))
            else:
                made = branch(norm(x))
                x = x + (made if self.outer is None else self.outer[number](made))
        return self.head(self.final(x))


class Bottleneck(nn.Module):
    """`relu(x + norm(conv(relu(norm(conv(x))))))`."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module]):
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            norm(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            norm(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.branch(x))


def group(width: int) -> nn.Module:
    return nn.GroupNorm(8, width)


def cnn(width: int, depth: int, norm: Callable[[int], nn.Module], residual: bool = False) -> nn.Module:
    """Images of 8 x 8 to 10 classes; a stack of convolutions, or of residual blocks."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False), norm(width), nn.ReLU()]
    for _ in range(depth):
        plain = [nn.Conv2d(width, width, 3, padding=1, bias=False), norm(width), nn.ReLU()]
        layers += [Bottleneck(width, norm)] if residual else plain
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


class Vision(nn.Module):
    """Patches of 2 x 2 of an image of 8 x 8; attention, or a map over tokens as in MLP-Mixer."""

    def __init__(self, width: int, depth: int, mixing: bool = False):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 2, stride=2)
        self.positions = nn.Parameter(0.02 * torch.randn(1, 16, width))
        self.mixing = mixing
        self.tokens = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) if mixing else Attention(width, 4, False)
            for _ in range(depth)
        )
        self.channels = nn.ModuleList(Feedforward(width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.final, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2) + self.positions
        for number, (tokens, channels) in enumerate(zip(self.tokens, self.channels, strict=True)):
            y = self.norms[2 * number](x)
            x = x + (tokens(y.transpose(1, 2)).transpose(1, 2) if self.mixing else tokens(y))
            x = x + channels(self.norms[2 * number + 1](x))
        return self.head(self.final(x).mean(1))


class Recurrent(nn.Module):
    """An LSTM cell written out over 8 steps, and a head at the last."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width
        self.input, self.state = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = cell = torch.zeros(x.shape[0], self.width)
        for t in range(x.shape[1]):
            i, f, g, o = (self.input(x[:, t]) + self.state(hidden)).chunk(4, -1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
        return self.head(hidden)


class GraphNetwork(nn.Module):
    """Convolutions over a ring of nodes with self-loops, LayerNorm and ReLU between."""

    def __init__(self, width: int, depth: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)
        ring = torch.eye(24)
        self.edges = (ring + ring.roll(1, 0) + ring.roll(-1, 0)) / 3.0

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = F.relu(norm(layer(self.edges @ x)))
        return self.head(x)
