"""A fifth set, second part: images, graphs, tables, fields, and losses, each a whole small network as people write
them. Written and listed before any of them was predicted; all of it is held out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from studies.corpus.case import Case, ids, noise

D = 32
EDGES = ids(20, 2, 60, seed=8)
LABELS = ids(5, 8, seed=9)


def pixels(count: int = 4, size: int = 16) -> Tensor:
    return noise(count, 3, size, size)


class ChebyshevKan(nn.Module):
    """Edges that are Chebyshev polynomials of the squashed input."""

    def __init__(self, degree: int = 4):
        super().__init__()
        sizes = (D, 24, 24, 6)
        self.degree = degree
        self.weights = nn.ParameterList(
            torch.randn(a, b, degree + 1) / math.sqrt(a * (degree + 1)) for a, b in pairwise(sizes)
        )

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            angle = torch.acos(torch.tanh(x).clamp(-0.999, 0.999))[..., None] * torch.arange(self.degree + 1)
            x = torch.einsum("nik,iok->no", angle.cos(), weight)
        return x


class RadianceField(nn.Module):
    """NeRF: encoded places and directions, a skip, and colours added up along a ray."""

    def __init__(self, bands: int = 4):
        super().__init__()
        self.bands = bands
        size = 3 + 6 * bands
        self.first = nn.ModuleList([nn.Linear(size, D), nn.Linear(D, D)])
        self.second = nn.ModuleList([nn.Linear(D + size, D), nn.Linear(D, D)])
        self.density, self.feature = nn.Linear(D, 1), nn.Linear(D, D)
        self.colour = nn.Sequential(nn.Linear(D + 3, D // 2), nn.ReLU(), nn.Linear(D // 2, 3), nn.Sigmoid())

    def forward(self, places: Tensor, direction: Tensor) -> Tensor:
        angles = places[..., None] * 2.0 ** torch.arange(self.bands)
        encoded = torch.cat([places, angles.sin().flatten(-2), angles.cos().flatten(-2)], -1)
        x = encoded
        for layer in self.first:
            x = F.relu(layer(x))
        x = torch.cat([x, encoded], -1)
        for layer in self.second:
            x = F.relu(layer(x))
        opacity = 1 - torch.exp(-F.relu(self.density(x)) * 0.1)
        colour = self.colour(torch.cat([self.feature(x), direction[:, None].expand(-1, x.shape[1], -1)], -1))
        left = torch.cumprod(torch.cat([torch.ones_like(opacity[:, :1]), 1 - opacity + 1e-10], 1), 1)[:, :-1]
        return (opacity * left * colour).sum(1)


class HashGrid(nn.Module):
    """Features in hash tables of several resolutions, bilinear between corners, then a small network."""

    def __init__(self, levels: int = 4, entries: int = 64, features: int = 4):
        super().__init__()
        self.tables = nn.ParameterList(torch.empty(entries, features).uniform_(-0.1, 0.1) for _ in range(levels))
        self.net = nn.Sequential(
            nn.Linear(levels * features, D), nn.ReLU(), nn.Linear(D, D), nn.ReLU(), nn.Linear(D, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for level, table in enumerate(self.tables):
            scaled = x * 4 * 2**level
            low = scaled.floor().long()
            part, total = scaled - low, 0
            for i in (0, 1):
                for j in (0, 1):
                    index = ((low[:, 0] + i) ^ ((low[:, 1] + j) * 2654435)) % len(table)
                    weight = (part[:, 0] if i else 1 - part[:, 0]) * (part[:, 1] if j else 1 - part[:, 1])
                    total = total + weight[:, None] * table[index]
            found.append(total)
        return self.net(torch.cat(found, -1))


class GraphConvolutions(nn.Module):
    """Kipf and Welling's, with a sparse matrix, dropout off, and a virtual node."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(D, D, bias=False) for _ in range(3))
        self.biases = nn.ParameterList(torch.zeros(D) for _ in range(3))
        self.virtual, self.head = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D)), nn.Linear(D, 4)
        dense = torch.zeros(20, 20)
        dense[EDGES[0], EDGES[1]] = 1.0
        dense = ((dense + dense.T + torch.eye(20)) > 0).float()
        scale = dense.sum(1).rsqrt()
        self.register_buffer("adjacency", (scale[:, None] * dense * scale).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        node = x.new_zeros(1, D)
        for layer, bias in zip(self.layers, self.biases, strict=True):
            x = F.relu(torch.sparse.mm(self.adjacency, layer(x + node)) + bias)
            node = node + self.virtual(x.sum(0, keepdim=True))
        return self.head(x)


class ContinuousFilters(nn.Module):
    """SchNet: filters made from distances in radial functions, messages added at atoms."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, D)
        self.filters = nn.ModuleList(nn.Sequential(nn.Linear(12, D), nn.Softplus(), nn.Linear(D, D)) for _ in range(2))
        self.before = nn.ModuleList(nn.Linear(D, D, bias=False) for _ in range(2))
        self.after = nn.ModuleList(nn.Sequential(nn.Linear(D, D), nn.Softplus(), nn.Linear(D, D)) for _ in range(2))
        self.head = nn.Sequential(nn.Linear(D, D // 2), nn.Softplus(), nn.Linear(D // 2, 1))

    def forward(self, kinds: Tensor, places: Tensor) -> Tensor:
        x, (one, two) = self.embed(kinds), EDGES
        distance = (places[one] - places[two] + 1e-3).norm(dim=-1)
        radial = torch.exp(-4 * (distance[:, None] - torch.linspace(0, 4, 12)) ** 2)
        for filters, before, after in zip(self.filters, self.before, self.after, strict=True):
            messages = before(x)[two] * filters(radial)
            x = x + after(torch.zeros_like(x).index_add(0, one, messages))
        return self.head(x).sum(0)


class DifferentiablePooling(nn.Module):
    """DiffPool: nodes assigned to clusters by a softmax, twice."""

    def __init__(self):
        super().__init__()
        self.embed, self.assign = nn.Linear(D, D), nn.Linear(D, 6)
        self.embed2, self.assign2, self.head = nn.Linear(D, D), nn.Linear(D, 1), nn.Linear(D, 4)
        dense = torch.zeros(20, 20)
        dense[EDGES[0], EDGES[1]] = 1.0
        self.register_buffer("adjacency", (dense + dense.T + torch.eye(20)).clamp(max=1.0))

    def forward(self, x: Tensor) -> Tensor:
        a = self.adjacency / self.adjacency.sum(-1, keepdim=True)
        s = (a @ self.assign(x)).softmax(-1)
        x, a = s.mT @ F.relu(a @ self.embed(x)), s.mT @ a @ s
        x = F.relu(a @ self.embed2(x))
        return self.head((self.assign2(x).softmax(1).mT @ x).squeeze(-2))


class PointNet(nn.Module):
    """Points turned by a matrix that a small network gives, which begins as the identity."""

    def __init__(self):
        super().__init__()
        self.turn = nn.Sequential(nn.Conv1d(3, D, 1), nn.BatchNorm1d(D), nn.ReLU(), nn.Conv1d(D, D, 1), nn.ReLU())
        self.matrix = nn.Linear(D, 9)
        nn.init.normal_(self.matrix.weight, std=0.01)
        with torch.no_grad():
            self.matrix.bias.copy_(torch.eye(3).flatten())
        self.body = nn.Sequential(
            nn.Conv1d(3, D, 1), nn.BatchNorm1d(D), nn.ReLU(), nn.Conv1d(D, 2 * D, 1), nn.BatchNorm1d(2 * D), nn.ReLU()
        )
        self.head = nn.Sequential(nn.Linear(2 * D, D), nn.ReLU(), nn.Linear(D, 5))

    def forward(self, points: Tensor) -> Tensor:
        matrix = self.matrix(self.turn(points).amax(-1)).view(-1, 3, 3)
        return self.head(self.body(matrix @ points).amax(-1))


class SpatialTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.look = nn.Sequential(
            nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 6)
        )
        nn.init.zeros_(self.look[-1].weight)
        with torch.no_grad():
            self.look[-1].bias.copy_(torch.tensor([1.0, 0, 0, 0, 1, 0]))
        self.body = nn.Sequential(nn.Conv2d(3, D, 3, padding=1), nn.ReLU(), nn.Conv2d(D, D, 3, stride=2), nn.ReLU())
        self.head = nn.Linear(D, 5)

    def forward(self, x: Tensor) -> Tensor:
        grid = F.affine_grid(self.look(x).view(-1, 2, 3), list(x.shape), align_corners=False)
        return self.head(self.body(F.grid_sample(x, grid, align_corners=False)).mean((-1, -2)))


class Critic(nn.Module):
    """A discriminator with spectral norms, the deviation over the batch as a channel, and leaky slopes."""

    def __init__(self):
        super().__init__()
        sizes = (3, 16, 32, 32)
        self.convs = nn.ModuleList(spectral_norm(nn.Conv2d(a, b, 4, 2, 1)) for a, b in pairwise(sizes))
        self.head = spectral_norm(nn.Linear(33 * 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.2)
        deviation = x.std(0).mean().expand(x.shape[0], 1, *x.shape[2:])
        return self.head(torch.cat([x, deviation], 1).flatten(1))


class Denoiser(nn.Module):
    """A small diffusion U-Net: time by sines, scale and shift, group norms, attention at the bottom, skips."""

    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, D), nn.SiLU(), nn.Linear(D, D))
        self.start, self.down, self.up = (
            nn.Conv2d(3, 16, 3, padding=1),
            nn.Conv2d(16, D, 4, 2, 1),
            nn.ConvTranspose2d(D, 16, 4, 2, 1),
        )
        self.blocks = nn.ModuleList([self._block(16, 16), self._block(D, D), self._block(32, 16)])
        self.norm, self.qkv, self.out = nn.GroupNorm(4, D), nn.Conv2d(D, 3 * D, 1), nn.Conv2d(D, D, 1)
        self.end = nn.Sequential(nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 3, 3, padding=1))

    @staticmethod
    def _block(a: int, b: int) -> nn.ModuleDict:
        parts = {"norm": nn.GroupNorm(4, a), "first": nn.Conv2d(a, b, 3, padding=1), "time": nn.Linear(D, 2 * b)}
        parts |= {"norm2": nn.GroupNorm(4, b), "second": nn.Conv2d(b, b, 3, padding=1), "skip": nn.Conv2d(a, b, 1)}
        return nn.ModuleDict(parts)

    @staticmethod
    def _run(block: nn.ModuleDict, x: Tensor, time: Tensor) -> Tensor:
        h = block["first"](F.silu(block["norm"](x)))
        scale, shift = block["time"](F.silu(time))[..., None, None].chunk(2, 1)
        h = block["second"](F.silu(block["norm2"](h) * (1 + scale) + shift))
        return block["skip"](x) + h

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        angles = step[:, None] * torch.exp(-math.log(1e4) * torch.arange(8) / 8)
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        first = self._run(self.blocks[0], self.start(x), time)
        h = self._run(self.blocks[1], self.down(first), time)
        q, k, v = self.qkv(self.norm(h)).flatten(2).mT.chunk(3, -1)
        h = h + self.out(F.scaled_dot_product_attention(q, k, v).mT.view_as(h))
        return self.end(self._run(self.blocks[2], torch.cat([self.up(h), first], 1), time))


class Capsules(nn.Module):
    """Capsules with three rounds of routing by agreement."""

    def __init__(self):
        super().__init__()
        self.conv, self.primary = nn.Conv2d(3, D, 5), nn.Conv2d(D, 32, 5, stride=2)
        self.weight = nn.Parameter(torch.randn(64, 5, 6, 8) * 0.1)

    @staticmethod
    def _squashed(x: Tensor) -> Tensor:
        square = x.square().sum(-1, keepdim=True)
        return square / (1 + square) * x / (square + 1e-8).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        u = self._squashed(self.primary(F.relu(self.conv(x))).view(x.shape[0], -1, 8))
        votes = torch.einsum("ijab,nib->nija", self.weight, u)
        logits = votes.new_zeros(votes.shape[:3])
        for _ in range(3):
            v = self._squashed((logits.softmax(2)[..., None] * votes).sum(1))
            logits = logits + (votes * v[:, None]).sum(-1)
        return v.norm(dim=-1)


def margin(out: Tensor) -> Tensor:
    target = F.one_hot(LABELS[: len(out)], 5)
    return (target * F.relu(0.9 - out) ** 2 + 0.5 * (1 - target) * F.relu(out - 0.1) ** 2).sum(1).mean()


class Fixup(nn.Module):
    """A residual network without norms: first convolutions scaled down, scalar biases and multipliers."""

    def __init__(self, blocks: int = 3):
        super().__init__()
        self.start, self.head = nn.Conv2d(3, D, 3, padding=1, bias=False), nn.Linear(D, 5)
        self.first = nn.ModuleList(nn.Conv2d(D, D, 3, padding=1, bias=False) for _ in range(blocks))
        self.second = nn.ModuleList(nn.Conv2d(D, D, 3, padding=1, bias=False) for _ in range(blocks))
        self.biases, self.scales = nn.Parameter(torch.zeros(blocks, 4)), nn.Parameter(torch.ones(blocks))
        for a, b in zip(self.first, self.second, strict=True):
            nn.init.normal_(a.weight, std=math.sqrt(2 / (9 * D)) * blocks**-0.5)
            nn.init.normal_(b.weight, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.start(x))
        for a, b, bias, scale in zip(self.first, self.second, self.biases, self.scales, strict=True):
            h = F.relu(a(x + bias[0]) + bias[1])
            x = F.relu(x + b(h + bias[2]) * scale + bias[3])
        return self.head(x.mean((-1, -2)))


class ConvLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.gates, self.head = nn.Conv2d(3 + 16, 64, 3, padding=1), nn.Conv2d(16, 3, 1)

    def forward(self, frames: Tensor) -> Tensor:
        h = c = frames.new_zeros(frames.shape[0], 16, *frames.shape[-2:])
        for t in range(frames.shape[1]):
            i, f, o, g = self.gates(torch.cat([frames[:, t], h], 1)).chunk(4, 1)
            c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.head(h)


class BilinearFeatures(nn.Module):
    """Products of all pairs of channels, signed roots, unit length."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU())
        self.head = nn.Linear(256, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x).flatten(2)
        y = (y @ y.mT / y.shape[-1]).flatten(1)
        return self.head(F.normalize(y.sign() * (y.abs() + 1e-5).sqrt(), dim=-1))


class Forecast(nn.Module):
    """Reversible instance norm, a moving average taken out, and one linear map over time for each part."""

    def __init__(self):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))
        self.trend, self.season = nn.Linear(24, 12), nn.Linear(24, 12)

    def forward(self, x: Tensor) -> Tensor:
        mean, deviation = x.mean(1, keepdim=True), (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        x = (x - mean) / deviation * self.gain + self.shift
        trend = F.avg_pool1d(F.pad(x.mT, (2, 2), mode="replicate"), 5, 1)
        y = self.trend(trend) + self.season(x.mT - trend)
        return (y.mT - self.shift) / (self.gain + 1e-10) * deviation + mean


class VariableSelection(nn.Module):
    """Gated residual networks that weigh the variables of a table, as in temporal fusion."""

    def __init__(self, variables: int = 5):
        super().__init__()
        self.embeds = nn.ModuleList(nn.Linear(1, 16) for _ in range(variables))
        self.weigh, self.each = (
            self._unit(16 * variables, variables),
            nn.ModuleList(self._unit(16, 16) for _ in range(variables)),
        )
        self.head = nn.Linear(16, 3)

    @staticmethod
    def _unit(size: int, out: int) -> nn.ModuleDict:
        parts = {"first": nn.Linear(size, 16), "second": nn.Linear(16, out), "gate": nn.Linear(out, 2 * out)}
        return nn.ModuleDict(parts | {"skip": nn.Linear(size, out), "norm": nn.LayerNorm(out)})

    @staticmethod
    def _run(unit: nn.ModuleDict, x: Tensor) -> Tensor:
        h = unit["second"](F.elu(unit["first"](x)))
        return unit["norm"](unit["skip"](x) + F.glu(unit["gate"](h), -1))

    def forward(self, x: Tensor) -> Tensor:
        parts = [embed(x[:, i : i + 1]) for i, embed in enumerate(self.embeds)]
        weights = self._run(self.weigh, torch.cat(parts, -1)).softmax(-1)
        each = torch.stack([self._run(unit, part) for unit, part in zip(self.each, parts, strict=True)], 1)
        return self.head((weights[..., None] * each).sum(1))


class NeuralProcess(nn.Module):
    """Context pairs averaged into one vector; targets decoded to a mean and a deviation."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(2, D), nn.ReLU(), nn.Linear(D, D))
        self.decode = nn.Sequential(nn.Linear(D + 1, D), nn.ReLU(), nn.Linear(D, 2))

    def forward(self, x: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        r = self.encode(torch.cat([x, y], -1)).mean(1, keepdim=True).expand(-1, target.shape[1], -1)
        mean, raw = self.decode(torch.cat([r, target], -1)).chunk(2, -1)
        return mean, 0.1 + 0.9 * F.softplus(raw)


def likelihood(out: tuple[Tensor, Tensor]) -> Tensor:
    return -torch.distributions.Normal(*out).log_prob(noise(4, 10, 1, seed=6)).mean()


class RowsAndColumns(nn.Module):
    """A table as cells that attend along features and then along rows."""

    def __init__(self):
        super().__init__()
        self.cell, self.feature = nn.Linear(1, D), nn.Parameter(torch.randn(6, D) * 0.5)
        self.along = nn.ModuleList(nn.MultiheadAttention(D, 4, batch_first=True) for _ in range(2))
        self.norms, self.head = nn.ModuleList(nn.LayerNorm(D) for _ in range(2)), weight_norm(nn.Linear(D, 3))

    def forward(self, table: Tensor) -> Tensor:
        x = self.cell(table[..., None]) + self.feature
        for attention, norm in zip(self.along, self.norms, strict=True):
            x = norm(x + attention(x, x, x, need_weights=False)[0]).transpose(0, 1)
        return self.head(x.mean(1))


class TargetAttention(nn.Module):
    """Deep interest network: a history weighed by a small network of each item and the candidate."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(50, 16)
        self.score = nn.Sequential(nn.Linear(64, 24), nn.PReLU(), nn.Linear(24, 1))
        self.deep = nn.Sequential(nn.Linear(32, 24), nn.BatchNorm1d(24), nn.PReLU(), nn.Linear(24, 1))

    def forward(self, history: Tensor, candidate: Tensor) -> Tensor:
        h, c = self.items(history), self.items(candidate)
        wide = c[:, None].expand_as(h)
        weights = self.score(torch.cat([h, wide, h - wide, h * wide], -1))
        return self.deep(torch.cat([(weights * h).sum(1), c], -1)).squeeze(-1)


class TwoTasks(nn.Module):
    """Two losses weighed by learned uncertainties, added up inside the model."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(D, D), nn.Mish(), nn.Linear(D, D), nn.Mish())
        self.label, self.value = nn.Linear(D, 5), nn.Linear(D, 1)
        self.logs = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        losses = torch.stack([F.cross_entropy(self.label(h), LABELS), self.value(h).square().mean()])
        return (torch.exp(-self.logs) * losses + self.logs).sum()


class ScoreNetwork(nn.Module):
    """Sliced score matching: a divergence by a random probe, differentiated again."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, D), nn.Softplus(), nn.Linear(D, D), nn.Softplus(), nn.Linear(D, 6))
        self.register_buffer("probe", noise(8, 6, seed=12).sign())

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        score = self.net(x)
        (along,) = torch.autograd.grad((score * self.probe).sum(), x, create_graph=True)
        return 0.5 * score.square().sum(-1) + (along * self.probe).sum(-1)


def cases() -> Iterator[Case]:
    def case(name: str, kind: str, *rest) -> Case:
        return Case(f"network/{name}", kind, *rest, added=5)

    yield case("chebyshev kan", "layers", ChebyshevKan, lambda: noise(8, D))
    yield case(
        "radiance field", "fields", RadianceField, lambda: (noise(6, 8, 3), F.normalize(noise(6, 3, seed=1), dim=-1))
    )
    yield case("hash grid", "fields", HashGrid, lambda: noise(32, 2).sigmoid())
    yield case("graph convolutions", "graphs", GraphConvolutions, lambda: noise(20, D))
    yield case("continuous filters", "graphs", ContinuousFilters, lambda: (ids(10, 20), noise(20, 3, seed=2)))
    yield case("differentiable pooling", "graphs", DifferentiablePooling, lambda: noise(4, 20, D))
    yield case("points turned", "sets", PointNet, lambda: noise(8, 3, 24), lambda out: F.cross_entropy(out, LABELS))
    yield case("spatial transformer", "images", SpatialTransformer, pixels)
    yield case("critic", "images", Critic, pixels, lambda out: F.softplus(-out).mean())
    yield case("denoiser", "diffusion", Denoiser, lambda: (pixels(), torch.tensor([1.0, 40.0, 300.0, 900.0])))
    yield case("capsules", "images", Capsules, lambda: pixels(4, 16), margin)
    yield case("fixup", "initialization", Fixup, pixels)
    yield case("convolutional lstm", "recurrent", ConvLSTM, lambda: noise(2, 4, 3, 8, 8))
    yield case("bilinear features", "images", BilinearFeatures, pixels)
    yield case("reversible forecast", "series", Forecast, lambda: noise(6, 24, 4))
    yield case("variable selection", "tables", VariableSelection, lambda: noise(16, 5))
    yield case(
        "neural process", "losses", NeuralProcess, lambda: tuple(noise(4, 10, 1, seed=s) for s in range(3)), likelihood
    )
    yield case("rows and columns", "tables", RowsAndColumns, lambda: noise(8, 6))
    yield case("target attention", "tables", TargetAttention, lambda: (ids(50, 12, 7), ids(50, 12, seed=1)))
    yield case("two tasks", "losses", TwoTasks, lambda: noise(8, D), lambda out: out)
    yield case("score matching", "losses", ScoreNetwork, lambda: noise(8, 6), lambda out: out.mean())
