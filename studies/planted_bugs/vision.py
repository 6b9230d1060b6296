"""Bugs in vision models, and in networks over points and sounds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.planted_bugs.case import Setting, bug
from studies.planted_bugs.parts import Vit, classified, fill, he, images, labels, noise, normal


def seen(model: nn.Module, factor: float = 1.0) -> Setting:
    pixels, wanted = images()
    return Setting(model, factor * pixels, classified(wanted))


@bug(
    "vision",
    "a class token of std 200",
    at="cls_token",
    cause="cls_token|token|drown|larger",
    fix="cls_token",
    mend=lambda m: normal(m, "cls_token", 0.02),
)
def loud_token(buggy: bool) -> Setting:
    model: Any = Vit()
    normal(model, "cls_token", 200.0 if buggy else 0.02)
    return seen(model)


@bug(
    "vision",
    "pixels from 0 to 255 enter a ViT as they are",
    at="patches|input|positions",
    cause="input|pixel|batch|drown|position",
    fix="normaliz|divide|input|255|scale",
    mend=lambda m: m.patches.weight.div_(250.0),
)
def raw_pixels(buggy: bool) -> Setting:
    model: Any = Vit()
    return seen(model, 250.0) if buggy else seen(model)


class Residual(nn.Module):
    def __init__(self, width: int, normed: bool = True):
        super().__init__()
        norm = nn.BatchNorm2d if normed else nn.Identity
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), norm(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), norm(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class Resnet(nn.Module):
    def __init__(self, depth: int = 4, width: int = 24, normed: bool = True):
        super().__init__()
        self.stem, self.stem_bn = (
            nn.Conv2d(3, width, 3, 2, 1, bias=False),
            nn.BatchNorm2d(width) if normed else nn.Identity(),
        )
        self.blocks = nn.ModuleList([Residual(width, normed) for _ in range(depth)])
        self.fc = nn.Linear(width, 4)
        he(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem_bn(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.fc(x.mean((2, 3)))


def _gains(model: nn.Module, value: float) -> None:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.constant_(module.weight, value)


@bug(
    "vision",
    "the gain of every batch norm is zero, not only of the last in each block",
    at="bn",
    cause="gain|zero",
    fix="one|1|bn",
    mend=lambda m: _gains(m, 1.0),
)
def all_gains_zero(buggy: bool) -> Setting:
    model: Any = Resnet()
    if buggy:
        _gains(model, 0.0)
    return seen(model)


@bug(
    "vision",
    "sixteen residual blocks without norms, each doubling the variance",
    at="blocks",
    cause="grow|norm|branch",
    fix="conv2|zero|scale|branch|fixup",
    mend=lambda m: [nn.init.zeros_(block.conv2.weight) for block in m.blocks],
)
def normless(buggy: bool) -> Setting:
    model: Any = Resnet(16, normed=False)
    for block in model.blocks:
        block.conv2.weight.data.mul_(2.0 if buggy else 0.0)
    return seen(model)


class Plain(nn.Module):
    """A chain of convolutions, as VGG."""

    def __init__(self, depth: int = 8, width: int = 32):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3 if i == 0 else width, width, 3, padding=1) for i in range(depth)])
        self.fc = nn.Linear(width, 4)
        he(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(x, 2)
        for conv in self.convs:
            x = F.relu(conv(x))
        return self.fc(x.mean((2, 3)))


@bug(
    "vision",
    "a VGG whose convolutions are all of std 0.01",
    at="convs",
    cause="shrink|small|vanish|std|gain",
    fix="kaiming|he\\b|std|sqrt",
    mend=lambda m: he(m),
)
def small_vgg(buggy: bool) -> Setting:
    model: Any = Plain()
    for conv in model.convs if buggy else ():
        nn.init.normal_(conv.weight, 0.0, 0.01)  # type: ignore[arg-type]
    return seen(model)


@bug(
    "vision",
    "biases of -4: most ReLUs of the third convolution are dead",
    at="convs.2",
    cause="dead|negative|bias",
    fix="bias",
    mend=lambda m: fill(m, "convs.2.bias", 0.0),
)
def dead_convolution(buggy: bool) -> Setting:
    model: Any = Plain()
    fill(model, "convs.2.bias", -40.0 if buggy else 0.0)
    return seen(model)


class Depthwise(nn.Module):
    def __init__(self, depth: int = 6, width: int = 48):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 2, 2)
        self.depthwise = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1, groups=width) for _ in range(depth)])
        self.pointwise = nn.ModuleList([nn.Conv2d(width, width, 1) for _ in range(depth)])
        self.fc = nn.Linear(width, 4)
        he(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for first, second in zip(self.depthwise, self.pointwise, strict=True):
            x = F.relu(second(F.relu(first(x))))
        return self.fc(x.mean((2, 3)))


def _depthwise(model: nn.Module, fan: int) -> None:
    for conv in model.depthwise:  # type: ignore[union-attr]
        nn.init.normal_(conv.weight, 0.0, (2 / fan) ** 0.5)


@bug(
    "vision",
    "depthwise convolutions initialized by the fan of full ones",
    at="depthwise",
    cause="fan|group|small|shrink|std",
    fix="depthwise|fan|std",
    mend=lambda m: _depthwise(m, 9),
)
def wrong_fan(buggy: bool) -> Setting:
    model: Any = Depthwise()
    _depthwise(model, 9 * 48 if buggy else 9)
    return seen(model)


class Squeezed(nn.Module):
    def __init__(self, width: int = 32):
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, width, 3, 2, 1), nn.Conv2d(width, width, 3, padding=1)
        self.squeeze, self.excite, self.fc = nn.Linear(width, 8), nn.Linear(8, width), nn.Linear(width, 4)
        he(self.body)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.body(F.relu(self.stem(x))))
        gate = self.excite(F.relu(self.squeeze(x.mean((2, 3))))).sigmoid()
        return self.fc((x * gate[:, :, None, None]).mean((2, 3)))


@bug(
    "vision",
    "squeeze-and-excite gates that are shut",
    at="excite",
    cause="gate|shut|closed|sigmoid|saturat|bias",
    fix="bias|excite",
    mend=lambda m: fill(m, "excite.bias", 0.0),
)
def shut_excite(buggy: bool) -> Setting:
    model: Any = Squeezed()
    fill(model, "excite.bias", -30.0 if buggy else 0.0)
    return seen(model)


class Windowed(nn.Module):
    """Attention with a learned bias for every relative position, as Swin."""

    def __init__(self, width: int = 48, places: int = 16):
        super().__init__()
        self.patches, self.qkv, self.proj = (
            nn.Conv2d(3, width, 4, 4),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.norm, self.final, self.fc = nn.LayerNorm(width), nn.LayerNorm(width), nn.Linear(width, 4)
        self.bias_table = nn.Parameter(torch.zeros(2 * places - 1))
        place = torch.arange(places)
        self.register_buffer("offsets", place[:, None] - place[None] + places - 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        query, key, value = self.qkv(self.norm(x)).chunk(3, dim=-1)
        scores = query @ key.transpose(1, 2) * query.shape[-1] ** -0.5 + self.bias_table[self.offsets]  # type: ignore[index]
        x = x + self.proj(scores.softmax(-1) @ value)
        return self.fc(self.final(x).mean(1))


@bug(
    "attention",
    "a table of relative positions of std 20",
    at="bias_table",
    cause="bias_table|bias|position|saturat",
    fix="bias_table",
    mend=lambda m: normal(m, "bias_table", 0.02),
)
def loud_bias_table(buggy: bool) -> Setting:
    model: Any = Windowed()
    normal(model, "bias_table", 20.0 if buggy else 0.02)
    return seen(model)


class Points(nn.Module):
    """PointNet: points are turned by a matrix that a small network predicts."""

    def __init__(self) -> None:
        super().__init__()
        self.turn, self.local, self.fc = nn.Linear(3, 9), nn.Linear(3, 64), nn.Linear(64, 4)
        nn.init.zeros_(self.turn.weight)
        self.turn.bias.data.copy_(torch.eye(3).flatten())

    def forward(self, x: Tensor) -> Tensor:
        turned = x @ self.turn(x.amax(1)).view(-1, 3, 3)
        return self.fc(F.relu(self.local(turned)).amax(1))


@bug(
    "points",
    "the transform of a PointNet starts at zero, not at the identity",
    at="turn",
    cause="zero|does not depend",
    fix="identity|bias|eye",
    mend=lambda m: m.turn.bias.copy_(torch.eye(3).flatten()),
)
def no_identity(buggy: bool) -> Setting:
    model: Any = Points()
    if buggy:
        nn.init.zeros_(model.turn.bias)
    wanted = labels(16, 4)
    x = noise(16, 24, 3) + 2.0 * noise(4, 1, 3, seed=4)[wanted]
    return Setting(model, x, classified(wanted))


class Batched(nn.Module):
    def __init__(self, eps: float):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 3, 2, 1), nn.Conv2d(32, 32, 3, 2, 1)
        self.bn1, self.bn2, self.fc = nn.BatchNorm2d(32, eps=eps), nn.BatchNorm2d(32, eps=eps), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        return self.fc(F.relu(self.bn2(self.conv2(x))).mean((2, 3)))


def _epsilon(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-5


@bug("norms", "batch norms whose epsilon is 1e5", at="bn", cause="eps", fix="eps", mend=_epsilon)
def turned_epsilon(buggy: bool) -> Setting:
    return seen(Batched(1e5 if buggy else 1e-5))


class Waves(nn.Module):
    """Strided convolutions over a raw wave."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(1 if i == 0 else 32, 32, 4, 4) for i in range(3)])
        self.fc = nn.Linear(32, 4)
        he(self)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = F.gelu(conv(x))
        return self.fc(x.mean(-1))


@bug(
    "sound",
    "a wave of 16-bit integers enters as it is",
    at="convs|input",
    cause="input|batch|large|logit|loss",
    fix="normaliz|divide|input|scale",
    mend=lambda m: m.convs[0].weight.div_(2.0**15),
)
def integer_wave(buggy: bool) -> Setting:
    wanted = labels(16, 4)
    wave = 0.3 * noise(16, 1, 256) + noise(4, 1, 256, seed=7)[wanted]
    return Setting(Waves(), (2.0**15 if buggy else 1.0) * wave, classified(wanted))
