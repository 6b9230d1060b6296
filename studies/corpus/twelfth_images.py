"""Half of the twelfth set: 50 networks of images, video, sound, graphs, tables, policies, generation and science.

Listed before any of them was predicted; no architecture is of the ninth, tenth or eleventh. Forty are small, ten large;
half have their natural loss, the others noise.
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
from studies.corpus.eleventh_images import Net, Residual

# -- parts and losses that several share


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
xavier = lambda layer: init(layer, nn.init.xavier_uniform_)
zeros = lambda *shape: nn.Parameter(torch.zeros(*shape))
within = lambda layer, r: init(layer, lambda w: nn.init.uniform_(w, -r, r), type(layer), bias=None)
conv = lambda a, b, k=3, s=1, **kw: nn.Conv2d(a, b, k, s, k // 2, **kw)
split = lambda x, heads: [y.unflatten(-1, (heads, -1)).transpose(-2, -3) for y in x.chunk(3, -1)]
feed = lambda dim: mlp(dim, 4 * dim, dim, act=nn.GELU)
trunk = lambda s=1: init(chain(conv_bn(3, 32, s=s), basic(32, 32), basic(32, 64, 2), basic(64, 128, 2)), fan_out)
dropping = lambda a, b: [nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(), nn.Dropout(0.2)]
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


def attention(dim: int, heads: int) -> nn.Module:
    run = lambda m, x: m.proj(F.scaled_dot_product_attention(*split(m.qkv(x), heads)).transpose(1, 2).flatten(2))
    return Net(run, qkv=nn.Linear(dim, 3 * dim), proj=nn.Linear(dim, dim))


def blocks(depth: int, dim: int, heads: int) -> nn.Sequential:
    two = lambda: (Residual(nn.LayerNorm(dim), attention(dim, heads)), Residual(nn.LayerNorm(dim), feed(dim)))
    return chain(*(part for _ in range(depth) for part in two()))


labels = lambda count, classes=10: ids(classes, count, seed=5)
against = lambda loss: lambda o: loss(o, noise(*o.shape, seed=5))
squared = against(F.mse_loss)
cross = lambda o, smooth=0.0: F.cross_entropy(o, labels(len(o), o.shape[1]), label_smoothing=smooth)
binary = lambda o: F.binary_cross_entropy_with_logits(o.flatten(), labels(o.numel(), 2).float())
of_shares = lambda o: F.binary_cross_entropy(o.flatten(), labels(o.numel(), 2).float())
played = lambda o: F.cross_entropy(o[0], noise(*o[0].shape, seed=5).softmax(1)) + cross(o[1]) + squared(o[2])


# -- images, video, sound


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
    net = lambda a, b: chain(nn.AdaptiveAvgPool2d(1), nn.Conv2d(a, b, 1), nn.SiLU(), nn.Conv2d(b, a, 1), nn.Sigmoid())
    excite = lambda a, b: Net(lambda m, x: x * m.net(x), net=net(a, b))
    kept = lambda x, p: x.new_empty(len(x), 1, 1, 1).bernoulli_(1.0 - p) / (1.0 - p)  # a block drops whole images

    def block(fused: int, a: int, b: int, k: int, s: int, ratio: int, p: float) -> nn.Module:
        hidden, project = a * ratio, conv_bn(a * ratio, b, 1, act=nn.Identity, eps=eps)
        deep = [bn(hidden, hidden, k, s, groups=hidden), excite(hidden, a // 4)]
        parts = [bn(a, hidden, k, s)] if fused else [bn(a, hidden, 1), *deep] if ratio > 1 else deep
        parts = parts if fused and ratio == 1 else [*parts, project]
        return Residual(*parts, Net(lambda m, x: x * kept(x, p))) if a == b and s == 1 else chain(*parts)

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
    cut, mean = Net(lambda m, x: F.pixel_unshuffle(x, 4).flatten(2).mT), Net(lambda m, x: x.mean(1))
    return chain(cut, nn.Linear(48, dim), *body, nn.LayerNorm(dim), mean, nn.Linear(dim, 10))


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


def captioner(words: int = 60, dim: int = 64) -> nn.Module:
    run = lambda m, x, text: m.head(m.lstm(torch.cat([m.image(x)[:, None], m.table(text)], 1))[0])
    image = [trunk(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, dim), nn.BatchNorm1d(dim, momentum=0.01)]
    parts = {"image": chain(*image), "table": nn.Embedding(words, dim), "head": nn.Linear(dim, words)}
    return Net(run, **parts, lstm=nn.LSTM(dim, dim, batch_first=True))


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

    two = lambda a, b: [conv_bn(a, b, bias=True), conv_bn(b, b, bias=True)]
    flat = partial(conv_bn, k=1, act=nn.Identity, bias=True)
    gates = lambda a: {"g": flat(a, a // 2), "x": flat(a, a // 2), "psi": flat(a // 2, 1, act=nn.Sigmoid)}
    up = lambda a, b: chain(nn.Upsample(scale_factor=2), conv_bn(a, b, bias=True))
    parts = lambda a, b: {"up": up(b, a), **gates(a), "merge": chain(*two(2 * a, a))}
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


def hifi_gan(width: int = 96) -> nn.Module:
    # the normal weights that its repository sets then are derived from others by the norm and change nothing
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
    lstm = nn.LSTM(sizes[-1][1], sizes[-1][1], 2, bidirectional=True)
    model = Net(run, downs=downs, lstm=lstm, linear=nn.Linear(2 * sizes[-1][1], sizes[-1][1]), ups=ups)
    for part in model.modules():
        if isinstance(part, (nn.Conv1d, nn.ConvTranspose1d)):
            scale = (part.weight.detach().std() / 0.1) ** 0.5
            part.weight.data, part.bias.data = part.weight.data / scale, part.bias.data / scale
    return model


# -- graphs, points, tables, policies, values, generation, science


def gat(seen: int = 50, dim: int = 8, heads: int = 6, classes: int = 5, nodes: int = 40) -> nn.Module:
    def head(m: Any, x: Tensor) -> Tensor:
        left, right = (h := x @ m.weight) @ m.a.chunk(2)[0], h @ m.a.chunk(2)[1]
        scores = F.leaky_relu(left + right.mT, 0.2).masked_fill(m.links == 0, -9e15)
        return F.elu(m.drop(scores.softmax(1)) @ h)

    of = lambda a, b: nn.init.xavier_uniform_(zeros(a, b), gain=1.414)
    links = ((noise(nodes, nodes) > 1.2) | torch.eye(nodes, dtype=torch.bool)).float()
    make = lambda a, b: Net(head, weight=of(a, b), a=of(2 * b, 1), links=links, drop=nn.Dropout(0.6))
    body = joined(*(make(seen, dim) for _ in range(heads)))
    return chain(nn.Dropout(0.6), body, nn.Dropout(0.6), make(heads * dim, classes), nn.LogSoftmax(1))


def egnn(dim: int = 32, count: int = 5) -> nn.Module:
    def layer(m: Any, h: Tensor, x: Tensor, v: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        apart, both = x[:, :, None] - x[:, None], (len(x), count, count, dim)
        ends = [h[:, :, None].expand(both), h[:, None].expand(both), apart.square().sum(-1, keepdim=True), edges]
        message = m.edge(torch.cat(ends, -1)) * (1.0 - torch.eye(count))[..., None]
        x = x + (apart * m.coord(message)).sum(2) / (count - 1) + m.speed(h) * v
        return h + m.node(torch.cat([h, message.sum(2)], -1)), x

    def run(m: Any, x: Tensor, v: Tensor, edges: Tensor) -> Tensor:
        h = m.start(v.norm(dim=-1, keepdim=True))
        for part in m.layers:
            h, x = part(h, x, v, edges)
        return x

    net, tiny = partial(mlp, act=nn.SiLU), partial(nn.init.xavier_uniform_, gain=0.001)
    coord = lambda: chain(nn.Linear(dim, dim), nn.SiLU(), init(nn.Linear(dim, 1, bias=False), tiny))
    maps = lambda: {"edge": net(2 * dim + 2, dim, dim).append(nn.SiLU()), "node": net(2 * dim, dim, dim)}
    layers = [Net(layer, **maps(), coord=coord(), speed=net(dim, dim, 1)) for _ in range(3)]
    return Net(run, start=nn.Linear(1, dim), layers=layers)


def pointnet(classes: int = 10) -> nn.Module:
    layers = lambda layer, *sizes: [f for a, b in pairwise(sizes) for f in (layer(a, b), nn.BatchNorm1d(b), nn.ReLU())]
    points, flat = partial(layers, partial(nn.Conv1d, kernel_size=1)), partial(layers, nn.Linear)
    best = lambda: [nn.AdaptiveMaxPool1d(1), nn.Flatten()]
    turned = lambda m, x: (m.net(x).view(len(x), *m.eye.shape) + m.eye).mT @ x
    net = lambda k: chain(*points(k, 16, 32, 256), *best(), *flat(256, 128, 64), nn.Linear(64, k * k))
    turn = lambda k: Net(turned, net=net(k), eye=torch.eye(k))
    body = [turn(3), *points(3, 16), turn(16), *points(16, 32, 256)[:-1], *best(), *flat(256, 128)]
    head = [nn.Linear(128, 64), nn.Dropout(0.3), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, classes)]
    return chain(*body, *head, nn.LogSoftmax(1))


def wide_and_deep(values: int = 240, dim: int = 16) -> nn.Module:
    run = lambda m, x: torch.sigmoid(m.linear(x).sum(1) + m.bias + m.deep(m.table(x).flatten(1)))
    table = init(nn.Embedding(values, dim), nn.init.xavier_uniform_, nn.Embedding)
    deep = chain(*dropping(8 * dim, 64), *dropping(64, 32), nn.Linear(32, 1))
    return Net(run, linear=nn.Embedding(values, 1), bias=zeros(1), table=table, deep=deep)


def gated_experts(values: int = 240, dim: int = 16, count: int = 4) -> nn.Module:  # of two tasks
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.table(x).flatten(1)
        found = torch.stack([expert(x) for expert in m.experts], 1)
        made = [tower((gate(x)[:, None] @ found)[:, 0]) for gate, tower in zip(m.gates, m.towers, strict=True)]
        return torch.cat(made, 1).sigmoid()

    experts = [chain(*dropping(8 * dim, 64), *dropping(64, 32)) for _ in range(count)]
    gates = [chain(nn.Linear(8 * dim, count), nn.Softmax(1)) for _ in range(2)]
    towers = [chain(*dropping(32, 32), nn.Linear(32, 1)) for _ in range(2)]
    table = init(nn.Embedding(values, dim), nn.init.xavier_uniform_, nn.Embedding)
    return Net(run, table=table, experts=experts, gates=gates, towers=towers)


def light_gcn(users: int = 60, items: int = 80, dim: int = 32) -> nn.Module:
    def run(m: Any, *chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.cat([m.users.weight, m.items.weight])
        sums = (x + (y := m.links @ x) + (z := m.links @ y) + m.links @ z) / 4.0
        (user, good, bad), own = (sums[at] for at in chosen), [x[at].square().sum() for at in chosen]
        return (user * good).sum(1), (user * bad).sum(1), sum(own) / len(user)

    near = (noise(users, items) > 1.0).float()
    links = torch.cat([F.pad(near, (users, 0)), F.pad(near.T, (0, items))])
    links = links * links.sum(1).clamp(min=1.0).rsqrt() * links.sum(1, keepdim=True).clamp(min=1.0).rsqrt()
    model = Net(run, users=nn.Embedding(users, dim), items=nn.Embedding(items, dim), links=links)
    return init(model, normal(0.1), nn.Embedding)


def tabular(seen: int = 20, dim: int = 64) -> nn.Module:  # a ResNet of a table
    last = lambda: [nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Dropout(0.2), nn.Linear(2 * dim, dim), nn.Dropout(0.1)]
    body = [Residual(nn.BatchNorm1d(dim), *last()) for _ in range(4)]
    return chain(nn.Linear(seen, dim), *body, nn.BatchNorm1d(dim), nn.ReLU(), nn.Linear(dim, 1))


def dlrm(sizes: tuple[int, ...], dim: int = 128) -> nn.Module:
    def run(m: Any, x: Tensor, chosen: Tensor) -> Tensor:
        x = m.bottom(x)
        every = torch.stack([x, *(table(at) for table, at in zip(m.tables, chosen.split(1, 1), strict=True))], 1)
        left, right = torch.tril_indices(len(sizes) + 1, len(sizes) + 1, -1)
        return m.top(torch.cat([x, (every @ every.mT)[:, left, right]], 1))

    def layers(last: nn.Module, *widths: int) -> nn.Module:
        made = mlp(*widths).append(last)
        for part in made[::2]:
            nn.init.normal_(part.weight, std=(2 / sum(part.weight.shape)) ** 0.5)
            nn.init.normal_(part.bias, std=len(part.bias) ** -0.5)
        return made

    tables, count = [within(nn.EmbeddingBag(n, dim), n**-0.5) for n in sizes], dim + len(sizes) * (len(sizes) + 1) // 2
    parts = {"bottom": layers(nn.ReLU(), 13, 512, 256, dim), "top": layers(nn.Sigmoid(), count, 512, 256, 1)}
    return Net(run, tables=tables, **parts)


def ppo(seen: int = 17, actions: int = 6, width: int = 64) -> nn.Module:
    def run(m: Any, x: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        chosen = torch.distributions.Normal(m.actor(x), m.log_std.expand(len(x), -1).exp())
        return chosen.log_prob(action).sum(1), m.critic(x)[:, 0]

    layer = lambda a, b, gain=2**0.5: init(nn.Linear(a, b), partial(nn.init.orthogonal_, gain=gain))
    net = lambda *last: chain(layer(seen, width), nn.Tanh(), layer(width, width), nn.Tanh(), layer(width, *last))
    return Net(run, actor=net(actions, 0.01), critic=net(1, 1.0), log_std=zeros(1, actions))


def iqn(actions: int = 6, quantiles: int = 8) -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        angles = torch.pi * torch.arange(1, 65) * torch.rand(len(x), quantiles, 1)
        return m.head(m.net(x / 255.0)[:, None] * m.cosines(angles.cos()))

    convs = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU()]
    parts = {"net": chain(*convs, nn.Flatten()), "cosines": chain(nn.Linear(64, 3136), nn.ReLU())}
    return init(Net(run, **parts, head=mlp(3136, 256, actions)), nn.init.kaiming_uniform_)


def ddpg(seen: int = 17, actions: int = 6) -> nn.Module:
    layer = lambda a, b, r=0.0: within(nn.Linear(a, b), r or b**-0.5)
    actor = [layer(seen, 200), nn.ReLU(), layer(200, 150), nn.ReLU(), layer(150, actions, 3e-3), nn.Tanh()]
    q = chain(layer(200 + actions, 150), nn.ReLU(), layer(150, 1, 3e-3))
    parts = {"actor": chain(*actor), "state": chain(layer(seen, 200), nn.ReLU()), "q": q}
    return Net(lambda m, x: m.q(torch.cat([m.state(x), m.actor(x)], 1)), **parts)


def leela(width: int = 512, depth: int = 20) -> nn.Module:
    def squeezed(m: Any, x: Tensor) -> Tensor:
        gate, bias = m.net(x.mean((2, 3)))[..., None, None].chunk(2, 1)
        return gate.sigmoid() * x + bias

    excited = lambda: Net(squeezed, net=mlp(width, width // 16, 2 * width))
    two = lambda: [conv_bn(width, width), conv_bn(width, width, act=nn.Identity)]
    body = [part for _ in range(depth) for part in (Residual(*two(), excited()), nn.ReLU())]
    head = lambda a, out: chain(conv_bn(width, a, 1), nn.Flatten(), mlp(64 * a, 128, out))
    run = lambda m, x: (m.policy(y := m.body(x)), m.value(y), F.relu(m.moves(y)))
    policy = chain(conv_bn(width, width), conv(width, 80), nn.Flatten())
    model = Net(run, body=chain(conv_bn(112, width), *body), policy=policy, value=head(32, 3), moves=head(8, 1))
    return init(model, nn.init.xavier_normal_)


def dcgan(seen: int = 100, width: int = 32) -> nn.Module:
    up = lambda a, b, *size: [nn.ConvTranspose2d(a, b, 4, *size, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    body = [*up(seen, 8 * width, 1, 0), *up(8 * width, 4 * width, 2, 1), *up(4 * width, 2 * width, 2, 1)]
    model = chain(*body, *up(2 * width, 3, 2, 1)[:1], nn.Tanh())
    return init(init(model, normal(0.02), nn.ConvTranspose2d), normal(0.02, 1.0), nn.BatchNorm2d)


def progressive(dim: int = 64) -> nn.Module:
    scaled = lambda m, x: m.layer(x) * (2.0 / m.layer.weight[0].numel()) ** 0.5
    equal = lambda layer: Net(scaled, layer=init(layer, normal(1.0)))
    unit = lambda: Net(lambda m, x: x * (x.square().mean(1, keepdim=True) + 1e-8).rsqrt())
    layer = lambda a, b: [equal(conv(a, b)), nn.LeakyReLU(0.2), unit()]
    up = lambda a, b: [nn.Upsample(scale_factor=2), *layer(a, b), *layer(b, b)]
    start = [unit(), equal(nn.Linear(dim, 16 * dim)), nn.Unflatten(1, (dim, 4, 4)), nn.LeakyReLU(0.2), unit()]
    return chain(*start, *layer(dim, dim), *up(dim, dim), *up(dim, 32), *up(32, 16), equal(conv(16, 3, 1)))


def beta_vae(dim: int = 10) -> nn.Module:
    def run(m: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log = m.encoder(x).chunk(2, 1)
        return m.decoder(mean + (0.5 * log).exp() * torch.randn_like(log)), mean, log

    down = lambda a, b, *size: [nn.Conv2d(a, b, 4, *size), nn.ReLU()]
    up = lambda a, b, *size: [nn.ReLU(), nn.ConvTranspose2d(a, b, 4, *size)]
    encoder = [*down(3, 32, 2, 1), *down(32, 32, 2, 1), *down(32, 64, 2, 1), *down(64, 64, 2, 1), *down(64, 256)]
    decoder = [*up(256, 64), *up(64, 64, 2, 1), *up(64, 32, 2, 1), *up(32, 32, 2, 1), *up(32, 3, 2, 1)]
    decoder = chain(nn.Linear(dim, 256), nn.Unflatten(1, (256, 1, 1)), *decoder)
    encoder = chain(*encoder, nn.Flatten(), nn.Linear(256, 2 * dim))
    return init(Net(run, encoder=encoder, decoder=decoder), nn.init.kaiming_normal_)


def real_nvp(dim: int = 8, width: int = 128) -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        total = torch.zeros(len(x))
        for n, (s, t) in enumerate(zip(m.s, m.t, strict=True)):
            kept, mask = x * m.masks[n], 1.0 - m.masks[n]
            scale = s(kept) * mask
            x, total = mask * (x - t(kept)) * (-scale).exp() + kept, total - scale.sum(1)
        return total - 0.5 * (x.square() + 1.8378770664093453).sum(1)

    net = partial(mlp, dim, width, width, dim, act=nn.LeakyReLU)
    masks = torch.stack([torch.arange(dim) % 2, 1 - torch.arange(dim) % 2] * 3).float()
    return Net(run, s=[net().append(nn.Tanh()) for _ in masks], t=[net() for _ in masks], masks=masks)


def dit(depth: int = 12, dim: int = 768, classes: int = 1000) -> nn.Module:
    turns = lambda at, dim: at.float()[..., None] * 1e4 ** -(torch.arange(dim // 2) / (dim // 2))
    waves = lambda at, dim: torch.cat([turns(at, dim).sin(), turns(at, dim).cos()], -1)

    def block(m: Any, x: Tensor, c: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = m.ada(c)[:, None].chunk(6, -1)
        x = x + gate1 * m.attention(m.norm1(x) * (1.0 + scale1) + shift1)
        return x + gate2 * m.feed(m.norm2(x) * (1.0 + scale2) + shift2)

    def run(m: Any, x: Tensor, t: Tensor, kinds: Tensor) -> Tensor:
        c = m.time(waves(t, 256)) + m.kinds(kinds.where(torch.rand(len(x)) > 0.1, classes))
        x = m.patch(x).flatten(2).mT + m.places
        for part in m.blocks:
            x = part(x, c)
        shift, scale = m.ada(c)[:, None].chunk(2, -1)
        return F.pixel_shuffle(m.last(m.norm(x) * (1.0 + scale) + shift).mT.unflatten(2, (8, 8)), 2)

    norm = lambda: nn.LayerNorm(dim, 1e-6, elementwise_affine=False)
    ada = lambda count: chain(nn.SiLU(), init(nn.Linear(dim, count * dim), nn.init.zeros_))
    maps = lambda: {"attention": xavier(attention(dim, dim // 64)), "feed": xavier(feed(dim)), "ada": ada(6)}
    side, patch = waves(torch.arange(8), dim // 2), nn.Conv2d(4, dim, 2, 2)
    nn.init.xavier_uniform_(patch.weight.data.flatten(1)), nn.init.zeros_(patch.bias)
    places = torch.cat([side[:, None].expand(-1, 8, -1), side.expand(8, -1, -1)], -1).flatten(0, 1)
    start = {"time": init(mlp(256, dim, dim, act=nn.SiLU), normal(0.02)), "patch": patch, "places": places}
    start["kinds"] = init(nn.Embedding(classes + 1, dim), normal(0.02), nn.Embedding)
    body = [Net(block, norm1=norm(), norm2=norm(), **maps()) for _ in range(depth)]
    return Net(run, **start, blocks=body, norm=norm(), ada=ada(2), last=init(nn.Linear(dim, 16), nn.init.zeros_))


def siren(width: int = 128) -> nn.Module:
    sine, layer = lambda: Net(lambda m, x: torch.sin(30.0 * x)), lambda out: nn.Linear(width, out)
    hidden = [part for _ in range(3) for part in (within(layer(width), (6 / width) ** 0.5 / 30.0), sine())]
    return chain(within(nn.Linear(2, width), 0.5), sine(), *hidden, within(layer(3), (6 / width) ** 0.5 / 30.0))


def ani(seen: int = 64, kinds: int = 4) -> nn.Module:
    def run(m: Any, x: Tensor, species: Tensor) -> Tensor:
        found = x.new_zeros(species.shape)
        for kind, net in enumerate(m.nets):
            found = found.masked_scatter(species == kind, net(x[species == kind]))
        return found.sum(1)

    net = partial(mlp, seen, 96, 64, 48, 1, act=partial(nn.CELU, 0.1))
    return init(Net(run, nets=[net() for _ in range(kinds)]), partial(nn.init.kaiming_normal_, a=1.0))


def hamiltonian(dim: int = 4, width: int = 100) -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(m.net(x)[:, 1].sum(), x, create_graph=True)[0] @ m.turn.T

    turn = torch.eye(dim).roll(dim // 2, 1) * torch.cat([torch.ones(dim // 2, 1), -torch.ones(dim // 2, 1)])
    net = chain(*mlp(dim, width, width, act=nn.Tanh), nn.Tanh(), nn.Linear(width, 2, bias=False))
    return Net(run, net=init(net, nn.init.orthogonal_, bias=None), turn=turn)


# -- the list


TINY = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 384, "num_labels": 10}
WINDOWS = {"image_size": 32, "embed_dim": 48, "depths": [2, 2], "num_heads": [3, 6], "window_size": 4, "num_labels": 10}
SOUND = {"patch_size": 8, "frequency_stride": 8, "time_stride": 8, "max_length": 64, "num_mel_bins": 32}
WORDS = {"hidden_size": 512, "projection_size": 768, "num_hidden_layers": 6, "num_attention_heads": 8}
STAGES = {"embedding_size": 128, "hidden_sizes": [512, 1024, 2048, 4096], "num_labels": 1000}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "swin": ("Swin", "ForImageClassification", WINDOWS),
    "convnext v2": ("ConvNextV2", "Model", {"hidden_sizes": [40, 80, 120, 160], "depths": [1, 1, 3, 1]}),
    "videomae": ("VideoMAE", "ForVideoClassification", TINY | {"image_size": 32, "patch_size": 8, "num_frames": 4}),
    "yolos": ("Yolos", "ForObjectDetection", TINY | {"image_size": [32, 32], "patch_size": 4}),
    "audio spectrogram transformer": ("AST", "ForAudioClassification", TINY | SOUND),
    "large timesformer": ("Timesformer", "Model", {"image_size": 64, "num_frames": 4}),
    "large hubert": ("Hubert", "Model", {"mask_time_prob": 0.0, "layerdrop": 0.0}),
    "large visualbert": ("VisualBert", "Model", {}),
    "large siglip": ("Siglip", "Model", {"vision_config": {"image_size": 64}, "text_config": WORDS}),
    "large resnet 50x2": ("ResNet", "ForImageClassification", STAGES),
}


def family(name: str) -> nn.Module:
    import transformers

    kind, head, sizes = FAMILIES[name]
    return getattr(transformers, kind + head)(getattr(transformers, kind + "Config")(**sizes))


def cases() -> Iterator[Case]:
    image, wide, large = partial(noise, 4, 3, 16, 16), partial(noise, 4, 3, 32, 32), partial(noise, 2, 3, 64, 64)
    pair = lambda *shape: lambda: (noise(*shape), noise(*shape, seed=1))
    ratio, gain = lambda o: (o[0] - o[0].detach()).exp(), noise(64, seed=5)
    clipped = lambda o: -torch.minimum(ratio(o) * gain, ratio(o).clamp(0.8, 1.2) * gain).mean() + 0.25 * squared(o[1])
    ranked = lambda o: F.softplus(o[1] - o[0]).mean() + 1e-4 * o[2]
    elbo = lambda o: binary(o[0]) * o[0][0].numel() - 2.0 * (1.0 + o[2] - o[1].square() - o[2].exp()).sum(1).mean()
    first, down = lambda o: F.cross_entropy(o, torch.zeros(len(o), dtype=torch.long)), lambda o: -o.mean()
    faces, distilled = lambda o: F.cross_entropy(o, ids(20, 8)), lambda o: -(o[1] * o[0].log_softmax(1)).sum(1).mean()
    sizes = 500_000, 250_000, 100_000, 40_000, 9_000, 900
    clicks = lambda: (noise(16, 13).exp(), torch.stack([ids(n, 16) for n in sizes], 1))
    seen = {"visual_embeds": noise(2, 9, 512), "visual_attention_mask": torch.ones(2, 9)}
    spoken = lambda: {"input_ids": ids(32000, 4, 12), "pixel_values": noise(4, 3, 64, 64)}
    listed: list[tuple[str, Any, Callable[[], Any], Any]] = [
        ("googlenet", googlenet, wide, lambda o: cross(o[0]) + 0.3 * cross(o[1])), ("densenet", densenet, image, None),
        ("shufflenet v2", shuffle_net, image, None), ("repvgg", rep_vgg, wide, None), ("mlp-mixer", mixer, wide, None),
        ("efficientnet", partial(efficient_net, B0, 320, 1e-5, 0.2), wide, cross),
        ("swin", None, wide, lambda o: cross(o.logits, 0.1)), ("convnext v2", None, partial(noise, 4, 3, 64, 64), None),
        ("moco", moco, pair(8, 3, 16, 16), first), ("dino", dino, pair(4, 3, 32, 32), distilled),
        ("captioner", captioner, lambda: (noise(8, 3, 16, 16), ids(60, 8, 9)), None),
        ("arcface", arc_face, lambda: (noise(8, 3, 16, 16), ids(20, 8)), faces),
        ("r(2+1)d", r2plus1d, partial(noise, 2, 3, 8, 24, 24), None), ("attention unet", attention_unet, wide, binary),
        ("convlstm", conv_lstm, partial(noise, 2, 6, 1, 16, 16), squared),
        ("videomae", None, partial(noise, 2, 4, 3, 32, 32), None), ("yolos", None, partial(noise, 2, 3, 32, 32), None),
        ("deeplab v3+", deeplab, partial(noise, 4, 3, 48, 48), None),
        ("edsr", edsr, lambda: ids(256, 2, 3, 16, 16).float(), None),
        ("hifi-gan", hifi_gan, partial(noise, 2, 80, 12), None), ("demucs", demucs, partial(noise, 2, 2, 468), None),
        ("panns", panns, partial(noise, 4, 1, 64, 32), None),
        ("audio spectrogram transformer", None, partial(noise, 4, 64, 32), None),
        ("gat", gat, lambda: (noise(40, 50) > 1.0).float(), lambda o: F.nll_loss(o, labels(40, 5))),
        ("egnn", egnn, lambda: (noise(8, 5, 3), noise(8, 5, 3, seed=1), noise(8, 5, 5, 1, seed=2)), None),
        ("pointnet", pointnet, partial(noise, 8, 3, 64), lambda o: F.nll_loss(o, labels(8))),
        ("wide & deep", wide_and_deep, partial(ids, 240, 32, 8), of_shares),
        ("mmoe", gated_experts, partial(ids, 240, 32, 8), of_shares), ("ddpg", ddpg, partial(noise, 64, 17), down),
        ("tabular resnet", tabular, partial(noise, 64, 20), squared),
        ("lightgcn", light_gcn, lambda: (ids(60, 32), 60 + ids(80, 32, seed=1), 60 + ids(80, 32, seed=2)), ranked),
        ("ppo", ppo, lambda: (noise(64, 17), noise(64, 6, seed=1)), clipped),
        ("iqn", iqn, lambda: ids(256, 4, 4, 84, 84).float(), None), ("realnvp", real_nvp, partial(noise, 64, 8), down),
        ("dcgan", dcgan, partial(noise, 8, 100, 1, 1), None), ("siren", siren, partial(noise, 128, 2), None),
        ("progressive gan", progressive, partial(noise, 4, 64), None),
        ("beta-vae", beta_vae, partial(noise, 4, 3, 64, 64), elbo),
        ("ani", ani, lambda: (noise(8, 6, 64).abs(), ids(4, 8, 6)), squared),
        ("hamiltonian", hamiltonian, partial(noise, 64, 4), squared),
        ("large efficientnet v2", partial(efficient_net, V2_L, 1280, 1e-3, 0.4, 1000), large, cross),
        ("large resnet 50x2", None, large, lambda o: cross(o.logits)), ("large siglip", None, spoken, None),
        ("large timesformer", None, partial(noise, 1, 4, 3, 64, 64), None),
        ("large hubert", None, partial(noise, 1, 8000), None), ("large dlrm", partial(dlrm, sizes), clicks, of_shares),
        ("large demucs", partial(demucs, 80, 5), partial(noise, 1, 2, 5460), None),
        ("large visualbert", None, lambda: {"input_ids": ids(30522, 2, 12), **seen}, None),
        ("large leela", leela, partial(noise, 2, 112, 8, 8), played),
        ("large dit", dit, lambda: (noise(2, 4, 16, 16), ids(1000, 2), ids(1000, 2, seed=1)), squared),
    ]  # fmt: skip
    for name, make, batch, loss in listed:
        kind = "own code" if make else "transformers"
        yield Case(f"twelfth/{name}", kind, make or partial(family, name), batch, loss)
