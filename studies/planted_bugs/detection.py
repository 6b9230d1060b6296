"""Bugs in detectors and other dense prediction."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.planted_bugs.case import Setting, bug
from studies.planted_bugs.parts import WIDTH, fill, he, images, noise, normal


class Detector(nn.Module):
    """A small backbone, a class head and a box head on every cell."""

    def __init__(self, classes: int = 5):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1, 1),
            nn.ReLU(),
        )
        self.cls_head, self.box_head = nn.Conv2d(64, classes, 3, padding=1), nn.Conv2d(64, 4, 3, padding=1)
        he(self.backbone)
        for head in (self.cls_head, self.box_head):
            nn.init.normal_(head.weight, 0.0, 0.01)
            nn.init.zeros_(head.bias)  # type: ignore[arg-type]
        nn.init.constant_(self.cls_head.bias, -math.log(99.0))  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        features = self.backbone(images)
        logits, boxes = self.cls_head(features), self.box_head(features)
        wanted = torch.zeros_like(logits)
        wanted[:, 1, 1, 1] = 1.0
        cross = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        chance = logits.sigmoid() * wanted + (1 - logits.sigmoid()) * (1 - wanted)
        focal = ((1 - chance) ** 2 * cross).sum() / 8
        sizes = boxes[:, 2:].exp()
        return focal + 0.1 * F.l1_loss(sizes, torch.full_like(sizes, 1.5)) + 0.1 * boxes[:, :2].abs().mean()


@bug(
    "detection",
    "the prior of the focal head has the wrong sign",
    at="cls_head",
    cause="bias|prior",
    fix="bias|prior",
    mend=lambda m: fill(m, "cls_head.bias", -math.log(99.0)),
)
def turned_prior(buggy: bool) -> Setting:
    model: Any = Detector()
    fill(model, "cls_head.bias", math.log(99.0) * (1 if buggy else -1))
    return Setting(model, images()[0])


@bug(
    "detection",
    "the box head is initialized with std 3 before an exponential",
    at="box_head",
    cause="exp|overflow|infin|large|loss",
    fix="box_head",
    mend=lambda m: normal(m, "box_head.weight", 0.01),
)
def exploding_boxes(buggy: bool) -> Setting:
    model: Any = Detector()
    normal(model, "box_head.weight", 3.0 if buggy else 0.01)
    return Setting(model, images()[0])


class Detr(nn.Module):
    """Learned queries read an image's features."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Conv2d(3, WIDTH, 4, 4)
        self.query_embed = nn.Embedding(6, WIDTH)
        layer = {"dropout": 0.0, "batch_first": True}
        self.decoder = nn.ModuleList([nn.TransformerDecoderLayer(WIDTH, 4, 128, **layer) for _ in range(2)])
        self.classes = nn.Linear(WIDTH, 6)

    def forward(self, images: Tensor) -> Tensor:
        memory = self.backbone(images).flatten(2).transpose(1, 2)
        x = self.query_embed.weight.expand(len(images), -1, -1)
        for layer in self.decoder:
            x = layer(x, memory)
        logits = self.classes(x)
        wanted = torch.arange(6).expand(len(images), -1)
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())


@bug(
    "detection",
    "all object queries are zero",
    at="query_embed",
    cause="identical|equal|same|correlat|zero",
    fix="query_embed|normal|random",
    mend=lambda m: normal(m, "query_embed.weight", 1.0),
)
def queries_of_zero(buggy: bool) -> Setting:
    model: Any = Detr()
    normal(model, "query_embed.weight", 0.0 if buggy else 1.0)
    return Setting(model, images()[0])


class Frozen(nn.Module):
    """A backbone with batch norms whose statistics are frozen, as detectors use them."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for place in range(4):
            layers += [nn.Conv2d(3 if place == 0 else 32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
        self.backbone, self.head = he(nn.Sequential(*layers)), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x).mean((2, 3)))


def _statistics(model: nn.Module, variance: float) -> None:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_var.fill_(variance)  # type: ignore[union-attr]


@bug(
    "detection",
    "frozen batch norms whose running variance is zero",
    at="backbone",
    cause="running|statistic|variance",
    fix="running_var|statistic",
    mend=lambda m: _statistics(m, 1.0),
)
def empty_statistics(buggy: bool) -> Setting:
    model: Any = Frozen().eval()
    if buggy:
        _statistics(model, 0.0)
    pixels, wanted = images()
    return Setting(model, pixels, lambda output: F.cross_entropy(output, wanted))


class Objectness(nn.Module):
    """Probabilities by a sigmoid, judged by their squared error."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = he(nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU()))
        self.objectness = nn.Conv2d(32, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        found = self.objectness(self.backbone(x)).sigmoid()
        return F.mse_loss(found, (noise(*found.shape, seed=12) > 1.0).float())


@bug(
    "detection",
    "a sigmoid saturated by its bias",
    at="objectness",
    cause="saturat|bias|sigmoid",
    fix="bias",
    mend=lambda m: fill(m, "objectness.bias", 0.0),
)
def saturated_objectness(buggy: bool) -> Setting:
    model: Any = Objectness()
    fill(model, "objectness.bias", 40.0 if buggy else 0.0)
    return Setting(model, images()[0])
