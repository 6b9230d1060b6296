"""Half of the twelfth set: 50 networks of images, video, sound, graphs, tables, policies, generation and science.

Listed before any of them was predicted; no architecture is of the earlier sets. Forty are small, ten large; half have
their natural loss.
"""

# ruff: noqa: E731

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from studies.corpus.case import Case, ids, noise

# -- parts that several share


class Net(nn.Module):
    """Named parts and what the forward pass does with them."""

    def __init__(self, run: Callable[..., Any], **parts: Any):
        super().__init__()
        self.run = run
        for name, part in parts.items():
            keep = self.register_buffer if type(part) is Tensor else partial(setattr, self)
            keep(name, nn.ModuleList(part) if isinstance(part, list) else part)

    def forward(self, *inputs: Tensor) -> Any:
        return self.run(self, *inputs)


class Residual(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:
        return input + super().forward(input)


def init(model: Any, weight: Any, *kinds: type, bias: Any = nn.init.zeros_) -> Any:
    for module in model.modules():
        if isinstance(module, kinds or (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            weight(module.weight)
            if bias and getattr(module, "bias", None) is not None:
                bias(module.bias)
    return model


chain = nn.Sequential
fan_out = partial(nn.init.kaiming_normal_, mode="fan_out", nonlinearity="relu")
truncated = partial(nn.init.trunc_normal_, std=0.02)
normal = lambda std, mean=0.0: partial(nn.init.normal_, mean=mean, std=std)
xavier = lambda layer, gain=1.0: init(layer, partial(nn.init.xavier_uniform_, gain=gain))
zeros = lambda *shape: nn.Parameter(torch.zeros(*shape))
conv = lambda a, b, k=3, s=1, **kw: nn.Conv2d(a, b, k, s, k // 2, **kw)
split = lambda x, heads, parts=3: [y.unflatten(-1, (heads, -1)).transpose(-2, -3) for y in x.chunk(parts, -1)]
summed = lambda *parts: Net(lambda m, x: sum(part(x) for part in m.parts), parts=[*parts])
joined = lambda *parts: Net(lambda m, x: torch.cat([part(x) for part in m.parts], 1), parts=[*parts])
classifier = lambda a, b=10, drop=0.0: [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(drop), nn.Linear(a, b)]


def conv_bn(a: int, b: int, k: int = 3, s: int = 1, act: Any = nn.ReLU, eps: float = 1e-5, **kw: Any) -> nn.Module:
    return chain(conv(a, b, k, s, **{"bias": False, **kw}), nn.BatchNorm2d(b, eps), act())


def mlp(*sizes: int, act: Any = nn.ReLU, **kw: Any) -> nn.Sequential:
    return chain(*[part for a, b in pairwise(sizes) for part in (nn.Linear(a, b, **kw), act())][:-1])


def basic(a: int, b: int, s: int = 1) -> nn.Module:
    skip = conv_bn(a, b, 1, s, nn.Identity) if a != b else nn.Identity()
    return chain(summed(chain(conv_bn(a, b, s=s), conv_bn(b, b, act=nn.Identity)), skip), nn.ReLU())


def trunk(s: int = 1) -> nn.Sequential:  # of a ResNet
    return init(chain(conv_bn(3, 32, s=s), basic(32, 32), basic(32, 64, 2), basic(64, 128, 2)), fan_out, nn.Conv2d)


def attention(dim: int, heads: int) -> nn.Module:
    run = lambda m, x: m.proj(F.scaled_dot_product_attention(*split(m.qkv(x), heads)).transpose(1, 2).flatten(2))
    return Net(run, qkv=nn.Linear(dim, 3 * dim), proj=nn.Linear(dim, dim))


def blocks(depth: int, dim: int, heads: int) -> nn.Sequential:
    two = lambda: (Residual(nn.LayerNorm(dim), attention(dim, heads)), Residual(nn.LayerNorm(dim), feed(dim)))
    return chain(*(part for _ in range(depth) for part in two()))


feed = lambda dim, hidden=0: mlp(dim, hidden or 4 * dim, dim, act=nn.GELU)


def waves(at: Tensor, dim: int) -> Tensor:
    angles = at.float()[..., None] * 1e4 ** -(torch.arange(dim // 2) / (dim // 2))
    return torch.cat([angles.sin(), angles.cos()], -1)


# -- losses


labels = lambda count, classes=10: ids(classes, count, seed=5)
against = lambda loss: lambda o: loss(o, noise(*o.shape, seed=5))
squared = against(F.mse_loss)
cross = lambda o, smooth=0.0: F.cross_entropy(o, labels(len(o), o.shape[1]), label_smoothing=smooth)
binary = lambda o: F.binary_cross_entropy_with_logits(o.flatten(), labels(o.numel(), 2).float())
of_shares = lambda o: F.binary_cross_entropy(o.flatten(), labels(o.numel(), 2).float())
played = lambda o: F.cross_entropy(o[0], noise(*o[0].shape, seed=5).softmax(1)) + cross(o[1]) + squared(o[2])


# -- images


def googlenet() -> nn.Module:
    one, pool = partial(conv_bn, eps=1e-3), partial(nn.MaxPool2d, ceil_mode=True)

    def inception(a: int, b: int, c: int, d: int, e: int, f: int, g: int) -> nn.Module:
        branches = chain(one(a, c, 1), one(c, d)), chain(one(a, e, 1), one(e, f)), chain(pool(3, 1, 1), one(a, g, 1))
        return joined(one(a, b, 1), *branches)

    low = [one(3, 24, 5, 2), one(24, 24, 1), one(24, 48), inception(48, 16, 24, 32, 4, 8, 8)]
    low += [inception(64, 32, 32, 48, 8, 24, 16), pool(3, 2), inception(120, 48, 24, 52, 4, 12, 16)]
    high = [inception(128, 40, 28, 56, 6, 16, 16), pool(2, 2), inception(128, 64, 40, 80, 8, 32, 32)]
    aux = [nn.AdaptiveAvgPool2d(4), one(128, 32, 1), nn.Flatten(), nn.Linear(512, 256), nn.ReLU(), nn.Dropout(0.7)]
    parts = {"high": chain(*high, *classifier(208, 10, 0.2)), "aux": chain(*aux, nn.Linear(256, 10))}
    model = Net(lambda m, x: (m.high(x := m.low(x)), m.aux(x)), low=chain(*low), **parts)
    return init(model, partial(nn.init.trunc_normal_, std=0.01), nn.Conv2d, nn.Linear, bias=None)


def densenet(grow: int = 12) -> nn.Module:
    before = lambda a, b, k: [nn.BatchNorm2d(a), nn.ReLU(), conv(a, b, k, bias=False)]
    layer = lambda a: joined(nn.Identity(), chain(*before(a, 4 * grow, 1), *before(4 * grow, grow, 3)))
    dense, halve = lambda a: [layer(a + n * grow) for n in range(4)], lambda a: [*before(a, a // 2, 1), nn.AvgPool2d(2)]
    body = [*dense(24), *halve(72), *dense(36), *halve(84), *dense(42), nn.BatchNorm2d(90), nn.ReLU()]
    model = chain(conv(3, 24, bias=False), *body, *classifier(90))
    return init(init(model, nn.init.kaiming_normal_, nn.Conv2d), lambda weight: None, nn.Linear)


def shuffle_net() -> nn.Module:
    mixed = lambda *parts: torch.cat(parts, 1).unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
    deep = lambda a, s: [conv(a, a, 3, s, groups=a, bias=False), nn.BatchNorm2d(a)]
    side = lambda a, b, s: chain(conv_bn(a, b, 1), *deep(b, s), conv_bn(b, b, 1))
    left = lambda a, b: chain(*deep(a, 2), conv_bn(a, b, 1))
    down = lambda a, b: Net(lambda m, x: mixed(m.left(x), m.right(x)), left=left(a, b), right=side(a, b, 2))
    half = lambda m, x: mixed(x.chunk(2, 1)[0], m.right(x.chunk(2, 1)[1]))
    same = lambda a: Net(half, right=side(a, a, 1))
    return chain(conv_bn(3, 24), down(24, 48), same(48), down(96, 96), same(96), conv_bn(192, 256, 1), *classifier(256))


def efficient_net(sizes: list[tuple[int, ...]], last: int, eps: float, drop: float, classes: int = 10) -> nn.Module:
    bn, count = partial(conv_bn, act=nn.SiLU, eps=eps), sum(size[-1] for size in sizes)

    def excite(hidden: int, squeezed: int) -> nn.Module:
        net = [nn.AdaptiveAvgPool2d(1), nn.Conv2d(hidden, squeezed, 1), nn.SiLU(), nn.Conv2d(squeezed, hidden, 1)]
        return Net(lambda m, x: x * m.net(x), net=chain(*net, nn.Sigmoid()))

    def dropped(p: float) -> nn.Module:  # a block for a whole image
        return Net(lambda m, x: x * x.new_empty(len(x), 1, 1, 1).bernoulli_(1.0 - p) / (1.0 - p))

    def block(fused: int, a: int, b: int, k: int, s: int, ratio: int, p: float) -> nn.Module:
        hidden, project = a * ratio, conv_bn(a * ratio, b, 1, act=nn.Identity, eps=eps)
        deep = [bn(hidden, hidden, k, s, groups=hidden), excite(hidden, a // 4)]
        parts = [bn(a, hidden, k, s)] if fused else [bn(a, hidden, 1), *deep] if ratio > 1 else deep
        parts = parts if fused and ratio == 1 else [*parts, project]
        return Residual(*parts, dropped(p)) if a == b and s == 1 else chain(*parts)

    body: list[nn.Module] = [bn(3, sizes[0][4], 3, 2)]
    for fused, ratio, k, s, a, b, depth in sizes:
        for n in range(depth):
            body.append(block(fused, b if n else a, b, k, 1 if n else s, ratio, 0.2 * (len(body) - 1) / count))
    model = chain(*body, bn(sizes[-1][5], last, 1), *classifier(last, classes, drop))
    bound = len(model[-1].weight) ** -0.5
    return init(init(model, fan_out, nn.Conv2d), lambda weight: nn.init.uniform_(weight, -bound, bound), nn.Linear)


B0 = [(0, 1, 3, 1, 32, 16, 1), (0, 6, 3, 2, 16, 24, 2), (0, 6, 5, 2, 24, 40, 2), (0, 6, 3, 2, 40, 80, 2)]
V2_L = [(1, 1, 3, 1, 32, 32, 4), (1, 4, 3, 2, 32, 64, 7), (1, 4, 3, 2, 64, 96, 7), (0, 4, 3, 2, 96, 192, 10)]
V2_L += [(0, 6, 3, 1, 192, 224, 19), (0, 6, 3, 2, 224, 384, 25), (0, 6, 3, 1, 384, 640, 7)]


def mixer(dim: int = 96, patches: int = 64) -> nn.Module:
    mixed = lambda a, hidden, layer: [layer(a, hidden), nn.GELU(), nn.Dropout(0.0), layer(hidden, a), nn.Dropout(0.0)]
    tokens = lambda: Residual(nn.LayerNorm(dim), *mixed(patches, 4 * patches, partial(nn.Conv1d, kernel_size=1)))
    channels = lambda: Residual(nn.LayerNorm(dim), *mixed(dim, dim // 2, nn.Linear))
    body = [part for _ in range(4) for part in (tokens(), channels())]
    cut = Net(lambda m, x: F.pixel_unshuffle(x, 4).flatten(2).mT)
    mean = Net(lambda m, x: x.mean(1))
    return chain(cut, nn.Linear(48, dim), *body, nn.LayerNorm(dim), mean, nn.Linear(dim, 10))


def wide_resnet(depths: tuple[int, ...] = (3, 4, 23, 3), classes: int = 1000) -> nn.Module:
    body: list[nn.Module] = [conv_bn(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    a = 64
    for stage, depth in enumerate(depths):
        for n in range(depth):
            inner, b, s = 128 * 2**stage, 256 * 2**stage, 2 if stage and not n else 1
            parts = conv_bn(a, inner, 1), conv_bn(inner, inner, s=s), conv_bn(inner, b, 1, act=nn.Identity)
            skip = nn.Identity() if n else conv_bn(a, b, 1, s, nn.Identity)
            body, a = [*body, summed(chain(*parts), skip), nn.ReLU()], b
    return init(chain(*body, *classifier(a, classes)), fan_out, nn.Conv2d)


def rep_vgg() -> nn.Module:
    def block(a: int, b: int, s: int = 1) -> nn.Module:
        normed = lambda k: chain(conv(a, b, k, s, bias=False), nn.BatchNorm2d(b))
        return chain(summed(normed(3), normed(1), *([nn.BatchNorm2d(a)] if a == b else [])), nn.ReLU())

    body = [block(3, 24, 2), block(24, 24), block(24, 48, 2), block(48, 48), block(48, 48), block(48, 96, 2)]
    return chain(*body, *classifier(96))


def arc_face(people: int = 20, dim: int = 64) -> nn.Module:
    def run(m: Any, x: Tensor, own: Tensor) -> Tensor:
        angles = F.linear(F.normalize(m.features(x)), F.normalize(m.weight)).clamp(-1.0, 1.0).arccos()
        return 64.0 * (angles + 0.5 * F.one_hot(own, people)).cos()

    def block(a: int, b: int) -> nn.Module:
        deep = [nn.BatchNorm2d(a), conv(a, b, bias=False), nn.BatchNorm2d(b), nn.PReLU(b), conv(b, b, 3, 2, bias=False)]
        return summed(chain(*deep, nn.BatchNorm2d(b)), conv_bn(a, b, 1, 2, nn.Identity))

    body = [conv(3, 24, bias=False), nn.BatchNorm2d(24), nn.PReLU(24), block(24, 48), block(48, 96), nn.BatchNorm2d(96)]
    last = nn.BatchNorm1d(dim)
    last.weight.requires_grad = False
    body = [*init(chain(*body), normal(0.1), nn.Conv2d), nn.Flatten(), nn.Linear(96 * 16, dim), last]
    return Net(run, features=chain(*body), weight=normal(0.01)(zeros(people, dim)))


def moco(dim: int = 64, kept: int = 512) -> nn.Module:
    def run(m: Any, a: Tensor, b: Tensor) -> Tensor:
        q = F.normalize(m.q(a))
        with torch.no_grad():
            k = F.normalize(m.k(b))
        return torch.cat([(q * k).sum(1, keepdim=True), q @ m.queue], 1) / 0.07

    q = chain(trunk(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), mlp(128, 128, dim))
    return Net(run, q=q, k=deepcopy(q).requires_grad_(False), queue=F.normalize(torch.randn(dim, kept), dim=0))


def dino(dim: int = 96, out: int = 256) -> nn.Module:
    def seen(m: Any, x: Tensor) -> Tensor:
        x = torch.cat([m.cls.expand(len(x), -1, -1), m.patch(x).flatten(2).mT], 1) + m.places
        return m.last(F.normalize(m.head(m.norm(m.blocks(x))[:, 0])))

    def run(m: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            target = ((m.teacher(torch.cat([b, a])) - m.center) / 0.04).softmax(1)
        return m.student(torch.cat([a, b])) / 0.1, target

    parts = {"patch": nn.Conv2d(3, dim, 4, 4), "blocks": blocks(3, dim, 4), "norm": nn.LayerNorm(dim)}
    parts |= {"cls": truncated(zeros(1, 1, dim)), "places": truncated(zeros(1, 65, dim))}
    student = init(Net(seen, **parts, head=mlp(dim, 192, 192, 48, act=nn.GELU)), truncated, nn.Linear)
    student.last = last = weight_norm(nn.Linear(48, out, bias=False))
    last.parametrizations.weight.original0.data.fill_(1.0).requires_grad_(False)
    return Net(run, student=student, teacher=deepcopy(student).requires_grad_(False), center=torch.zeros(1, out))


def film(words: int = 40, dim: int = 48, depth: int = 3) -> nn.Module:
    def placed(m: Any, x: Tensor) -> Tensor:
        sides = [torch.linspace(-1.0, 1.0, side) for side in x.shape[2:]]
        return torch.cat([x, torch.stack(torch.meshgrid(*sides, indexing="ij")).expand(len(x), -1, -1, -1)], 1)

    def block(m: Any, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        x = m.project(x)
        return x + F.relu((1.0 + gamma)[..., None, None] * m.norm(m.conv(x)) + beta[..., None, None])

    def run(m: Any, x: Tensor, question: Tensor) -> Tensor:
        by, x = m.film(m.gru(m.embed(question))[0][:, -1]).unflatten(1, (depth, 2, dim)), m.stem(x)
        for n, part in enumerate(m.parts):
            x = part(x, by[:, n, 0], by[:, n, 1])
        return m.classifier(x)

    project = lambda b: [Net(placed), conv(dim + 2, b, 1)]
    maps = lambda: {"project": chain(*project(dim), nn.ReLU()), "conv": conv(dim, dim)}
    parts = [Net(block, **maps(), norm=nn.BatchNorm2d(dim, affine=False)) for _ in range(depth)]
    head = [*project(96), nn.BatchNorm2d(96), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(96, 128)]
    model = Net(run, embed=nn.Embedding(words, 32), gru=nn.GRU(32, 96, batch_first=True), parts=parts)
    model.stem, model.film = chain(conv_bn(3, dim, s=2), conv_bn(dim, dim)), nn.Linear(96, 2 * depth * dim)
    model.classifier = chain(*head, nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 12))
    return init(model, nn.init.kaiming_uniform_, nn.Conv2d, nn.Linear, bias=None)


# -- video and dense prediction


def r2plus1d() -> nn.Module:
    def factored(a: int, b: int, s: int = 1, k: int = 3, mid: int = 0) -> nn.Module:
        mid = mid or a * b * 27 // (a * 9 + 3 * b)
        maps = nn.Conv3d(a, mid, (1, k, k), (1, s, s), (0, k // 2, k // 2), bias=False), nn.BatchNorm3d(mid), nn.ReLU()
        return chain(*maps, nn.Conv3d(mid, b, (3, 1, 1), (s, 1, 1), (1, 0, 0), bias=False), nn.BatchNorm3d(b))

    def block(a: int, b: int, s: int = 1) -> nn.Module:
        skip = chain(nn.Conv3d(a, b, 1, s, bias=False), nn.BatchNorm3d(b)) if s > 1 else nn.Identity()
        return chain(summed(chain(factored(a, b, s), nn.ReLU(), factored(b, b)), skip), nn.ReLU())

    body = [factored(3, 24, 1, 7, 20), nn.ReLU(), block(24, 24), block(24, 48, 2), block(48, 96, 2)]
    model = chain(*body, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(96, 10))
    return init(init(model, fan_out, nn.Conv3d), normal(0.01), nn.Linear)


def temporal_shift(frames: int = 4) -> nn.Module:
    def moved(m: Any, x: Tensor) -> Tensor:
        back, ahead, rest = x.unflatten(0, (-1, frames)).tensor_split([x.shape[1] // 8, x.shape[1] // 4], 2)
        back, ahead = F.pad(back[:, 1:], (0,) * 7 + (1,)), F.pad(ahead[:, :-1], (0,) * 6 + (1, 0))
        return m.conv(torch.cat([back, ahead, rest], 2).flatten(0, 1))

    body = trunk()
    for part in body[1:]:
        part[0].parts[0][0][0] = Net(moved, conv=part[0].parts[0][0][0])
    head = init(chain(*classifier(128, 10, 0.5)), normal(0.001))
    return Net(lambda m, x: m.head(m.body(x.flatten(0, 1))).unflatten(0, (-1, frames)).mean(1), body=body, head=head)


def conv_lstm(width: int = 24) -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        empty = x.new_zeros(len(x), width, *x.shape[3:])
        states, made = [(empty, empty) for _ in m.cells], []
        for h in x.unbind(1):
            for n, cell in enumerate(m.cells):
                i, f, o, g = cell(torch.cat([h, states[n][0]], 1)).chunk(4, 1)
                memory = f.sigmoid() * states[n][1] + i.sigmoid() * g.tanh()
                h = o.sigmoid() * memory.tanh()
                states[n] = h, memory
            made.append(m.head(h))
        return torch.stack(made, 1)

    return Net(run, cells=[conv(1 + width, 4 * width), conv(2 * width, 4 * width)], head=conv(width, 1, 1))


def attention_unet(widths: tuple[int, ...] = (16, 32, 64, 128)) -> nn.Module:
    def gated(m: Any, x: Tensor, skip: Tensor) -> Tensor:
        x = m.up(x)
        return m.merge(torch.cat([skip * m.psi(F.relu(m.g(x) + m.x(skip))), x], 1))

    def run(m: Any, x: Tensor) -> Tensor:
        skips = [x := down(x) for down in m.downs]
        for up, skip in zip(m.ups, skips[-2::-1], strict=True):
            x = up(x, skip)
        return m.head(x)

    two, flat = lambda a, b: [conv_bn(a, b, bias=True), conv_bn(b, b, bias=True)], partial(conv_bn, k=1, bias=True)
    gates = lambda a: {"g": flat(a, a // 2, act=nn.Identity), "x": flat(a, a // 2, act=nn.Identity)}
    psi = lambda a: flat(a // 2, 1, act=nn.Sigmoid)
    up = lambda a, b: chain(nn.Upsample(scale_factor=2), conv_bn(a, b, bias=True))
    parts = lambda a, b: {"up": up(b, a), **gates(a), "psi": psi(a), "merge": chain(*two(2 * a, a))}
    ups = [Net(gated, **parts(a, b)) for a, b in reversed([*pairwise(widths)])]
    downs = [chain(*two(3, widths[0])), *(chain(nn.MaxPool2d(2), *two(a, b)) for a, b in pairwise(widths))]
    model = init(Net(run, downs=downs, ups=ups, head=conv(widths[0], 1, 1)), normal(0.02), nn.Conv2d)
    return init(model, normal(0.02, 1.0), nn.BatchNorm2d)


def deeplab(classes: int = 6) -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        low, raised = m.low(x), partial(F.interpolate, mode="bilinear", align_corners=False)
        y = raised(m.aspp(m.high(low)), low.shape[2:])
        return raised(m.head(torch.cat([m.project(low), y], 1)), x.shape[2:])

    dilated = lambda d: chain(nn.Conv2d(128, 48, 3, 1, d, d, bias=False), nn.BatchNorm2d(48), nn.ReLU())
    wide = lambda m, x: m.body(x).expand(-1, -1, *x.shape[2:])
    pooled = Net(wide, body=chain(nn.AdaptiveAvgPool2d(1), conv_bn(128, 48, 1)))
    branches = joined(conv_bn(128, 48, 1), dilated(2), dilated(4), dilated(6), pooled)
    aspp = chain(branches, conv_bn(240, 48, 1), nn.Dropout(0.1))
    ends = {"aspp": aspp, "project": conv_bn(32, 16, 1), "head": chain(conv_bn(64, 48), conv(48, classes, 1))}
    model, body = init(Net(run, **ends), nn.init.kaiming_normal_, nn.Conv2d), trunk(2)
    model.low, model.high = body[:2], body[2:]
    return model


def edsr(width: int = 48) -> nn.Module:
    two = lambda: chain(conv(width, width), nn.ReLU(), conv(width, width))
    res = lambda: Net(lambda m, x: x + 0.1 * m.body(x), body=two())
    deep = [conv(3, width), Residual(res(), res(), res(), res(), conv(width, width)), conv(width, 4 * width)]
    mean = 255.0 * torch.tensor([0.4488, 0.4371, 0.4040])[:, None, None]
    body = chain(*deep, nn.PixelShuffle(2), conv(width, 3))
    return Net(lambda m, x: m.body(x - m.mean) + m.mean, body=body, mean=mean)


# -- sound


def wavenet(levels: int = 64, width: int = 32, skips: int = 48, local: int = 12) -> nn.Module:
    def layer(m: Any, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        y = F.pad(x, (m.gate.dilation[0], 0))
        y = torch.sigmoid(m.gate(y) + m.by_gate(h)) * torch.tanh(m.filter(y) + m.by_filter(h))
        return x + m.out(y), m.skip(y)

    def run(m: Any, x: Tensor, h: Tensor) -> Tensor:
        x, total = m.causal(F.pad(F.one_hot(x, levels).float().mT, (1, 0))), []
        for part in m.layers:
            x, skip = part(x, h)
            total.append(skip)
        return m.post(sum(total))

    def make(d: int) -> nn.Module:
        gates = {name: nn.Conv1d(width, width, 2, dilation=d) for name in ("gate", "filter")}
        flat = {"by_gate": (local, width), "by_filter": (local, width), "out": (width, width), "skip": (width, skips)}
        return Net(layer, **gates, **{name: nn.Conv1d(a, b, 1) for name, (a, b) in flat.items()})

    post = chain(nn.ReLU(), nn.Conv1d(skips, skips, 1), nn.ReLU(), nn.Conv1d(skips, levels, 1))
    layers = [make(2 ** (n % 4)) for n in range(8)]
    return xavier(Net(run, causal=nn.Conv1d(levels, width, 2), layers=layers, post=post))


def hifi_gan(width: int = 96) -> nn.Module:
    normed = lambda a, b, k, d=1: weight_norm(nn.Conv1d(a, b, k, 1, (k - 1) * d // 2, d))
    act = lambda: nn.LeakyReLU(0.1)
    res = lambda a, k: chain(*(Residual(act(), normed(a, a, k, d), act(), normed(a, a, k)) for d in (1, 3, 5)))
    mean = lambda a: Net(lambda m, x: sum(part(x) for part in m.parts) / 2, parts=[res(a, 3), res(a, 7)])
    up = lambda a: [act(), weight_norm(nn.ConvTranspose1d(a, a // 2, 8, 4, 2)), mean(a // 2)]
    return chain(normed(80, width, 7), *up(width), *up(width // 2), nn.LeakyReLU(), normed(width // 4, 1, 7), nn.Tanh())


def panns(classes: int = 20) -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.body(m.norm(x.transpose(1, 3)).transpose(1, 3)).mean(3)
        x = F.relu(m.fc(m.drop(x.amax(2) + x.mean(2))))
        return m.head(m.drop(x)).sigmoid()

    block = lambda a, b: [conv_bn(a, b), conv_bn(b, b), nn.AvgPool2d(2), nn.Dropout(0.2)]
    ends = {"drop": nn.Dropout(), "fc": nn.Linear(96, 96), "head": nn.Linear(96, classes)}
    return xavier(Net(run, norm=nn.BatchNorm2d(32), body=chain(*block(1, 24), *block(24, 48), *block(48, 96)), **ends))


def demucs(width: int = 16, depth: int = 3, sources: int = 4) -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        skips = [x := down(x) for down in m.downs]
        x = m.linear(m.lstm(x.permute(2, 0, 1))[0]).permute(1, 2, 0)
        for up, skip in zip(m.ups, reversed(skips), strict=True):
            over = skip.shape[2] - x.shape[2]
            x = up(x + skip[..., over // 2 : over // 2 + x.shape[2]])
        return x.unflatten(1, (sources, 2))

    sizes, glu = [*pairwise((2, *(width * 2**n for n in range(depth))))], partial(nn.GLU, dim=1)
    downs = [chain(nn.Conv1d(a, b, 8, 4), nn.ReLU(), nn.Conv1d(b, 2 * b, 1), glu()) for a, b in sizes]
    back = lambda a, b: [nn.Conv1d(b, 2 * b, 3), glu(), nn.ConvTranspose1d(b, a, 8, 4)]
    ups = [*(chain(*back(a, b), nn.ReLU()) for a, b in sizes[:0:-1]), chain(*back(2 * sources, width))]
    top = sizes[-1][1]
    deep = {"lstm": nn.LSTM(top, top, 2, bidirectional=True), "linear": nn.Linear(2 * top, top)}
    model = Net(run, downs=downs, **deep, ups=ups)
    for part in model.modules():
        if isinstance(part, (nn.Conv1d, nn.ConvTranspose1d)):
            scale = (part.weight.detach().std() / 0.1) ** 0.5
            part.weight.data, part.bias.data = part.weight.data / scale, part.bias.data / scale
    return model


# -- the list


def cases() -> Iterator[Case]:
    image, wide, large = partial(noise, 4, 3, 16, 16), partial(noise, 4, 3, 32, 32), partial(noise, 2, 3, 64, 64)
    pair = lambda *shape: lambda: (noise(*shape), noise(*shape, seed=1))
    pixels = lambda o: F.l1_loss(o, ids(256, *o.shape, seed=5).float())
    first = lambda o: F.cross_entropy(o, torch.zeros(len(o), dtype=torch.long))
    faces, distilled = lambda o: F.cross_entropy(o, ids(20, 8)), lambda o: -(o[1] * o[0].log_softmax(1)).sum(1).mean()
    listed: list[tuple[str, Any, Callable[[], Any], Any]] = [
        ("googlenet", googlenet, wide, lambda o: cross(o[0]) + 0.3 * cross(o[1])), ("densenet", densenet, image, None),
        ("shufflenet v2", shuffle_net, image, None), ("mlp-mixer", mixer, wide, None), ("repvgg", rep_vgg, wide, None),
        ("efficientnet", partial(efficient_net, B0, 320, 1e-5, 0.2), wide, cross),
        ("arcface", arc_face, lambda: (noise(8, 3, 16, 16), ids(20, 8)), faces),
        ("moco", moco, pair(8, 3, 16, 16), first), ("dino", dino, pair(4, 3, 32, 32), distilled),
        ("film", film, lambda: (noise(8, 3, 16, 16), ids(40, 8, 9)), None),
        ("r(2+1)d", r2plus1d, partial(noise, 2, 3, 8, 24, 24), None),
        ("tsm", temporal_shift, partial(noise, 2, 4, 3, 16, 16), None),
        ("convlstm", conv_lstm, partial(noise, 2, 6, 1, 16, 16), squared),
        ("attention unet", attention_unet, wide, binary), ("deeplab v3+", deeplab, partial(noise, 4, 3, 48, 48), None),
        ("edsr", edsr, lambda: ids(256, 2, 3, 16, 16).float(), pixels),
        ("wavenet", wavenet, lambda: (ids(64, 2, 64), noise(2, 12, 64)), None),
        ("hifi-gan", hifi_gan, partial(noise, 2, 80, 12), None), ("demucs", demucs, partial(noise, 2, 2, 468), None),
        ("panns", panns, partial(noise, 4, 1, 64, 32), of_shares),
        ("large efficientnet v2", partial(efficient_net, V2_L, 1280, 1e-3, 0.4, 1000), large, cross),
        ("large wide resnet", wide_resnet, large, cross),
        ("large demucs", partial(demucs, 80, 5), partial(noise, 1, 2, 5460), None),
    ]  # fmt: skip
    for name, make, batch, loss in listed:
        yield Case(f"twelfth/{name}", "own code", make, batch, loss)
