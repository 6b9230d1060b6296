"""The tenth set: 20 networks of images, sound, graphs, recommenders and generation, as public repositories have them.

Listed before any of them was predicted; nothing is taken from the earlier sets. `studies.corpus.fresh --models tenth`
predicts each once.
"""

# ruff: noqa: E501

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from studies.corpus.case import Case, ids, noise


def conv_bn(
    a: int, b: int, k: int = 3, s: int = 1, g: int = 1, act: Callable[[], nn.Module] = nn.ReLU
) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(a, b, k, s, k // 2, groups=g, bias=False), nn.BatchNorm2d(b), act())


def classifier(width: int, classes: int = 10) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]


# -- images


class Ghost(nn.Module):
    """Half of the features by a convolution, half by a cheap one of each of these (GhostNet)."""

    def __init__(self, a: int, b: int, act: Callable[[], nn.Module] = nn.ReLU):
        super().__init__()
        self.primary = conv_bn(a, b // 2, 1, act=act)
        self.cheap = conv_bn(b // 2, b // 2, 3, g=b // 2, act=act)

    def forward(self, x: Tensor) -> Tensor:
        x = self.primary(x)
        return torch.cat([x, self.cheap(x)], 1)


class GhostBottleneck(nn.Module):
    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.ghost1, self.ghost2 = Ghost(width, hidden), Ghost(hidden, width, nn.Identity)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.ghost2(self.ghost1(x))


def ghost_net() -> nn.Module:
    return nn.Sequential(conv_bn(3, 16, s=2), GhostBottleneck(16, 48), GhostBottleneck(16, 48), *classifier(16))


class CrossStage(nn.Module):
    """Half of the channels pass residual blocks, half pass by (CSPDarknet)."""

    def __init__(self, a: int, b: int, blocks: int = 2):
        super().__init__()
        self.down = conv_bn(a, b, s=2, act=nn.Mish)
        self.left, self.right = conv_bn(b, b // 2, 1, act=nn.Mish), conv_bn(b, b // 2, 1, act=nn.Mish)
        self.blocks = nn.ModuleList(
            nn.Sequential(conv_bn(b // 2, b // 2, 1, act=nn.Mish), conv_bn(b // 2, b // 2, act=nn.Mish))
            for _ in range(blocks)
        )
        self.out = conv_bn(b, b, 1, act=nn.Mish)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        y = self.right(x)
        for block in self.blocks:
            y = y + block(y)
        return self.out(torch.cat([y, self.left(x)], 1))


def cross_stages() -> nn.Module:
    return nn.Sequential(conv_bn(3, 16, act=nn.Mish), CrossStage(16, 32), CrossStage(32, 48), *classifier(48))


class HighResolution(nn.Module):
    """Two resolutions side by side, each of which gives to the other (HRNet)."""

    def __init__(self, a: int = 16, b: int = 32):
        super().__init__()
        self.stem, self.start = conv_bn(3, a), conv_bn(a, b, s=2)
        self.high, self.low = (nn.ModuleList(conv_bn(n, n) for _ in range(2)) for n in (a, b))
        self.up = nn.ModuleList(nn.Sequential(nn.Conv2d(b, a, 1, bias=False), nn.BatchNorm2d(a)) for _ in range(2))
        self.down = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b)) for _ in range(2)
        )
        self.head = nn.Conv2d(a + b, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.start(x)
        for high, low, up, down in zip(self.high, self.low, self.up, self.down, strict=True):
            x, y = high(x), low(y)
            wide = F.interpolate(up(y), scale_factor=2.0, mode="nearest")
            x, y = F.relu(x + wide), F.relu(y + down(x))
        return self.head(torch.cat([x, F.interpolate(y, scale_factor=2.0, mode="nearest")], 1))


class ScaledConv(nn.Conv2d):
    """Standardized weights with a gain (NFNet)."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.gain = nn.Parameter(torch.ones(self.out_channels, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        var, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True)
        weight = (self.weight - mean) * torch.rsqrt(var * self.weight[0].numel() + 1e-4) * self.gain
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class FreeBlock(nn.Module):
    def __init__(self, width: int, beta: float, alpha: float = 0.2):
        super().__init__()
        self.conv1, self.conv2 = ScaledConv(width, width, 3, padding=1), ScaledConv(width, width, 3, padding=1)
        self.alpha, self.beta = alpha, beta

    def forward(self, x: Tensor) -> Tensor:
        y = 1.7139588594436646 * F.relu(x) / self.beta
        return x + self.alpha * self.conv2(1.7139588594436646 * F.relu(self.conv1(y)))


def normalizer_free() -> nn.Module:
    blocks = [FreeBlock(48, math.sqrt(1.0 + 0.04 * n)) for n in range(4)]
    return nn.Sequential(ScaledConv(3, 48, 3, 2, 1), *blocks, nn.ReLU(), *classifier(48))


class FixupBlock(nn.Module):
    """No norm: scalar biases and a scale, small weights, the last ones a tenth."""

    def __init__(self, width: int, depth: int):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bias1a, self.bias1b, self.bias2a, self.bias2b = (nn.Parameter(torch.zeros(1)) for _ in range(4))
        self.scale = nn.Parameter(torch.ones(1))
        std = math.sqrt(2 / (9 * width))
        nn.init.normal_(self.conv1.weight, 0.0, std * depth**-0.5)
        nn.init.normal_(self.conv2.weight, 0.0, 0.1 * std)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv1(x + self.bias1a) + self.bias1b)
        return F.relu(self.conv2(y + self.bias2a) * self.scale + self.bias2b + x)


def fixup() -> nn.Module:
    stem = nn.Conv2d(3, 32, 3, 2, 1, bias=False)
    nn.init.kaiming_normal_(stem.weight)
    return nn.Sequential(stem, nn.ReLU(), *(FixupBlock(32, 5) for _ in range(5)), *classifier(32))


class MixFeed(nn.Module):
    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.dwconv = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        y = self.fc1(x).transpose(1, 2).unflatten(2, size)
        return self.fc2(F.gelu(self.dwconv(y).flatten(2).transpose(1, 2)))


class ReducedAttention(nn.Module):
    """Keys and values of a smaller image (SegFormer)."""

    def __init__(self, dim: int, heads: int, ratio: int):
        super().__init__()
        self.q, self.kv, self.proj, self.heads = (
            nn.Linear(dim, dim),
            nn.Linear(dim, 2 * dim),
            nn.Linear(dim, dim),
            heads,
        )
        self.sr, self.norm = nn.Conv2d(dim, dim, ratio, ratio), nn.LayerNorm(dim)

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        small = self.norm(self.sr(x.transpose(1, 2).unflatten(2, size)).flatten(2).transpose(1, 2))
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.kv(small).chunk(2, -1))
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class SegFormer(nn.Module):
    def __init__(self, dim: int = 48):
        super().__init__()
        self.patch, self.start = nn.Conv2d(3, dim, 3, 2, 1), nn.LayerNorm(dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(5))
        self.attentions = nn.ModuleList(ReducedAttention(dim, 3, 2) for _ in range(2))
        self.feeds = nn.ModuleList(MixFeed(dim, 2 * dim) for _ in range(2))
        self.fuse, self.head = conv_bn(dim, dim, 1), nn.Conv2d(dim, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x)
        size = (x.shape[2], x.shape[3])
        x = self.start(x.flatten(2).transpose(1, 2))
        for n, (attention, feed) in enumerate(zip(self.attentions, self.feeds, strict=True)):
            x = x + attention(self.norms[2 * n](x), size)
            x = x + feed(self.norms[2 * n + 1](x), size)
        return self.head(self.fuse(self.norms[4](x).transpose(1, 2).unflatten(2, size)))


class OdeNet(nn.Module):
    """Euler steps of one field of convolutions that sees the time as a channel."""

    def __init__(self, width: int = 32, steps: int = 4):
        super().__init__()
        self.stem, self.steps = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.GroupNorm(4, width), nn.ReLU()), steps
        self.norm1, self.norm2 = nn.GroupNorm(4, width), nn.GroupNorm(4, width)
        self.conv1, self.conv2 = nn.Conv2d(width + 1, width, 3, padding=1), nn.Conv2d(width + 1, width, 3, padding=1)
        self.head = nn.Sequential(*classifier(width))

    def field(self, t: float, x: Tensor) -> Tensor:
        for norm, conv in ((self.norm1, self.conv1), (self.norm2, self.conv2)):
            x = F.relu(norm(x))
            x = conv(torch.cat([torch.ones_like(x[:, :1]) * t, x], 1))
        return x

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for step in range(self.steps):
            x = x + self.field(step / self.steps, x) / self.steps
        return self.head(x)


def le_net() -> nn.Module:
    layers = [nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)]
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(256, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10)
    )


# -- sound


class Wav2Vec(nn.Module):
    """Strided convolutions of the wave, positions by a grouped convolution, Post-LN blocks."""

    def __init__(self, width: int = 48):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(1, 32, 10, 5, bias=False), nn.Conv1d(32, 32, 3, 2, bias=False)])
        self.group, self.features = nn.GroupNorm(32, 32), nn.LayerNorm(32)
        self.projection, self.norm = nn.Linear(32, width), nn.LayerNorm(width)
        self.positions = weight_norm(nn.Conv1d(width, width, 8, padding=4, groups=4), dim=2)
        layer = lambda: nn.TransformerEncoderLayer(width, 4, 96, 0.0, "gelu", batch_first=True)  # noqa: E731
        self.layers, self.head = nn.ModuleList([layer(), layer()]), nn.Linear(width, 24)
        for conv in self.convs:
            nn.init.kaiming_normal_(conv.weight)  # type: ignore[arg-type]

    def forward(self, wave: Tensor) -> Tensor:
        x = F.gelu(self.group(self.convs[0](wave.unsqueeze(1))))
        x = F.gelu(self.convs[1](x)).transpose(1, 2)
        x = self.projection(self.features(x))
        x = self.norm(x + F.gelu(self.positions(x.transpose(1, 2))[..., :-1]).transpose(1, 2))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Separator(nn.Module):
    """A block of Conv-TasNet: dilated convolutions of each channel between norms of all, a residual and a skip path."""

    def __init__(self, width: int, hidden: int, dilation: int):
        super().__init__()
        self.conv1, self.prelu1, self.norm1 = nn.Conv1d(width, hidden, 1), nn.PReLU(), nn.GroupNorm(1, hidden, eps=1e-8)
        self.depth = nn.Conv1d(hidden, hidden, 3, padding=dilation, dilation=dilation, groups=hidden)
        self.prelu2, self.norm2 = nn.PReLU(), nn.GroupNorm(1, hidden, eps=1e-8)
        self.residual, self.skip = nn.Conv1d(hidden, width, 1), nn.Conv1d(hidden, width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.norm1(self.prelu1(self.conv1(x)))
        y = self.norm2(self.prelu2(self.depth(y)))
        return x + self.residual(y), self.skip(y)


class TasNet(nn.Module):
    def __init__(self, filters: int = 48, width: int = 32):
        super().__init__()
        self.encoder = nn.Conv1d(1, filters, 8, 4, bias=False)
        self.norm, self.narrow = nn.GroupNorm(1, filters, eps=1e-8), nn.Conv1d(filters, width, 1)
        self.blocks = nn.ModuleList(Separator(width, 64, 2**n) for n in range(3))
        self.out, self.mask = nn.PReLU(), nn.Conv1d(width, 2 * filters, 1)
        self.decoder = nn.ConvTranspose1d(filters, 1, 8, 4, bias=False)

    def forward(self, wave: Tensor) -> Tensor:
        w = F.relu(self.encoder(wave.unsqueeze(1)))
        x, total = self.narrow(self.norm(w)), torch.zeros(())
        for block in self.blocks:
            x, skip = block(x)
            total = total + skip
        masks = torch.sigmoid(self.mask(self.out(total))).unflatten(1, (2, -1))
        return self.decoder((masks * w.unsqueeze(1)).flatten(0, 1)).unflatten(0, (-1, 2)).squeeze(2)


class KeywordSpotter(nn.Module):
    """Convolutions of a spectrogram, a recurrence both ways, an average over time."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv_bn(1, 16, s=2), conv_bn(16, 32, s=2))
        self.gru, self.head = nn.GRU(32 * 4, 32, bidirectional=True, batch_first=True), nn.Linear(64, 12)

    def forward(self, mels: Tensor) -> Tensor:
        x = self.body(mels.unsqueeze(1)).permute(0, 3, 1, 2).flatten(2)
        return self.head(self.gru(x)[0].mean(1))


# -- graphs


def ring(count: int) -> Tensor:
    """A ring with two chords, as a matrix."""
    made = torch.zeros(count, count)
    for n in range(count):
        made[n, (n + 1) % count] = made[(n + 1) % count, n] = 1.0
    made[0, count // 2] = made[count // 2, 0] = made[1, count - 2] = made[count - 2, 1] = 1.0
    return made


class Isomorphism(nn.Module):
    """Sums of neighbours, a small network with BatchNorm, all layers read (GIN)."""

    def __init__(self, width: int = 48, depth: int = 3, nodes: int = 12):
        super().__init__()
        self.register_buffer("adjacency", ring(nodes))
        self.eps = nn.ParameterList([nn.Parameter(torch.zeros(1)) for _ in range(depth)])
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16 if n == 0 else width, width), Nodes(width), nn.ReLU(), nn.Linear(width, width))
            for n in range(depth)
        )
        self.norms = nn.ModuleList(Nodes(width) for _ in range(depth))
        self.heads = nn.ModuleList(nn.Linear(16 if n == 0 else width, 4) for n in range(depth + 1))

    def forward(self, x: Tensor) -> Tensor:
        score = self.heads[0](x.sum(1))
        for eps, layer, norm, head in zip(self.eps, self.layers, self.norms, self.heads[1:], strict=True):
            x = F.relu(norm(layer((1 + eps) * x + self.adjacency @ x)))  # type: ignore[operator]
            score = score + head(x.sum(1))
        return score


class Nodes(nn.BatchNorm1d):
    """BatchNorm over all nodes of all graphs."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.flatten(0, 1)).view(input.shape)


class Continuous(nn.Module):
    """Filters of the distance, shifted softplus (SchNet)."""

    def __init__(self, width: int = 32, gaussians: int = 12, depth: int = 2):
        super().__init__()
        self.embedding, self.depth = nn.Embedding(10, width), depth
        self.register_buffer("centres", torch.linspace(0.0, 4.0, gaussians))
        linear = lambda a, b, bias=True: nn.ModuleList(nn.Linear(a, b, bias) for _ in range(depth))  # noqa: E731
        self.filter1, self.filter2 = linear(gaussians, width), linear(width, width)
        self.inside, self.out1, self.out2 = linear(width, width, False), linear(width, width), linear(width, width)
        self.head = nn.Sequential(nn.Linear(width, width // 2), Shifted(), nn.Linear(width // 2, 1))
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, kinds: Tensor, places: Tensor) -> Tensor:
        apart = (places[:, :, None] - places[:, None]).square().sum(-1).add(1e-8).sqrt()
        waves = torch.exp(-3.0 * (apart[..., None] - self.centres).square())  # type: ignore[operator]
        cut = 0.5 * (torch.cos(apart * math.pi / 6.0) + 1.0)
        x, act = self.embedding(kinds), Shifted()
        for n in range(self.depth):
            filters = self.filter2[n](act(self.filter1[n](waves))) * cut[..., None]
            y = (self.inside[n](x)[:, None] * filters).sum(2)
            x = x + self.out2[n](act(self.out1[n](y)))
        return self.head(x).sum(1)


class Shifted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(x) - math.log(2.0)


class DeepGraph(nn.Module):
    """The first layer in every layer, weights close to the identity (GCNII)."""

    def __init__(self, width: int = 48, depth: int = 6, nodes: int = 12):
        super().__init__()
        own = ring(nodes) + torch.eye(nodes)
        degree = own.sum(1).rsqrt()
        self.register_buffer("propagate", degree[:, None] * own * degree)
        self.start, self.head = nn.Linear(16, width), nn.Linear(width, 5)
        self.weights = nn.ParameterList([nn.Parameter(torch.empty(width, width)) for _ in range(depth)])
        for weight in self.weights:
            nn.init.uniform_(weight, -(width**-0.5), width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = first = F.relu(self.start(x))
        for n, weight in enumerate(self.weights):
            theta = math.log(0.5 / (n + 1) + 1)
            support = 0.9 * (self.propagate @ x) + 0.1 * first  # type: ignore[operator]
            x = F.relu(theta * (support @ weight) + (1 - theta) * support)
        return self.head(x)


# -- recommenders


class DeepFM(nn.Module):
    """A factorization machine and a deep network of the same embeddings."""

    def __init__(self, fields: int = 8, values: int = 40, dim: int = 12):
        super().__init__()
        self.linear, self.embedding = nn.Embedding(values * fields, 1), nn.Embedding(values * fields, dim)
        self.register_buffer("offsets", torch.arange(fields) * values)
        self.bias = nn.Parameter(torch.zeros(1))
        layers: list[nn.Module] = []
        for a, b in ((fields * dim, 64), (64, 32)):
            layers += [nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(), nn.Dropout(0.0)]
        self.mlp = nn.Sequential(*layers, nn.Linear(32, 1))
        nn.init.xavier_uniform_(self.embedding.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.offsets  # type: ignore[operator]
        e = self.embedding(x)
        pairs = 0.5 * (e.sum(1).square() - e.square().sum(1)).sum(1, keepdim=True)
        return self.linear(x).sum(1) + self.bias + pairs + self.mlp(e.flatten(1))


class CrossNet(nn.Module):
    """Crosses of full rank in parallel with a deep network (DCN V2)."""

    def __init__(self, dense: int = 10, fields: int = 5, dim: int = 8, depth: int = 3):
        super().__init__()
        width = dense + fields * dim
        self.tables = nn.ModuleList(nn.Embedding(30, dim) for _ in range(fields))
        self.cross = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.deep = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(width + 64, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x0 = torch.cat([dense, *(table(sparse[:, n]) for n, table in enumerate(self.tables))], 1)
        x = x0
        for layer in self.cross:
            x = x0 * layer(x) + x
        return self.head(torch.cat([x, self.deep(x0)], 1))


class NeuMF(nn.Module):
    """Products of two embeddings beside a network of two others."""

    def __init__(self, users: int = 60, items: int = 80, dim: int = 24):
        super().__init__()
        self.user_gmf, self.user_mlp = nn.Embedding(users, dim), nn.Embedding(users, 2 * dim)
        self.item_gmf, self.item_mlp = nn.Embedding(items, dim), nn.Embedding(items, 2 * dim)
        sizes = [4 * dim, 2 * dim, dim]
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes)))
        self.predict = nn.Linear(2 * dim, 1)
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.01)
            elif isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        gmf = self.user_gmf(user) * self.item_gmf(item)
        mlp = self.layers(torch.cat([self.user_mlp(user), self.item_mlp(item)], -1))
        return self.predict(torch.cat([gmf, mlp], -1))


# -- generation


class MaskedConv(nn.Conv2d):
    """Sees only pixels above and to the left."""

    def __init__(self, a: int, b: int, k: int, own: bool):
        super().__init__(a, b, k, padding=k // 2)
        mask = torch.ones(k, k)
        mask[k // 2, k // 2 + own :] = 0.0
        mask[k // 2 + 1 :] = 0.0
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * self.mask, self.bias, padding=self.padding)  # type: ignore[operator]


class GatedPixels(nn.Module):
    def __init__(self, width: int = 32, depth: int = 3):
        super().__init__()
        self.start = MaskedConv(1, width, 7, own=False)
        self.gated = nn.ModuleList(MaskedConv(width, 2 * width, 3, own=True) for _ in range(depth))
        self.back = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(depth))
        self.out = nn.Sequential(nn.ReLU(), nn.Conv2d(width, 32, 1), nn.ReLU(), nn.Conv2d(32, 8, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        for gated, back in zip(self.gated, self.back, strict=True):
            a, b = gated(x).chunk(2, 1)
            x = x + back(torch.tanh(a) * torch.sigmoid(b))
        return self.out(x)


class Quantized(nn.Module):
    """An autoencoder whose latents are the nearest of a table, gradients passed straight through (VQ-VAE)."""

    def __init__(self, width: int = 32, codes: int = 24, dim: int = 16):
        super().__init__()
        res = lambda: nn.Sequential(  # noqa: E731
            nn.ReLU(), nn.Conv2d(width, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, width, 1)
        )
        self.down = nn.Sequential(nn.Conv2d(3, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 4, 2, 1))
        self.res1, self.res2, self.pre = res(), res(), nn.Conv2d(width, dim, 1)
        self.codebook, self.post = nn.Embedding(codes, dim), nn.Conv2d(dim, width, 3, padding=1)
        nn.init.uniform_(self.codebook.weight, -1.0 / codes, 1.0 / codes)
        self.up = nn.Sequential(
            nn.ReLU(), nn.ConvTranspose2d(width, width, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        z = self.pre(x + self.res1(x)).permute(0, 2, 3, 1)
        nearest = torch.cdist(z.flatten(0, 2), self.codebook.weight).argmin(1).view(z.shape[:-1])
        q = z + (self.codebook(nearest) - z).detach()
        y = self.post(q.permute(0, 3, 1, 2))
        return self.up(y + self.res2(y))


class Score(nn.Module):
    """The score of points at a noise level: random waves of the level shift and scale every block."""

    def __init__(self, points: int = 6, width: int = 64, depth: int = 3):
        super().__init__()
        self.register_buffer("waves", 16.0 * torch.randn(16, generator=torch.Generator().manual_seed(3)))
        self.embed = nn.Sequential(nn.Linear(32, width), nn.SiLU(), nn.Linear(width, width))
        self.start, self.out = nn.Linear(points, width), nn.Linear(width, points)
        self.films = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.maps = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        angles = 2.0 * math.pi * level[:, None] * self.waves  # type: ignore[operator]
        c = self.embed(torch.cat([angles.sin(), angles.cos()], 1))
        x = self.start(x / (1.0 + level[:, None] ** 2).sqrt())
        for film, norm, linear in zip(self.films, self.norms, self.maps, strict=True):
            shift, scale = film(F.silu(c)).chunk(2, 1)
            x = x + linear(F.silu(norm(x) * (1.0 + scale) + shift))
        return self.out(x) / level[:, None]


# -- the list


def cases() -> Iterator[Case]:
    image, wave = partial(noise, 4, 3, 16, 16), partial(noise, 2, 164)
    nodes = partial(noise, 4, 12, 16)
    listed: list[tuple[str, Callable[[], nn.Module], Callable[[], Any]]] = [
        ("ghostnet", ghost_net, image), ("cspdarknet", cross_stages, partial(noise, 2, 3, 16, 16)), ("hrnet", HighResolution, partial(noise, 2, 3, 16, 16)),
        ("nfnet", normalizer_free, image), ("fixup", fixup, image), ("segformer", SegFormer, partial(noise, 2, 3, 16, 16)),
        ("odenet", OdeNet, image), ("lenet", le_net, partial(noise, 8, 1, 28, 28)),
        ("wav2vec", Wav2Vec, wave), ("conv-tasnet", TasNet, partial(noise, 2, 164)), ("crnn", KeywordSpotter, partial(noise, 4, 16, 32)),
        ("gin", Isomorphism, nodes), ("schnet", Continuous, lambda: (ids(10, 3, 8), 1.5 * noise(3, 8, 3))), ("gcnii", DeepGraph, nodes),
        ("deepfm", DeepFM, partial(ids, 40, 32, 8)), ("dcn v2", CrossNet, lambda: (noise(16, 10), ids(30, 16, 5))),
        ("neumf", NeuMF, lambda: (ids(60, 32), ids(80, 32, seed=1))),
        ("pixelcnn", GatedPixels, partial(noise, 2, 1, 14, 14)), ("vq-vae", Quantized, image),
        ("score", Score, lambda: (noise(32, 6), noise(32).exp())),
    ]  # fmt: skip
    for name, make, batch in listed:
        yield Case(f"tenth/{name}", "own code", make, batch)
