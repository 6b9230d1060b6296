"""Half of the eleventh set: 50 networks of images, sound, graphs, tables, policies, generation and science.

Listed before any of them was predicted; nothing is taken from the earlier sets. Forty are small, ten large.
"""

# ruff: noqa: E501, E731

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from studies.corpus.case import Case, ids, noise
from studies.corpus.tenth import classifier, conv_bn

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


def init(model: Any, weight: Callable[..., Any], *kinds: type, bias: Callable[..., Any] = nn.init.zeros_) -> Any:
    for module in model.modules():
        if isinstance(module, kinds or (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose3d)):
            weight(module.weight)
            if getattr(module, "bias", None) is not None:
                bias(module.bias)
    return model


fan_out = partial(nn.init.kaiming_normal_, mode="fan_out", nonlinearity="relu")
truncated = partial(nn.init.trunc_normal_, std=0.02)
normal = lambda std: partial(nn.init.normal_, std=std)
zeros = lambda *shape: nn.Parameter(torch.zeros(*shape))
conv = lambda a, b, k=3, s=1, **kw: nn.Conv2d(a, b, k, s, k // 2, **kw)
xavier = lambda layer: init(layer, nn.init.xavier_uniform_)
plane = lambda *sides: torch.stack(torch.meshgrid(*sides, indexing="ij"), -1)
split = lambda x, heads: [y.unflatten(-1, (heads, -1)).transpose(-2, -3) for y in x.chunk(3, -1)]
summed = lambda *parts: Net(lambda m, x: sum(part(x) for part in m.parts), parts=[*parts])
scaled = lambda dim, value, inner: Net(lambda m, x: m.gamma * m.inner(x), gamma=nn.Parameter(value * torch.ones(dim)), inner=inner)  # fmt: skip
mlp = lambda *sizes, act=nn.ReLU, **kw: nn.Sequential(*[p for a, b in pairwise(sizes) for p in (nn.Linear(a, b, **kw), act())][:-1])  # fmt: skip


def attention(dim: int, heads: int, causal: bool = False) -> nn.Module:
    mixed = partial(F.scaled_dot_product_attention, is_causal=causal)
    run = lambda m, x: m.proj(mixed(*split(m.qkv(x), heads)).transpose(1, 2).flatten(2))
    return Net(run, qkv=nn.Linear(dim, 3 * dim), proj=nn.Linear(dim, dim))


def blocks(
    depth: int, dim: int, heads: int, wrap: Any = lambda part: part, mixer: Any = attention, act: Any = nn.GELU
) -> Any:
    parts = [f() for _ in range(depth) for f in (lambda: mixer(dim, heads), lambda: mlp(dim, 4 * dim, dim, act=act))]
    return nn.Sequential(*(Residual(nn.LayerNorm(dim), wrap(part)) for part in parts))


def excite(width: int, hidden: int, gate: Callable[[], nn.Module] = nn.Sigmoid, conv: Any = nn.Conv2d) -> nn.Module:
    net = nn.Sequential(conv(width, hidden, 1), nn.ReLU(), conv(hidden, width, 1), gate())
    return Net(lambda m, x: x * m.net(x.mean(tuple(range(2, x.dim())), keepdim=True)), net=net)


def stages() -> nn.Sequential:  # strides 2, 4 and 8 of a ResNet-D
    def block(a: int, b: int, s: int = 1) -> nn.Module:
        body = nn.Sequential(conv_bn(a, b // 4, 1), conv_bn(b // 4, b // 4, s=s), conv(b // 4, b, 1, bias=False), nn.BatchNorm2d(b))  # fmt: skip
        down = nn.Sequential(nn.AvgPool2d(s), conv(a, b, 1, bias=False), nn.BatchNorm2d(b)) if a != b else nn.Identity()
        nn.init.zeros_(body[-1].weight)
        return nn.Sequential(summed(down, body), nn.ReLU())

    parts = [nn.Sequential(conv_bn(3, 16, s=2), conv_bn(16, 32), block(32, 64)), nn.Sequential(block(64, 128, 2), block(128, 128))]  # fmt: skip
    return init(nn.Sequential(*parts, block(128, 192, 2)), fan_out, nn.Conv2d)


# -- losses


labels = lambda count, classes=10: ids(classes, count, seed=5)
against = lambda loss: lambda o: loss(o, noise(*o.shape, seed=5))
squared = against(F.mse_loss)
cross = lambda o, smooth=0.0: F.cross_entropy(o, labels(len(o), o.shape[1]), label_smoothing=smooth)
binary = lambda o: F.binary_cross_entropy_with_logits(o.flatten(), labels(o.numel(), 2).float())
hinge = lambda o: F.relu(1.0 - o.chunk(2)[0]).mean() + F.relu(1.0 + o.chunk(2)[1]).mean()
alike = lambda o: sum(2.0 - 2.0 * F.cosine_similarity(p, z).mean() for p, z in zip(o[:2], o[2:], strict=True))
relative_error = against(lambda o, own: ((o - own).flatten(1).norm(dim=1) / own.flatten(1).norm(dim=1)).mean())
rendered = lambda o: against(partial(F.huber_loss, delta=0.1))(o[0] * (1.0 - torch.exp(-0.1 * o[1])))
played = lambda o: F.cross_entropy(o[0], noise(*o[0].shape, seed=5).softmax(1)) + squared(o[1])
margins = lambda o: torch.where(F.one_hot(labels(len(o)), 10) > 0, F.relu(0.9 - o).square(), 0.5 * F.relu(o - 0.1).square()).sum(1).mean()  # fmt: skip
returns = lambda o: -(noise(len(o), 51, seed=5).softmax(1) * o[torch.arange(len(o)), labels(len(o), 6)]).sum(1).mean()
over = lambda a, b: (a.exp() * (a - b)).sum((-1, -2)).mean()
worlds = lambda o: squared(o[0]) + squared(o[1]) + 0.8 * over(o[3].detach(), o[2]) + 0.2 * over(o[3], o[2].detach())
ctc = lambda o: F.ctc_loss(o.permute(2, 0, 1), 1 + ids(28, len(o), 4, seed=5), [o.shape[2]] * len(o), [4] * len(o))
likelihood = lambda o: -(o[0].log_softmax(1) * (noise(*o[0].shape, seed=5) > 1.5)).sum(1).mean()
multinomial = lambda o: likelihood(o) - 0.1 * (1.0 + o[2] - o[1].square() - o[2].exp()).sum(1).mean()
residuals = lambda o: squared(o[0]) + o[1].square().mean()
matched = lambda o: 0.5 * (F.cross_entropy(o, torch.arange(len(o))) + F.cross_entropy(o.T, torch.arange(len(o))))


# -- images


def alex_net() -> nn.Module:
    norm, pool, act = lambda: nn.LocalResponseNorm(5, 1e-4, 0.75), lambda: nn.MaxPool2d(3, 2), nn.ReLU
    parts = [conv(3, 24, 5), act(), norm(), pool(), conv(24, 64, 5, groups=2), act(), norm(), pool(), conv(64, 96), act()]  # fmt: skip
    parts += [conv(96, 96, groups=2), act(), conv(96, 64, groups=2), act(), pool(), nn.Flatten(), nn.Linear(576, 256), act()]  # fmt: skip
    model = nn.Sequential(*parts, nn.Dropout(), nn.Linear(256, 256), act(), nn.Dropout(), nn.Linear(256, 10))
    for number, layer in enumerate(part for part in model if isinstance(part, (nn.Conv2d, nn.Linear))):
        nn.init.normal_(layer.weight, std=0.005 if number in (5, 6) else 0.01)
        nn.init.constant_(layer.bias, float(number in (1, 3, 4, 5, 6)))
    return model


def in_network() -> nn.Module:
    block = lambda a, b, c, k: [p for n, (i, o) in enumerate(pairwise((a, b, b, c))) for p in (conv(i, o, 1 if n else k), nn.ReLU())]  # fmt: skip
    parts = [*block(3, 48, 32, 5), nn.MaxPool2d(3, 2, 1), nn.Dropout(), *block(32, 64, 64, 5), nn.AvgPool2d(3, 2, 1), nn.Dropout()]  # fmt: skip
    return init(nn.Sequential(*parts, *block(64, 64, 10, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), normal(0.05))


def xception() -> nn.Module:
    sep = lambda a, b: [nn.ReLU(), conv(a, a, groups=a, bias=False), conv(a, b, 1, bias=False), nn.BatchNorm2d(b)]
    skip = lambda a, b: nn.Sequential(conv(a, b, 1, 2, bias=False), nn.BatchNorm2d(b))
    down = lambda a, b: summed(nn.Sequential(*sep(a, b), *sep(b, b), nn.MaxPool2d(3, 2, 1)), skip(a, b))
    middle = lambda: Residual(*sep(96, 96), *sep(96, 96), *sep(96, 96))
    fan = lambda weight: nn.init.normal_(weight, std=math.sqrt(2.0 / (weight[0, 0].numel() * len(weight))))
    return init(nn.Sequential(conv_bn(3, 32), down(32, 64), down(64, 96), middle(), middle(), nn.ReLU(), *classifier(96)), fan, nn.Conv2d)  # fmt: skip


def inverted(a: int, hidden: int, b: int, k: int, s: int, act: Any, squeezed: int, bn: Any) -> list[nn.Module]:
    parts = [conv(a, hidden, 1, bias=False), bn(hidden), act(), conv(hidden, hidden, k, s, groups=hidden, bias=False), bn(hidden), act()]  # fmt: skip
    return [*parts, *([excite(hidden, squeezed, nn.Hardsigmoid)] if squeezed else []), conv(hidden, b, 1, bias=False), bn(b)]  # fmt: skip


def mobile_net_v3() -> nn.Module:
    bn, act, sizes = partial(nn.BatchNorm2d, eps=1e-3, momentum=0.01), nn.Hardswish, [(16, 16, 24, 3, 2, nn.ReLU, 8)]
    sizes += [(24, 88, 24, 3, 1, nn.ReLU, 0), (24, 96, 40, 5, 2, act, 24), (40, 240, 40, 5, 1, act, 64)]
    body = [(Residual if size[0] == size[2] else nn.Sequential)(*inverted(*size, bn)) for size in sizes]
    parts = [conv(3, 16, 3, 2, bias=False), bn(16), act(), *body, conv(40, 240, 1, bias=False), bn(240), act(), nn.AdaptiveAvgPool2d(1)]  # fmt: skip
    model = nn.Sequential(*parts, nn.Flatten(), nn.Linear(240, 256), act(), nn.Dropout(0.2), nn.Linear(256, 10))
    return init(init(model, fan_out, nn.Conv2d), normal(0.01), nn.Linear)


def sk_net() -> nn.Module:
    def selected(m: Any, x: Tensor) -> Tensor:
        x = torch.stack([field(x) for field in m.fields], 1)
        chosen = m.select(m.squeeze(x.sum(1).mean((2, 3), keepdim=True)))
        return (x * chosen.unflatten(1, (2, -1)).softmax(1)).sum(1)

    field = lambda d: nn.Sequential(nn.Conv2d(32, 32, 3, 1, d, d, 8, bias=False), nn.BatchNorm2d(32), nn.ReLU())
    kernel = lambda: Net(selected, fields=[field(1), field(2)], squeeze=conv_bn(32, 16, 1), select=conv(16, 64, 1, bias=False))  # fmt: skip
    block = lambda: [Residual(conv_bn(64, 32, 1), kernel(), conv(32, 64, 1, bias=False), nn.BatchNorm2d(64)), nn.ReLU()]
    return init(nn.Sequential(conv_bn(3, 64, s=2), *block(), *block(), *classifier(64)), fan_out, nn.Conv2d)


def deit(dim: int = 96) -> nn.Module:
    def run(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        x = m.patch(x).flatten(2).mT
        x = m.norm(m.blocks(torch.cat([m.tokens.expand(len(x), -1, -1), x], 1) + m.places))
        return m.head(x[:, 0]), m.head_dist(x[:, 1])

    parts = {"tokens": truncated(zeros(1, 2, dim)), "places": truncated(zeros(1, 66, dim)), "patch": nn.Conv2d(3, dim, 4, 4)}  # fmt: skip
    parts |= {"blocks": blocks(4, dim, 4), "norm": nn.LayerNorm(dim), "head": nn.Linear(dim, 10), "head_dist": nn.Linear(dim, 10)}  # fmt: skip
    return init(Net(run, **parts), truncated, nn.Linear)


def relative_attention(side: int, dim: int, heads: int) -> nn.Module:  # of BEiT
    def run(m: Any, x: Tensor) -> Tensor:
        q, k, v = split(F.linear(x, m.qkv.weight, torch.cat([m.q_bias, torch.zeros_like(m.v_bias), m.v_bias])), heads)
        scores = q * q.shape[-1] ** -0.5 @ k.mT + m.table[m.index].permute(2, 0, 1)
        return m.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    at, count = plane(torch.arange(side), torch.arange(side)).flatten(0, 1), (2 * side - 1) ** 2
    index = F.pad((at[:, None] - at + side - 1) @ torch.tensor([2 * side - 1, 1]), (1, 0, 1, 0), value=count + 2)
    index[0, 1:], index[1:, 0] = count, count + 1
    parts = {"qkv": nn.Linear(dim, 3 * dim, bias=False), "q_bias": zeros(dim), "v_bias": zeros(dim), "table": zeros(count + 3, heads)}  # fmt: skip
    return Net(run, **parts, index=index, proj=nn.Linear(dim, dim))


def beit(dim: int = 96) -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.patch(x).flatten(2).mT
        return m.head(m.norm(m.blocks(torch.cat([m.cls.expand(len(x), -1, -1), x], 1))[:, 1:].mean(1)))

    body = blocks(3, dim, 4, partial(scaled, dim, 0.1), partial(relative_attention, 8))
    model = Net(run, patch=nn.Conv2d(3, dim, 4, 4), cls=truncated(zeros(1, 1, dim)), blocks=body, norm=nn.LayerNorm(dim), head=nn.Linear(dim, 10))  # fmt: skip
    init(model, truncated, nn.Linear, nn.Conv2d)
    for n, (mixer, feed) in enumerate(zip(body[::2], body[1::2], strict=True)):
        mixer[1].inner.proj.weight.data /= math.sqrt(2.0 * (n + 1))
        feed[1].inner[2].weight.data /= math.sqrt(2.0 * (n + 1))
    model.head.weight.data *= 0.001
    return model


def deformable(a: int, b: int) -> nn.Module:  # offsets zero at first
    def run(m: Any, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        taps, pixels = plane(torch.arange(3) - 1, torch.arange(3) - 1).view(9, 1, 1, 2), plane(torch.arange(h), torch.arange(w))  # fmt: skip
        places = taps + pixels + m.offset(x).view(n, 9, 2, h, w).permute(0, 1, 3, 4, 2)
        places = 2.0 * places / torch.tensor([h - 1.0, w - 1.0]) - 1.0
        y = F.grid_sample(x, places.flip(-1).reshape(n, 9 * h, w, 2), align_corners=True)
        return F.relu(m.norm(m.conv(y.view(n, 9 * c, h, w))))

    offset = init(conv(a, 18), nn.init.zeros_)
    return Net(run, offset=offset, conv=conv(9 * a, b, 1, bias=False), norm=nn.BatchNorm2d(b))


def capsules() -> nn.Module:
    def squash(x: Tensor) -> Tensor:
        size = x.square().sum(-1, keepdim=True)
        return size / (1.0 + size) * x / (size + 1e-8).sqrt()

    def run(m: Any, x: Tensor) -> Tensor:
        x = squash(m.primary(F.relu(m.conv(x))).unflatten(1, (-1, 8)).transpose(2, -1).flatten(1, 3))
        votes = torch.einsum("okij,nkj->noki", m.weight, x)
        logits, fixed = torch.zeros(votes.shape[:3]), votes.detach()
        for _ in range(2):
            agreed = squash((logits.softmax(1)[..., None] * fixed).sum(2))
            logits = logits + (fixed * agreed[:, :, None]).sum(-1)
        return squash((logits.softmax(1)[..., None] * votes).sum(2)).norm(dim=-1)

    return Net(run, conv=nn.Conv2d(1, 64, 9), primary=nn.Conv2d(64, 64, 9, 2), weight=nn.Parameter(0.01 * torch.randn(10, 32, 16, 8)))  # fmt: skip


def hard_net() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        mean, std = x.mean((1, 2, 3), keepdim=True).detach(), x.std((1, 2, 3), keepdim=True).detach() + 1e-7
        return F.normalize(m.features((x - mean) / std).flatten(1))

    sizes = [(1, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1)]
    parts = [p for a, b, s in sizes for p in (conv(a, b, 3, s, bias=False), nn.BatchNorm2d(b, affine=False), nn.ReLU())]
    features = nn.Sequential(*parts, nn.Dropout(0.3), nn.Conv2d(64, 64, 8, bias=False), nn.BatchNorm2d(64, affine=False))  # fmt: skip
    return Net(run, features=init(features, partial(nn.init.orthogonal_, gain=0.6), nn.Conv2d))


def triplets(o: Tensor) -> Tensor:
    """The first half are anchors, the second what fits them; the hardest of the others is pushed away."""
    apart = (2.0 - 2.0 * o.chunk(2)[0] @ o.chunk(2)[1].T + 1e-6).sqrt()
    others = apart + 10.0 * torch.eye(len(apart))
    return F.relu(1.0 + apart.diagonal() - torch.minimum(others.amin(0), others.amin(1))).mean()


# -- two views, boxes, masks, restoration


def byol(hidden: int = 256, out: int = 64) -> nn.Module:
    def run(m: Any, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            targets = m.target(b), m.target(a)
        return m.predictor(m.online(a)), m.predictor(m.online(b)), *targets

    head = lambda a: nn.Sequential(nn.Linear(a, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, out))
    online = nn.Sequential(stages(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head(192))
    return Net(run, online=online, target=deepcopy(online).requires_grad_(False), predictor=head(out))


def vicreg(width: int = 256) -> nn.Module:
    layer = lambda a: [nn.Linear(a, width), nn.BatchNorm1d(width), nn.ReLU()]
    backbone = nn.Sequential(stages(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    projector = nn.Sequential(*layer(192), *layer(width), nn.Linear(width, width, bias=False))
    return Net(lambda m, *views: tuple(m.projector(m.backbone(x)) for x in views), backbone=backbone, projector=projector)  # fmt: skip


def variance_covariance(o: tuple[Tensor, Tensor]) -> Tensor:
    loss = 25.0 * F.mse_loss(*o)
    for x in (o[0] - o[0].mean(0), o[1] - o[1].mean(0)):
        covariance = (x.T @ x / (len(x) - 1)).square()
        loss = loss + 12.5 * F.relu(1.0 - (x.var(0) + 1e-4).sqrt()).mean()
        loss = loss + (covariance.sum() - covariance.diagonal().sum()) / x.shape[1]
    return loss


def retina_net(width: int = 64, classes: int = 5, anchors: int = 3) -> nn.Module:
    def run(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        c4 = m.stages[1](m.stages[0](x))
        p5 = m.inner[1](m.stages[2](c4))
        p4 = m.inner[0](c4) + F.interpolate(p5, scale_factor=2.0, mode="nearest")
        levels = [m.outer[0](p4), m.outer[1](p5), m.extra(p5)]
        return tuple(torch.cat([head(level).flatten(1) for level in levels], 1) for head in (m.classes, m.boxes))

    tower = lambda out: nn.Sequential(conv(width, width), nn.ReLU(), conv(width, width), nn.ReLU(), conv(width, out))
    pyramid = {"inner": [conv(128, width, 1), conv(192, width, 1)], "outer": [conv(width, width) for _ in range(2)], "extra": conv(width, width, 3, 2)}  # fmt: skip
    model = init(Net(run, **pyramid), partial(nn.init.kaiming_uniform_, a=1))
    model.stages, model.classes, model.boxes = stages(), *(init(tower(anchors * n), normal(0.01)) for n in (classes, 4))
    nn.init.constant_(model.classes[-1].bias, -math.log(99.0))
    return model


def detected(o: tuple[Tensor, Tensor]) -> Tensor:
    own, p = (ids(50, *o[0].shape, seed=5) == 0).float(), o[0].sigmoid()
    error = F.binary_cross_entropy_with_logits(o[0], own, reduction="none")
    wrong, weight = p * (1 - own) + (1 - p) * own, 0.25 * own + 0.75 * (1 - own)
    return (weight * wrong.square() * error).sum() / own.sum() + against(F.smooth_l1_loss)(o[1])


def nn_unet(classes: int = 3) -> nn.Module:
    def run(m: Any, x: Tensor) -> list[Tensor]:
        skips, masks = [x := down(x) for down in m.downs], []
        for up, merge, head, skip in zip(m.ups, m.merges, m.heads, skips[-2::-1], strict=True):
            x = merge(torch.cat([up(x), skip], 1))
            masks.append(head(x))
        return masks[::-1]

    layer = lambda a, b, s=1: [nn.Conv3d(a, b, 3, s, 1), nn.InstanceNorm3d(b, affine=True), nn.LeakyReLU(0.01)]
    two, pairs = lambda a, b, s=1: nn.Sequential(*layer(a, b, s), *layer(b, b)), ((24, 48), (12, 24))
    parts = {"downs": [two(1, 12), two(12, 24, 2), two(24, 48, 2)], "ups": [nn.ConvTranspose3d(b, a, 2, 2, bias=False) for a, b in pairs]}  # fmt: skip
    model = Net(run, **parts, merges=[two(2 * a, a) for a, _ in pairs], heads=[nn.Conv3d(a, classes, 1, bias=False) for a, _ in pairs])  # fmt: skip
    return init(model, partial(nn.init.kaiming_normal_, a=0.01))


def dice(o: list[Tensor]) -> Tensor:
    total = torch.zeros(())
    for weight, logits in zip((2 / 3, 1 / 3), o, strict=True):
        own, axes = ids(3, len(logits), *logits.shape[2:], seed=5), (0, 2, 3, 4)
        p, hot = logits.softmax(1), F.one_hot(own, 3).movedim(-1, 1)
        overlap = 2.0 * (p * hot).sum(axes) / (p.sum(axes) + hot.sum(axes) + 1e-5)
        total = total + weight * (F.cross_entropy(logits, own) - overlap.mean())
    return total


def dn_cnn(width: int = 64) -> nn.Module:
    inner = [part for _ in range(4) for part in (conv(width, width, bias=False), nn.BatchNorm2d(width), nn.ReLU())]
    body = nn.Sequential(conv(3, width, bias=False), nn.ReLU(), *inner, conv(width, 3, bias=False))
    init(body, lambda w: nn.init.normal_(w, std=math.sqrt(2.0 / 9.0 / 64.0)).data.clamp_(-0.025, 0.025), nn.BatchNorm2d)
    return Net(lambda m, x: x - m.body(x), body=init(body, nn.init.kaiming_normal_, nn.Conv2d))


def rrdb_net(width: int = 32, grow: int = 16) -> nn.Module:
    def dense(m: Any, x: Tensor) -> Tensor:
        seen = [x]
        for layer in m.convs[:-1]:
            seen.append(F.leaky_relu(layer(torch.cat(seen, 1)), 0.2))
        return x + 0.2 * m.convs[-1](torch.cat(seen, 1))

    def group() -> nn.Module:
        sizes = enumerate((grow, grow, grow, grow, width))
        return init(Net(dense, convs=[conv(width + n * grow, b) for n, b in sizes]), lambda w: nn.init.kaiming_normal_(w).data.mul_(0.1))  # fmt: skip

    inner = lambda: Net(lambda m, x: x + 0.2 * m.body(x), body=nn.Sequential(group(), group(), group()))
    up = lambda: [nn.Upsample(scale_factor=2, mode="nearest"), conv(width, width), nn.LeakyReLU(0.2)]
    head = [conv(width, width), nn.LeakyReLU(0.2), conv(width, 3)]
    return nn.Sequential(conv(3, width), Residual(inner(), inner(), conv(width, width)), *up(), *up(), *head)


# -- generation


def cycle_generator(width: int = 24) -> nn.Module:
    norm, pad, act = nn.InstanceNorm2d, nn.ReflectionPad2d, nn.ReLU
    res = lambda b: Residual(pad(1), nn.Conv2d(b, b, 3), norm(b), act(), pad(1), nn.Conv2d(b, b, 3), norm(b))
    parts = [pad(3), nn.Conv2d(3, width, 7), norm(width), act()]
    for b in (2 * width, 4 * width):
        parts += [conv(b // 2, b, 3, 2), norm(b), act()]
    parts += [res(4 * width), res(4 * width)]
    for b in (2 * width, width):
        parts += [nn.ConvTranspose2d(2 * b, b, 3, 2, 1, 1), norm(b), act()]
    return init(nn.Sequential(*parts, pad(3), nn.Conv2d(width, 3, 7), nn.Tanh()), normal(0.02), nn.Conv2d, nn.ConvTranspose2d)  # fmt: skip


def projection_critic(width: int = 64) -> nn.Module:  # SNGAN
    def spectral(layer: Any, gain: float = 1.0) -> Any:
        nn.init.xavier_uniform_(layer.weight, gain)
        return spectral_norm(layer, eps=1e-6)

    def run(m: Any, x: Tensor, kinds: Tensor) -> Tensor:
        x = m.net(x).sum((2, 3))
        return m.linear(x) + (m.classes(kinds) * x).sum(1, keepdim=True)

    wide, skip = lambda a: spectral(conv(a, width), math.sqrt(2.0)), lambda a: spectral(conv(a, width, 1))
    pool, two = lambda *parts: nn.Sequential(*parts, nn.AvgPool2d(2)), lambda: [nn.ReLU(), wide(width), nn.ReLU(), wide(width)]  # fmt: skip
    start = summed(pool(wide(3), nn.ReLU(), wide(width)), nn.Sequential(nn.AvgPool2d(2), skip(3)))
    net = nn.Sequential(start, *(summed(pool(*two()), pool(skip(width))) for _ in range(2)), Residual(*two()), nn.ReLU())  # fmt: skip
    return Net(run, net=net, linear=spectral(nn.Linear(width, 1)), classes=spectral(nn.Embedding(10, width)))


def edm(width: int = 48) -> nn.Module:
    def block(m: Any, x: Tensor, c: Tensor) -> Tensor:
        scale, shift = m.affine(c)[..., None, None].chunk(2, 1)
        y = m.conv1(F.dropout(F.silu(shift + m.norm1(m.conv0(F.silu(m.norm0(x)))) * (scale + 1.0)), 0.1))
        return (x + y) * 0.5**0.5

    def run(m: Any, x: Tensor, level: Tensor) -> Tensor:
        s, angles = level[:, None, None, None], (level.log() / 4.0)[:, None] * m.waves
        total, c = s.square() + 0.25, F.silu(m.embed(torch.cat([angles.cos(), angles.sin()], 1)))
        y = m.start(x / total.sqrt())
        for part in m.blocks:
            y = part(y, c)
        return 0.25 / total * x + 0.5 * s / total.sqrt() * m.end(F.silu(m.norm(y)))

    norm, tiny = lambda: nn.GroupNorm(8, width, eps=1e-6), lambda layer: init(layer, lambda w: nn.init.xavier_uniform_(w).data.mul_(1e-5))  # fmt: skip
    make = lambda: Net(block, norm0=norm(), conv0=xavier(conv(width, width)), affine=xavier(nn.Linear(64, 2 * width)), norm1=norm(), conv1=tiny(conv(width, width)))  # fmt: skip
    embed, waves = nn.Sequential(xavier(nn.Linear(32, 64)), nn.SiLU(), xavier(nn.Linear(64, 64))), 1e4 ** -(torch.arange(16) / 16)  # fmt: skip
    return Net(run, embed=embed, waves=waves, start=xavier(conv(3, width)), blocks=[make() for _ in range(4)], norm=norm(), end=tiny(conv(width, 3)))  # fmt: skip


def made(pixels: int = 64, hidden: int = 128) -> nn.Module:
    orders = [torch.arange(pixels), *(ids(pixels - 1, hidden, seed=n) for n in (1, 2)), torch.arange(pixels) - 1]

    def masked(before: Tensor, after: Tensor) -> nn.Module:
        run = lambda m, x: F.linear(x, m.weight * m.mask, m.bias)
        plain = nn.Linear(len(before), len(after))
        return Net(run, weight=plain.weight, bias=plain.bias, mask=(after[:, None] >= before).float())

    layers = [part for pair in pairwise(orders) for part in (masked(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


# -- fields and science


def nerf(width: int = 128) -> nn.Module:
    def waves(x: Tensor, count: int) -> Tensor:
        return torch.cat([x, *(wave(2.0**n * x) for n in range(count) for wave in (torch.sin, torch.cos))], -1)

    def run(m: Any, points: Tensor, views: Tensor) -> Tensor:
        x = seen = waves(points, 10)
        for n, layer in enumerate(m.layers):
            x = F.relu(layer(x))
            x = torch.cat([seen, x], -1) if n == 4 else x
        side = waves(F.normalize(views, dim=-1), 4)[:, None].expand(-1, points.shape[1], -1)
        colour = m.rgb(F.relu(m.views(torch.cat([m.feature(x), side], -1)))).sigmoid()
        density = m.alpha(x)[..., 0]
        alpha = 1.0 - torch.exp(-F.relu(density + torch.randn_like(density)) * 0.2)
        left = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1.0 - alpha + 1e-10], 1), 1)[:, :-1]
        return ((alpha * left)[..., None] * colour).sum(1)

    layers = [nn.Linear(a, width) for a in (63, *[width] * 4, width + 63, width, width)]
    heads = {"feature": nn.Linear(width, width), "views": nn.Linear(width + 27, width // 2), "rgb": nn.Linear(width // 2, 3)}  # fmt: skip
    return Net(run, layers=layers, alpha=nn.Linear(width, 1), **heads)


def hash_grid(levels: int = 8, size: int = 4096) -> nn.Module:  # instant NGP
    def run(m: Any, places: Tensor, views: Tensor) -> tuple[Tensor, Tensor]:
        found = []
        for n, table in enumerate(m.tables):
            at = places * math.floor(8 * 1.5**n)
            own, near = (at.floor().long()[:, None] + m.corners) * m.primes, (at - at.floor())[:, None]
            weights = torch.where(m.corners == 1, near, 1.0 - near).prod(-1, keepdim=True)
            found.append((weights * table((own[..., 0] ^ own[..., 1] ^ own[..., 2]) % size)).sum(1))
        density, feature = m.sigma(torch.cat(found, 1)).split([1, 15], 1)
        return m.colour(torch.cat([feature, F.normalize(views, dim=-1)], 1)), density.exp()

    plain = partial(mlp, bias=False)
    tables = [init(nn.Embedding(size, 2), lambda weight: nn.init.uniform_(weight, -1e-4, 1e-4), nn.Embedding) for _ in range(levels)]  # fmt: skip
    hashed = {"corners": plane(*[torch.arange(2)] * 3).reshape(8, 3), "primes": torch.tensor([1, 2654435761, 805459861])}  # fmt: skip
    return Net(run, tables=tables, **hashed, sigma=plain(2 * levels, 64, 16), colour=nn.Sequential(plain(18, 64, 64, 3), nn.Sigmoid()))  # fmt: skip


def deep_o_net(sensors: int = 50, width: int = 100) -> nn.Module:
    run = lambda m, seen, places: torch.einsum("bi,ni->bn", m.branch(seen), m.trunk(places)) + m.bias
    trunk = nn.Sequential(mlp(2, width, width, width, act=nn.Tanh), nn.Tanh())
    return init(Net(run, branch=mlp(sensors, width, width, width), trunk=trunk, bias=zeros(1)), nn.init.xavier_normal_)


def fourier_operator(width: int = 24, n: int = 5) -> nn.Module:
    def mixed(m: Any, x: Tensor) -> Tensor:
        waves = torch.fft.rfft2(x)
        out = torch.zeros_like(waves)
        out[:, :, :n, :n] = torch.einsum("bixy,ioxy->boxy", waves[:, :, :n, :n], m.weights1)
        out[:, :, -n:, :n] = torch.einsum("bixy,ioxy->boxy", waves[:, :, -n:, :n], m.weights2)
        return torch.fft.irfft2(out, s=x.shape[-2:])

    def run(m: Any, x: Tensor) -> Tensor:
        grid = plane(*(torch.linspace(0.0, 1.0, side) for side in x.shape[1:3])).expand(len(x), -1, -1, -1)
        return m.q(m.blocks(m.p(torch.cat([x, grid], -1)).permute(0, 3, 1, 2)))

    weights = lambda: nn.Parameter(width**-2 * torch.rand(width, width, n, n, dtype=torch.cfloat))
    layer = lambda: summed(Net(mixed, weights1=weights(), weights2=weights()), conv(width, width, 1))
    out = nn.Sequential(conv(width, 4 * width, 1), nn.GELU(), conv(4 * width, 1, 1))
    return Net(run, p=nn.Linear(3, width), blocks=nn.Sequential(layer(), nn.GELU(), layer(), nn.GELU(), layer()), q=out)


def burgers() -> nn.Module:  # a PINN
    def run(m: Any, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        x, t = x.detach().requires_grad_(), t.detach().requires_grad_()
        u = m.net(torch.cat([x, t], 1))
        u_x, u_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
        u_xx = torch.autograd.grad(u_x.sum(), x, create_graph=True)[0]
        return u, u_t + u * u_x - 0.01 / math.pi * u_xx

    return Net(run, net=init(mlp(2, *[40] * 5, 1, act=nn.Tanh), nn.init.xavier_normal_))


# -- graphs and points


def message_passing(seen: int = 12, dim: int = 24) -> nn.Module:
    def run(m: Any, x: Tensor, edges: Tensor) -> Tensor:
        first = h = F.relu(m.start(x))
        maps = m.net(edges).unflatten(-1, (dim, dim))
        for _ in range(3):
            message = F.relu(torch.einsum("bijxy,bjx->bijy", maps, h).mean(2) + m.bias)
            h = m.gru(message.flatten(0, 1), h.flatten(0, 1)).view_as(h)
        q, state = torch.zeros(1, len(x), 2 * dim), None
        for _ in range(2):
            out, state = m.lstm(q, state)
            scores = (first + h) @ out[0][..., None]
            q = torch.cat([out[0], (scores.softmax(1) * h).sum(1)], -1)[None]
        return m.head(q[0])

    parts = {"start": nn.Linear(seen, dim), "net": mlp(5, 64, dim * dim), "bias": zeros(dim), "head": mlp(2 * dim, dim, 1)}  # fmt: skip
    return Net(run, **parts, gru=nn.GRUCell(dim, dim), lstm=nn.LSTM(2 * dim, dim))


def aggregators(dim: int = 40, nodes: int = 32) -> nn.Module:  # PNA
    def layer(m: Any, x: Tensor, links: Tensor) -> Tensor:
        degree, on = links.sum(1, keepdim=True), links[..., None] > 0
        own = m.pre(torch.cat([x[:, None].expand(-1, nodes, -1), x[None].expand(nodes, -1, -1)], -1))
        mean = own.where(on, 0.0).sum(1) / degree
        std = (F.relu(own.square().where(on, 0.0).sum(1) / degree - mean.square()) + 1e-5).sqrt()
        found = torch.cat([mean, own.where(on, -torch.inf).amax(1), own.where(on, torch.inf).amin(1), std], -1)
        scale = (degree + 1.0).log() / (degree + 1.0).log().mean()
        return x + F.relu(m.norm(m.mix(m.post(torch.cat([x, found, found * scale, found / scale], -1)))))

    def run(m: Any, kinds: Tensor) -> Tensor:
        x = m.embedding(kinds)
        for part in m.layers:
            x = part(x, m.links)
        return m.head(x)

    make = lambda: Net(layer, pre=nn.Linear(2 * dim, dim), post=nn.Linear(13 * dim, dim), mix=nn.Linear(dim, dim), norm=nn.BatchNorm1d(dim))  # fmt: skip
    links = (ids(6, nodes, nodes, seed=4) == 0) | torch.eye(nodes, dtype=torch.bool).roll(1, 0)
    return Net(run, embedding=nn.Embedding(20, dim), layers=[make(), make()], links=(links | links.T).float(), head=mlp(dim, dim // 2, 3))  # fmt: skip


def dynamic_graph(near: int = 6) -> nn.Module:
    def edge(m: Any, x: Tensor) -> Tensor:
        own, size = x.mT, x.square().sum(1)
        index = (2.0 * own @ x - size[:, None] - size[..., None]).topk(near, -1).indices
        others = torch.stack([points[at] for points, at in zip(own, index, strict=True)])
        here = own[:, :, None].expand_as(others)
        return m.conv(torch.cat([others - here, here], -1).permute(0, 3, 1, 2)).amax(-1)

    def run(m: Any, x: Tensor) -> Tensor:
        x = m.wide(torch.cat([x := layer(x) for layer in m.edges], 1))
        return m.head(torch.cat([x.amax(-1), x.mean(-1)], 1))

    act = partial(nn.LeakyReLU, 0.2)
    edges = [Net(edge, conv=nn.Sequential(conv(2 * a, b, 1, bias=False), nn.BatchNorm2d(b), act())) for a, b in pairwise((3, 32, 32, 64))]  # fmt: skip
    layer = lambda a, b: [nn.Linear(a, b, bias=False), nn.BatchNorm1d(b), act(), nn.Dropout()]
    wide = nn.Sequential(nn.Conv1d(128, 128, 1, bias=False), nn.BatchNorm1d(128), act())
    return Net(run, edges=edges, wide=wide, head=nn.Sequential(*layer(256, 128), *layer(128, 64), nn.Linear(64, 10)))


# -- recommenders and tables


def extreme_fm(fields: int = 8, values: int = 30, dim: int = 10, maps: int = 24) -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x = x + m.offsets
        e = m.embedding(x)
        h, first = F.relu(m.cin[0](torch.einsum("bhd,bmd->bhmd", e, e).flatten(1, 2))).chunk(2, 1)
        last = F.relu(m.cin[1](torch.einsum("bhd,bmd->bhmd", h, e).flatten(1, 2)))
        return m.linear(x).sum(1) + m.head(torch.cat([first, last], 1).sum(-1)) + m.deep(e.flatten(1))

    tables = {"linear": nn.Embedding(fields * values, 1), "embedding": nn.Embedding(fields * values, dim), "offsets": values * torch.arange(fields)}  # fmt: skip
    cin = [nn.Conv1d(fields * a, maps, 1) for a in (fields, maps // 2)]
    model = Net(run, **tables, cin=cin, deep=mlp(fields * dim, 64, 64, 1), head=nn.Linear(maps // 2 + maps, 1))
    return init(model, nn.init.xavier_normal_, nn.Linear, nn.Embedding)


def interest(items: int = 200, dim: int = 24) -> nn.Module:  # DIN
    def dice(m: Any, x: Tensor) -> Tensor:
        p = m.bn(x).sigmoid()
        return p * x + (1.0 - p) * m.alpha * x

    def run(m: Any, history: Tensor, item: Tensor) -> Tensor:
        k, v = m.items(history), m.items(item)
        q = v[:, None].expand_as(k)
        scores = m.score(torch.cat([q, k, q - k, q * k], -1)).masked_fill((history == 0)[..., None], 0.0)
        return m.deep(torch.cat([(scores * k).sum(1), v], 1))

    act = lambda width: Net(dice, bn=nn.BatchNorm1d(width, eps=1e-8, affine=False), alpha=zeros(width))
    deep = nn.Sequential(nn.Linear(2 * dim, 80), act(80), nn.Linear(80, 40), act(40), nn.Linear(40, 1))
    return Net(run, items=nn.Embedding(items, dim, padding_idx=0), score=mlp(4 * dim, 80, 40, 1, act=nn.Sigmoid), deep=deep)  # fmt: skip


def mult_vae(items: int = 400, hidden: int = 120, dim: int = 40) -> nn.Module:
    def run(m: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log = m.q(m.drop(F.normalize(x))).chunk(2, 1)
        return m.p(mean + torch.randn_like(log) * (0.5 * log).exp()), mean, log

    model = Net(run, drop=nn.Dropout(), q=mlp(items, hidden, 2 * dim, act=nn.Tanh), p=mlp(dim, hidden, items, act=nn.Tanh))  # fmt: skip
    return init(model, nn.init.xavier_normal_, bias=partial(nn.init.trunc_normal_, std=0.001))


def feature_tokens(numbers: int = 8, kinds: tuple[int, ...] = (5, 9, 4), dim: int = 48) -> nn.Module:
    def run(m: Any, x: Tensor, chosen: Tensor) -> Tensor:
        x = torch.cat([torch.ones_like(x[:, :1]), x], 1)[..., None] * m.weight
        x = torch.cat([x, *(table(chosen[:, n, None]) for n, table in enumerate(m.tables))], 1)
        return m.head(m.blocks(x + F.pad(m.bias, (0, 0, 1, 0)))[:, 0])

    mixer = lambda dim, heads: init(attention(dim, heads), partial(nn.init.xavier_uniform_, gain=2**-0.5))
    bound, reglu = lambda weight: nn.init.uniform_(weight, -(dim**-0.5), dim**-0.5), lambda m, x: x.chunk(2, -1)[0] * F.relu(x.chunk(2, -1)[1])  # fmt: skip
    body = blocks(3, dim, 4, mixer=mixer)
    for feed in body[1::2]:
        feed[1] = nn.Sequential(nn.Linear(dim, 128), Net(reglu), nn.Linear(64, dim))
    body[0] = Residual(body[0][1])
    tokens = {"weight": bound(zeros(numbers + 1, dim)), "bias": bound(zeros(numbers + len(kinds), dim))}
    tables = [init(nn.Embedding(count, dim), bound, nn.Embedding) for count in kinds]
    return Net(run, **tokens, tables=tables, blocks=body, head=nn.Sequential(nn.LayerNorm(dim), nn.ReLU(), nn.Linear(dim, 1)))  # fmt: skip


# -- policies and worlds


def impala(actions: int = 9) -> nn.Module:
    run = lambda m, x: (m.actor(y := m.trunk(x.permute(0, 3, 1, 2) / 255.0)), m.critic(y))
    res = lambda b: Residual(nn.ReLU(), conv(b, b), nn.ReLU(), conv(b, b))
    block = lambda a, b: [conv(a, b), nn.MaxPool2d(3, 2, 1), res(b), res(b)]
    trunk = nn.Sequential(*block(3, 16), *block(16, 32), nn.Flatten(), nn.ReLU(), nn.Linear(2048, 256), nn.ReLU())
    ends = {name: init(nn.Linear(256, n), partial(nn.init.orthogonal_, gain=g)) for name, n, g in (("actor", actions, 0.01), ("critic", 1, 1.0))}  # fmt: skip
    return Net(run, trunk=trunk, **ends)


def policy_gradient(o: tuple[Tensor, Tensor]) -> Tensor:
    logs, returns = o[0].log_softmax(1), noise(*o[1].shape, seed=5)
    taken = logs.gather(1, labels(len(logs), logs.shape[1])[:, None])
    entropy = -(logs.exp() * logs).sum(1).mean()
    return -(taken * (returns - o[1].detach())).mean() + 0.5 * F.mse_loss(o[1], returns) - 0.01 * entropy


def soft_actor_critic(seen: int = 17, actions: int = 6, width: int = 128) -> nn.Module:
    def run(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        h = m.net(x)
        chosen = torch.distributions.Normal(m.mu(h), m.log_std(h).clamp(-20.0, 2.0).exp())
        u = chosen.rsample()
        log_p = (chosen.log_prob(u) - 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))).sum(-1, keepdim=True)
        both = torch.cat([x, torch.tanh(u)], -1)
        return torch.minimum(m.q1(both), m.q2(both)), log_p

    critics = {name: mlp(seen + actions, width, width, 1) for name in ("q1", "q2")}
    return Net(run, net=nn.Sequential(mlp(seen, width, width), nn.ReLU()), mu=nn.Linear(width, actions), log_std=nn.Linear(width, actions), **critics)  # fmt: skip


def rainbow(actions: int = 6, atoms: int = 51) -> nn.Module:
    def noisy(a: int, b: int) -> nn.Module:
        left, right = (x.sign() * x.abs().sqrt() for x in (torch.randn(a), torch.randn(b)))
        means = {name: nn.init.uniform_(zeros(*s), -(a**-0.5), a**-0.5) for name, s in (("weight_mu", (b, a)), ("bias_mu", (b,)))}  # fmt: skip
        sigmas = {"weight_sigma": nn.Parameter(torch.full((b, a), 0.5 * a**-0.5)), "bias_sigma": nn.Parameter(torch.full((b,), 0.5 * b**-0.5))}  # fmt: skip
        weight, bias = (lambda m: m.weight_mu + m.weight_sigma * m.weight_epsilon), lambda m: m.bias_mu + m.bias_sigma * m.bias_epsilon  # fmt: skip
        return Net(lambda m, x: F.linear(x, weight(m), bias(m)), **means, **sigmas, weight_epsilon=torch.outer(right, left), bias_epsilon=right)  # fmt: skip

    def run(m: Any, x: Tensor) -> Tensor:
        x = m.convs(x)
        value, advantage = m.value(x)[:, None], m.advantage(x).unflatten(1, (-1, atoms))
        return (value + advantage - advantage.mean(1, keepdim=True)).log_softmax(2)

    convs = nn.Sequential(nn.Conv2d(4, 32, 5, 5), nn.ReLU(), nn.Conv2d(32, 64, 5, 5), nn.ReLU(), nn.Flatten())
    stream = lambda out: nn.Sequential(noisy(576, 256), nn.ReLU(), noisy(256, out))
    return Net(run, convs=convs, value=stream(atoms), advantage=stream(actions * atoms))


def world_model(seen: int = 24, actions: int = 4, width: int = 64, kinds: tuple[int, int] = (8, 8)) -> nn.Module:
    def gated(m: Any, x: Tensor, h: Tensor) -> Tensor:
        reset, new, update = m.norm(m.layer(torch.cat([x, h], -1))).chunk(3, -1)
        update = torch.sigmoid(update - 1.0)
        return update * torch.tanh(reset.sigmoid() * new) + (1.0 - update) * h

    def run(m: Any, views: Tensor, acts: Tensor) -> tuple[Tensor, ...]:
        h, z, found = torch.zeros(len(views), width), torch.zeros(len(views), 64), []
        for t in range(views.shape[1]):
            h = m.cell(m.into(torch.cat([z, acts[:, t]], -1)), h)
            prior = m.prior(h).unflatten(-1, kinds).log_softmax(-1)
            post = m.post(torch.cat([h, m.encoder(views[:, t])], -1)).unflatten(-1, kinds).log_softmax(-1)
            p = post.exp()
            hot = F.one_hot(torch.multinomial(p.flatten(0, 1), 1).view(p.shape[:-1]), kinds[1])
            z = (hot + p - p.detach()).flatten(1)
            both = torch.cat([h, z], -1)
            found.append((m.decoder(both), m.reward(both), prior, post))
        return tuple(torch.stack(parts, 1) for parts in zip(*found, strict=True))

    sizes = {"encoder": (seen, 64, 64), "decoder": (width + 64, 64, seen), "prior": (width, 64, 64), "post": (width + 64, 64, 64), "reward": (width + 64, 64, 1)}  # fmt: skip
    cell = Net(gated, layer=nn.Linear(64 + width, 3 * width, bias=False), norm=nn.LayerNorm(3 * width))
    return Net(run, into=mlp(64 + actions, 64, act=nn.ELU), cell=cell, **{name: mlp(*size, act=nn.ELU) for name, size in sizes.items()})  # fmt: skip


def alpha_zero(planes: int = 17, width: int = 64, side: int = 9) -> nn.Module:
    run = lambda m, x: (m.policy(y := m.tower(x)), m.value(y))
    res = lambda: nn.Sequential(Residual(conv_bn(width, width), conv_bn(width, width, act=nn.Identity)), nn.ReLU())
    policy = nn.Sequential(conv_bn(width, 2, 1), nn.Flatten(), nn.Linear(2 * side**2, side**2 + 1))
    value = nn.Sequential(conv_bn(width, 1, 1), nn.Flatten(), mlp(side**2, 64, 1), nn.Tanh())
    return Net(run, tower=nn.Sequential(conv_bn(planes, width), res(), res(), res()), policy=policy, value=value)


# -- sound


def x_vector(speakers: int = 20) -> nn.Module:
    def run(m: Any, x: Tensor, own: Tensor) -> Tensor:
        x = m.frames(x)
        x = m.out(torch.cat([x.mean(2), (x.var(2) + 1e-5).sqrt()], 1))
        cosine = F.linear(F.normalize(x), F.normalize(m.speakers))
        return 30.0 * torch.where(F.one_hot(own, speakers) > 0, cosine - 0.2, cosine)

    sizes = [(40, 64, 5, 1), (64, 64, 3, 2), (64, 64, 3, 3), (64, 64, 1, 1), (64, 192, 1, 1)]
    frames = [p for a, b, k, d in sizes for p in (nn.Conv1d(a, b, k, dilation=d), nn.ReLU(), nn.BatchNorm1d(b))]
    out = nn.Sequential(nn.Linear(384, 96), nn.ReLU(), nn.BatchNorm1d(96), nn.Linear(96, 96))
    return Net(run, frames=nn.Sequential(*frames), out=out, speakers=nn.init.xavier_normal_(zeros(speakers, 96)))


def sinc_net(filters: int = 24, size: int = 65, rate: float = 8000.0) -> nn.Module:
    def sinc(m: Any, x: Tensor) -> Tensor:
        low = 50.0 + m.low.abs()
        high = (low + 50.0 + m.band.abs()).clamp(50.0, rate / 2.0)
        left = (torch.sin(high @ m.times[None]) - torch.sin(low @ m.times[None])) / (m.times / 2.0) * m.window
        return F.conv1d(x, (torch.cat([left, 2.0 * (high - low), left.flip(1)], 1) / (2.0 * (high - low)))[:, None])

    mels = torch.linspace(69.0, 2595.0 * math.log10(1.0 + (rate / 2.0 - 100.0) / 700.0), filters + 1)
    hertz = 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
    window = 0.54 - 0.46 * torch.cos(2.0 * math.pi * torch.linspace(0.0, size / 2 - 1, size // 2) / size)
    times = 2.0 * math.pi * torch.arange(-(size // 2), 0.0) / rate
    first = Net(sinc, low=nn.Parameter(hertz[:-1, None]), band=nn.Parameter(hertz.diff()[:, None]), times=times, window=window)  # fmt: skip
    after = lambda width, size: [nn.MaxPool1d(3), nn.LayerNorm([width, size]), nn.LeakyReLU(0.2)]
    parts = [nn.LayerNorm([1, 640]), first, *after(24, 192), nn.Conv1d(24, 32, 5), *after(32, 62), nn.Flatten()]
    parts += [nn.Linear(1984, 128, bias=False), nn.BatchNorm1d(128, momentum=0.05), nn.LeakyReLU(0.2)]
    return nn.Sequential(*parts, nn.Linear(128, 12), nn.LogSoftmax(1))


def wav2letter(seen: int = 40, letters: int = 29) -> nn.Module:
    layer = lambda a, b, k, s=1: [nn.Conv1d(a, b, k, s, k // 2), nn.BatchNorm1d(b), nn.Hardtanh(0.0, 20.0)]
    body = [*layer(seen, 64, 11, 2), *layer(64, 64, 11), *layer(64, 96, 13), *layer(96, 128, 1)]
    return nn.Sequential(*body, nn.Conv1d(128, letters, 1), nn.LogSoftmax(1))


# -- large


def vgg16() -> nn.Module:
    widths = [3, 64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0]
    seen = [width or widths[n - 1] for n, width in enumerate(widths)]
    body = [part for a, b in zip(seen, widths[1:], strict=False) for part in ((conv(a, b), nn.ReLU()) if b else (nn.MaxPool2d(2),))]  # fmt: skip
    layer = lambda a: [nn.Linear(a, 4096), nn.ReLU(), nn.Dropout()]
    model = nn.Sequential(*body, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *layer(512 * 49), *layer(4096), nn.Linear(4096, 1000))  # fmt: skip
    return init(init(model, fan_out, nn.Conv2d), normal(0.01), nn.Linear)


def staged(a: int, sizes: list[tuple[int, int]], block: Any, first: int, k: int) -> list[nn.Module]:
    parts = []
    for n, (b, depth) in enumerate(sizes):
        for at in range(depth):
            s = 2 if at == 0 and n >= first else 1
            skip = nn.Sequential(conv(a, b, k if s == 2 else 1, s, bias=False), nn.BatchNorm2d(b)) if at == 0 else nn.Identity()  # fmt: skip
            parts += [summed(nn.Sequential(*block(a, b, s)), skip), nn.ReLU()]
            a = b
    return parts


def senet154() -> nn.Module:
    last = lambda b: [conv(b, b, 1, bias=False), nn.BatchNorm2d(b), excite(b, b // 16)]
    block = lambda a, b, s: [conv_bn(a, b // 2, 1), conv_bn(b // 2, b, 3, s, 64), *last(b)]
    stem = [conv_bn(3, 64, s=2), conv_bn(64, 64), conv_bn(64, 128), nn.MaxPool2d(3, 2, ceil_mode=True)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(2048, 1000)]
    return nn.Sequential(*stem, *staged(128, [(256, 3), (512, 8), (1024, 36), (2048, 3)], block, 1, 3), *head)


def regnet_y() -> nn.Module:
    last = lambda a, b: [excite(b, a // 4), conv(b, b, 1, bias=False), nn.BatchNorm2d(b)]
    block = lambda a, b, s: [conv_bn(a, b, 1), conv_bn(b, b, 3, s, b // 232), *last(a, b)]
    body = staged(32, [(232, 2), (696, 5), (1392, 12), (3712, 1)], block, 0, 1)
    model = nn.Sequential(conv_bn(3, 32, s=2), *body, *classifier(3712, 1000))
    return init(init(model, fan_out, nn.Conv2d), normal(0.01), nn.Linear)


def sinusoids(at: Tensor, dim: int) -> Tensor:
    angles = at.float()[..., None] * 1e4 ** -(torch.arange(dim // 2) / (dim // 2))
    return torch.cat([angles.sin(), angles.cos()], -1)


def masked_autoencoder(dim: int = 768, inner: int = 512, kept: int = 4) -> nn.Module:
    def run(m: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        target = F.pixel_unshuffle(x, 16).flatten(2).mT
        target = (target - target.mean(-1, keepdim=True)) / (target.var(-1, keepdim=True) + 1e-6).sqrt()
        x, order = m.patch(x).flatten(2).mT + m.places[:, 1:], torch.rand(len(x), 16).argsort(1)
        back, first = order.argsort(1), (m.cls + m.places[:, :1]).expand(len(x), -1, -1)
        x = x.gather(1, order[:, :kept, None].expand(-1, -1, dim))
        x = m.embed(m.norm(m.encoder(torch.cat([first, x], 1))))
        full = torch.cat([x[:, 1:], m.mask.expand(len(x), 16 - kept, -1)], 1).gather(1, back[..., None].expand(-1, -1, inner))  # fmt: skip
        x = m.decoder(torch.cat([x[:, :1], full], 1) + m.decoder_places)
        return m.head(m.decoder_norm(x))[:, 1:], target, (back >= kept).float()

    at = plane(torch.arange(4), torch.arange(4)).flatten(0, 1)
    fixed = lambda dim: F.pad(sinusoids(at.flip(-1), dim // 2).flatten(1), (0, 0, 1, 0))[None]
    tokens = {"cls": normal(0.02)(zeros(1, 1, dim)), "mask": normal(0.02)(zeros(1, 1, inner)), "places": fixed(dim), "decoder_places": fixed(inner)}  # fmt: skip
    encoder = {"patch": nn.Conv2d(3, dim, 16, 16), "encoder": blocks(12, dim, 12), "norm": nn.LayerNorm(dim), "embed": nn.Linear(dim, inner)}  # fmt: skip
    decoder = {"decoder": blocks(8, inner, 16), "decoder_norm": nn.LayerNorm(inner), "head": nn.Linear(inner, 768)}
    model = xavier(Net(run, **tokens, **encoder, **decoder))
    nn.init.xavier_uniform_(model.patch.weight.data.flatten(1))
    return model


def ddpm(width: int = 128, mults: tuple[int, ...] = (1, 1, 2, 2, 4, 4)) -> nn.Module:
    def res(m: Any, x: Tensor, t: Tensor) -> Tensor:
        y = m.conv1(F.silu(m.norm1(x))) + m.temb(F.silu(t))[..., None, None]
        return m.after(m.attend(m.skip(x) + m.conv2(m.drop(F.silu(m.norm2(y))))))

    def attend(m: Any, x: Tensor) -> Tensor:
        y = m.norm(x)
        q, k, v = (layer(y).flatten(2) for layer in (m.q, m.k, m.v))
        return x + m.out((v @ (q.mT @ k * q.shape[1] ** -0.5).softmax(-1).mT).view_as(x))

    def run(m: Any, x: Tensor, t: Tensor) -> Tensor:
        t, seen = m.time(sinusoids(t, width)), [x := m.start(x)]
        for part in m.down:
            x = part(x, t)
            seen.append(x)
        for part in m.middle:
            x = part(x, t)
        for part in m.up:
            x = part(torch.cat([x, seen.pop()], 1), t)
        return m.end(x)

    norm, same = lambda a: nn.GroupNorm(32, a, eps=1e-6), nn.Identity
    attention_of = lambda b: Net(attend, norm=norm(b), **{name: conv(b, b, 1) for name in ("q", "k", "v", "out")})

    def block(a: int, b: int, attends: bool = False, after: nn.Module | None = None) -> nn.Module:
        parts = {"norm1": norm(a), "conv1": conv(a, b), "temb": nn.Linear(4 * width, b), "norm2": norm(b), "drop": nn.Dropout(0.1), "conv2": conv(b, b)}  # fmt: skip
        return Net(res, **parts, skip=same() if a == b else conv(a, b, 1), attend=attention_of(b) if attends else same(), after=after or same())  # fmt: skip

    halve = lambda a: Net(lambda m, x, t: m.conv(F.pad(x, (0, 1, 0, 1))), conv=nn.Conv2d(a, a, 3, 2))
    down, kept, a = [], [width], width
    for n, b in enumerate(width * mult for mult in mults):
        down += [block(a, b, n == 4), block(b, b, n == 4), *([halve(b)] if n < len(mults) - 1 else [])]
        kept, a = [*kept, b, b, *([b] if n < len(mults) - 1 else [])], b
    middle, up = [block(a, a, True), block(a, a)], []
    for n, b in reversed([*enumerate(width * mult for mult in mults)]):
        for at in range(3):
            rise = nn.Sequential(nn.Upsample(scale_factor=2.0), conv(b, b)) if at == 2 and n else None
            up, a = [*up, block(a + kept.pop(), b, n == 4, rise)], b
    time = mlp(width, 4 * width, 4 * width, act=nn.SiLU)
    return Net(run, time=time, start=conv(3, width), down=down, middle=middle, up=up, end=nn.Sequential(norm(a), nn.SiLU(), conv(a, 3)))  # fmt: skip


def clip(dim: int = 768, inner: int = 512) -> nn.Module:
    def run(m: Any, x: Tensor, words: Tensor) -> Tensor:
        x = m.patch(x).flatten(2).mT
        x = m.blocks(m.ln_pre(torch.cat([m.cls.expand(len(x), 1, -1), x], 1) + m.places))
        y = m.ln_final(m.text(m.tokens(words) + m.positions[: words.shape[1]]))[torch.arange(len(words)), words.argmax(1)]  # fmt: skip
        x, y = F.normalize(m.ln_post(x[:, 0]) @ m.project, dim=1), F.normalize(y @ m.text_project, dim=1)
        return m.logit_scale.exp() * x @ y.T

    def mixer(dim: int, heads: int, causal: bool) -> nn.Module:
        made = attention(dim, heads, causal)
        xavier(made.qkv), nn.init.zeros_(made.proj.bias)
        return made

    quick = lambda: Net(lambda m, x: x * torch.sigmoid(1.702 * x))
    text = blocks(12, inner, 8, mixer=partial(mixer, causal=True), act=quick)
    for mix, feed in zip(text[::2], text[1::2], strict=True):
        stds = [(mix[1].qkv, inner**-0.5), (mix[1].proj, (24 * inner) ** -0.5), (feed[1][0], (2 * inner) ** -0.5), (feed[1][2], (24 * inner) ** -0.5)]  # fmt: skip
        for layer, std in stds:
            nn.init.normal_(layer.weight, std=std)
    free = lambda std, *shape: normal(std)(zeros(*shape))
    image = {"patch": nn.Conv2d(3, dim, 32, 32, bias=False), "cls": free(dim**-0.5, dim), "places": free(dim**-0.5, 5, dim), "project": free(dim**-0.5, dim, inner)}  # fmt: skip
    image |= {"ln_pre": nn.LayerNorm(dim), "ln_post": nn.LayerNorm(dim), "blocks": blocks(12, dim, 12, mixer=partial(mixer, causal=False), act=quick)}  # fmt: skip
    words = {"tokens": init(nn.Embedding(49408, inner), normal(0.02), nn.Embedding), "positions": free(0.01, 77, inner), "text": text}  # fmt: skip
    words |= {"ln_final": nn.LayerNorm(inner), "text_project": free(inner**-0.5, inner, inner), "logit_scale": nn.Parameter(torch.tensor(math.log(1 / 0.07)))}  # fmt: skip
    return Net(run, **image, **words)


def two_towers(users: int = 250_000, items: int = 600_000, dim: int = 128) -> nn.Module:
    def run(m: Any, user: Tensor, history: Tensor, item: Tensor) -> Tensor:
        left = m.user(torch.cat([m.users(user), m.items(history).mean(1)], 1))
        return F.normalize(left, dim=1) @ F.normalize(m.item(m.items(item)), dim=1).T / 0.05

    tables = {"users": nn.Embedding(users, dim), "items": nn.Embedding(items, dim)}
    model = Net(run, **tables, user=mlp(2 * dim, 256, dim), item=mlp(dim, 256, dim))
    return init(model, lambda weight: nn.init.uniform_(weight, -0.05, 0.05), nn.Embedding)


def citrinet(width: int = 1024, letters: int = 1025) -> nn.Module:
    def sep(a: int, b: int, k: int, s: int = 1) -> list[nn.Module]:
        return [nn.Conv1d(a, a, k, s, k // 2, groups=a, bias=False), nn.Conv1d(a, b, 1, bias=False), nn.BatchNorm1d(b)]

    def block(k: int, s: int) -> list[nn.Module]:
        parts = [part for _ in range(4) for part in (*sep(width, width, k), nn.ReLU(), nn.Dropout(0.1))]
        skip = nn.Sequential(nn.Conv1d(width, width, 1, s, bias=False), nn.BatchNorm1d(width))
        return [summed(nn.Sequential(*parts, *sep(width, width, k, s), excite(width, width // 8, conv=nn.Conv1d)), skip), nn.ReLU()]  # fmt: skip

    sizes = [11, 13, 15, 17, 19, 21, 13, 15, 17, 19, 21, 23, 25, 25, 27, 29, 31, 33, 35, 37, 39]
    body = [part for n, k in enumerate(sizes) for part in block(k, 2 if n in (0, 6, 13) else 1)]
    ends = [*sep(width, width, 41), nn.ReLU(), nn.Conv1d(width, letters, 1), nn.LogSoftmax(1)]
    return init(nn.Sequential(*sep(80, width, 5), nn.ReLU(), *body, *ends), nn.init.xavier_uniform_, nn.Conv1d)


# -- the list


def cases() -> Iterator[Case]:
    image, wide, pair = partial(noise, 4, 3, 16, 16), partial(noise, 4, 3, 32, 32), lambda *shape: lambda: (noise(*shape), noise(*shape, seed=1))  # fmt: skip
    pixels, choices = lambda *shape: lambda: ids(256, *shape).float(), lambda *shape: lambda: (noise(*shape) > 1.0).float()  # fmt: skip
    teacher = lambda o: 0.5 * (cross(o[0]) + F.cross_entropy(o[1], ids(10, len(o[1]), seed=6)))
    listed: list[tuple[str, Callable[[], nn.Module], Callable[[], Any], Any]] = [
        ("alexnet", alex_net, wide, cross), ("network in network", in_network, wide, cross), ("xception", xception, image, partial(cross, smooth=0.1)),
        ("mobilenet v3", mobile_net_v3, wide, cross), ("sknet", sk_net, image, cross), ("deit", deit, wide, teacher), ("beit", beit, wide, cross),
        ("deformable", lambda: nn.Sequential(conv_bn(3, 32, s=2), deformable(32, 48), deformable(48, 64), *classifier(64)), image, cross), ("capsules", capsules, partial(noise, 8, 1, 20, 20), margins), ("hardnet", hard_net, partial(noise, 16, 1, 32, 32), triplets),
        ("byol", byol, pair(8, 3, 32, 32), alike), ("vicreg", vicreg, pair(8, 3, 32, 32), variance_covariance),
        ("retinanet", retina_net, partial(noise, 4, 3, 32, 32), detected), ("nnunet", nn_unet, partial(noise, 2, 1, 16, 16, 16), dice), ("dncnn", dn_cnn, image, squared),
        ("rrdb", rrdb_net, partial(noise, 2, 3, 8, 8), against(F.l1_loss)), ("cyclegan", cycle_generator, partial(noise, 1, 3, 32, 32), against(F.l1_loss)),
        ("sngan critic", projection_critic, lambda: (noise(8, 3, 32, 32), ids(10, 8)), hinge), ("made", made, choices(16, 64), binary),
        ("edm", edm, lambda: (noise(4, 3, 16, 16), noise(4, seed=1).exp()), squared), ("nerf", nerf, lambda: (noise(8, 16, 3), noise(8, 3, seed=1)), squared),
        ("hash grid", hash_grid, lambda: (noise(128, 3).sigmoid(), noise(128, 3, seed=1)), rendered), ("deeponet", deep_o_net, lambda: (noise(8, 50), noise(32, 2, seed=1)), relative_error),
        ("fno", fourier_operator, partial(noise, 4, 16, 16, 1), relative_error), ("pinn", burgers, pair(64, 1), residuals),
        ("mpnn", message_passing, lambda: (noise(4, 10, 12), noise(4, 10, 10, 5, seed=1)), against(F.l1_loss)), ("pna", aggregators, partial(ids, 20, 32), cross),
        ("dgcnn", dynamic_graph, partial(noise, 8, 3, 32), partial(cross, smooth=0.2)), ("xdeepfm", extreme_fm, partial(ids, 30, 32, 8), binary),
        ("din", interest, lambda: (ids(200, 16, 10) * (torch.arange(10) < 7), 1 + ids(199, 16, seed=1)), binary), ("mult vae", mult_vae, choices(16, 400), multinomial),
        ("ft transformer", feature_tokens, lambda: (noise(16, 8), ids(4, 16, 3)), against(F.huber_loss)), ("impala", impala, pixels(4, 32, 32, 3), policy_gradient),
        ("sac", soft_actor_critic, partial(noise, 16, 17), lambda o: (0.2 * o[1] - o[0]).mean()), ("rainbow", rainbow, lambda: noise(4, 4, 84, 84).sigmoid(), returns),
        ("dreamer", world_model, lambda: (noise(8, 5, 24), noise(8, 5, 4, seed=1)), worlds), ("alphazero", alpha_zero, partial(noise, 8, 17, 9, 9), played),
        ("x-vector", x_vector, lambda: (noise(8, 40, 40), ids(20, 8)), lambda o: F.cross_entropy(o, ids(20, 8))), ("sincnet", sinc_net, partial(noise, 8, 1, 640), lambda o: F.nll_loss(o, labels(8, 12))),
        ("wav2letter", wav2letter, partial(noise, 4, 40, 48), ctc),
    ]  # fmt: skip
    for name, make, batch, loss in listed:
        yield Case(f"eleventh/{name}", "own code", make, batch, loss)
    small, masked = partial(noise, 2, 3, 64, 64), lambda o: ((o[0] - o[1]).square().mean(-1) * o[2]).sum() / o[2].sum()
    large: list[tuple[str, Callable[[], nn.Module], Callable[[], Any], Any]] = [
        ("vgg16", vgg16, partial(noise, 2, 3, 32, 32), cross), ("senet154", senet154, small, cross), ("regnet y", regnet_y, small, cross),
        ("mae", masked_autoencoder, small, masked), ("ddpm", ddpm, lambda: (noise(1, 3, 64, 64), torch.tensor([300])), squared), ("clip", clip, lambda: (small(), ids(49408, 2, 12)), matched),
        ("two towers", two_towers, lambda: (ids(250_000, 16), ids(600_000, 16, 10), ids(600_000, 16, seed=1)), matched), ("citrinet", citrinet, partial(noise, 2, 80, 96), ctc),
        ("vicreg", partial(vicreg, 8192), pair(8, 3, 32, 32), variance_covariance), ("hash grid", partial(hash_grid, 16, 2**22), lambda: (noise(128, 3).sigmoid(), noise(128, 3, seed=1)), rendered),
    ]  # fmt: skip
    for name, make, batch, loss in large:
        yield Case(f"eleventh/large {name}", "own code", make, batch, loss)
