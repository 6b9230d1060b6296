"""Bugs in contrastive and metric learning."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.planted_bugs.case import Setting, bug
from studies.planted_bugs.parts import fill, labels, noise

PAIRS = 16


class Tower(nn.Module):
    def __init__(self, inputs: int = 32, width: int = 128):
        super().__init__()
        self.fc1, self.fc2, self.proj = nn.Linear(inputs, width), nn.Linear(width, width), nn.Linear(width, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(F.relu(self.fc2(F.relu(self.fc1(x)))))


class Clip(nn.Module):
    """Two towers and the symmetric loss over the pairs of a batch."""

    normalized = True

    def __init__(self, scale: float = math.log(1 / 0.07)):
        super().__init__()
        self.image, self.text = Tower(), Tower()
        self.logit_scale = nn.Parameter(torch.tensor(scale))

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        first, second = self.image(image), self.text(text)
        if self.normalized:
            first, second = F.normalize(first, dim=-1), F.normalize(second, dim=-1)
        logits = self.logit_scale.exp() * first @ second.T
        wanted = torch.arange(len(logits))
        return (F.cross_entropy(logits, wanted) + F.cross_entropy(logits.T, wanted)) / 2


def pairs() -> dict[str, Tensor]:
    image = noise(PAIRS, 32)
    return {"image": image, "text": image @ noise(32, 32, seed=8) / 6 + 0.1 * noise(PAIRS, 32, seed=9)}


@bug(
    "contrastive",
    "the scale is stored as 1 / 0.07, and its exponential taken",
    at="logit_scale",
    cause="scale|temperature|exp",
    fix="logit_scale|log",
    mend=lambda m: m.logit_scale.fill_(math.log(1 / 0.07)),
)
def exponential_scale(buggy: bool) -> Setting:
    return Setting(Clip(1 / 0.07 if buggy else math.log(1 / 0.07)), pairs())


@bug(
    "contrastive",
    "the embeddings are not normalized",
    at="image|text|proj",
    cause="logit|normaliz|similarit|large",
    fix="normaliz|logit_scale|scale|proj",
    mend=lambda m: setattr(m, "normalized", True),
)
def unnormalized(buggy: bool) -> Setting:
    model: Any = Clip()
    for tower in (model.image, model.text):
        for layer in (tower.fc1, tower.fc2, tower.proj):
            nn.init.normal_(layer.weight, 0.0, (2 / layer.in_features) ** 0.5)
    model.normalized = not buggy
    return Setting(model, pairs())


@bug(
    "contrastive",
    "a bias drowns what tells the examples apart",
    at="proj",
    cause="bias|identical|same for|does not depend|hardly depend|correlat",
    fix="bias",
    mend=lambda m: fill(m, "proj.bias", 0.0),
)
def drowned_towers(buggy: bool) -> Setting:
    model: Any = Clip()
    fill(model, "proj.bias", 100.0 if buggy else 0.0)
    return Setting(model, pairs())


class SimClr(nn.Module):
    def __init__(self, temperature: float):
        super().__init__()
        self.encoder, self.temperature = Tower(), temperature

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        features = F.normalize(self.encoder(torch.cat([image, text])), dim=-1)
        logits = features @ features.T / self.temperature
        logits = logits.masked_fill(torch.eye(len(logits), dtype=torch.bool), -1e9)
        return F.cross_entropy(logits, torch.arange(len(logits)).roll(len(image)))


@bug(
    "contrastive",
    "SimCLR at a temperature of 0.0005",
    at="temperature|encoder|logits|loss",
    cause="temperature|logit|scale|similarit",
    fix="temperature|scale",
    mend=lambda m: setattr(m, "temperature", 0.1),
)
def cold(buggy: bool) -> Setting:
    return Setting(SimClr(0.0005 if buggy else 0.1), pairs())


class Byol(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = Tower(), Tower()
        self.predictor = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        for weight in self.target.parameters():
            weight.requires_grad_(False)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        first = F.normalize(self.predictor(self.online(image)), dim=-1)
        return 2 - 2 * (first * F.normalize(self.target(text), dim=-1)).sum(-1).mean()


@bug(
    "contrastive",
    "the predictor of BYOL ends in zeros, which cannot be normalized",
    at="predictor",
    cause="zero",
    fix="predictor|normal|initialize",
    mend=lambda m: nn.init.normal_(m.predictor[2].weight, 0.0, 0.125),
)
def predictor_of_zero(buggy: bool) -> Setting:
    model: Any = Byol()
    if buggy:
        nn.init.zeros_(model.predictor[2].weight)
        nn.init.zeros_(model.predictor[2].bias)
    return Setting(model, pairs())


class Metric(nn.Module):
    """Pairwise distances; the root of the squared distance has no slope at zero."""

    eps = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Tower()

    def forward(self, x: Tensor) -> Tensor:
        features = self.encoder(x)
        squared = (features[:, None] - features[None]).square().sum(-1)
        distance = (squared + self.eps).sqrt()
        wanted = labels(len(x), 4)
        same = wanted[:, None] == wanted[None]
        return torch.where(same, distance, F.relu(1.0 - distance)).mean()


@bug(
    "contrastive",
    "the root of a distance of zero",
    at="encoder|gradient",
    cause="not finite|nan|gradient",
    fix="eps|root|sqrt|distance",
    mend=lambda m: setattr(m, "eps", 1e-8),
)
def root_of_zero(buggy: bool) -> Setting:
    model: Any = Metric()
    model.eps = 0.0 if buggy else 1e-8
    return Setting(model, noise(PAIRS, 32))
