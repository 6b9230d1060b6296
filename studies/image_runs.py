"""Networks on Fashion-MNIST, all initializations and learning rates of one architecture as one batched program.

Every learning rate is tried for a few steps, the best one of each point is then trained anew in full.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.research.lab import Settings
from sigprop.research.lab.data import ImageBatches, labelled_idx
from sigprop.research.lab.many import train_many
from studies.reproduction import Setting

Point = tuple[float, ...]
COUNTED = 10_000
"""Images of the training set that the accuracy is taken over."""
TRAINED = 0.6
"""Training accuracy from which a point counts as trained; chance is 0.1."""


@dataclass(frozen=True)
class Size:
    points: int
    depth: int
    width: int
    images: int
    batch: int
    probe: int
    steps: int
    together: int

    @property
    def epochs(self) -> float:
        return round(self.steps * self.batch / self.images, 1)


def images_of(setting: Setting, size: Size) -> ImageBatches:
    """Fashion-MNIST on the device."""
    images, labels = labelled_idx(setting.folder("fashion-mnist"), count=size.images)
    return ImageBatches(images.to(setting.device), labels.to(setting.device), size.batch)


class Panel:
    """One architecture, built from a point; its networks are trained together, products in TF32 on a GPU."""

    def __init__(
        self, network: Callable[[Point], nn.Module], size: Size, device: str, batches: ImageBatches, kind: str = "sgd"
    ):
        self.network, self.size, self.device, self.batches, self.kind = network, size, device, batches, kind

    def measured(self, points: list[Point], rates: tuple[float, ...]) -> dict[str, Any]:
        """Probe every rate, train the best anew, and take the accuracy."""
        started = time.perf_counter()
        tried = [(point, rate) for point in points for rate in rates]
        best = _best(points, tried, self.train(tried, self.size.probe)[1])
        models, losses = self.train(list(zip(points, best, strict=True)), self.size.steps)
        images, labels = self.batches.images[:COUNTED], self.batches.labels[:COUNTED]
        return {
            "rate": best,
            "accuracy": [round(_accuracy(model, images, labels), 4) for model in models],
            "loss": [round(value, 4) if value < float("inf") else None for value in losses],
            "seconds": round(time.perf_counter() - started, 1),
        }

    def train(self, cells: list[tuple[Point, float]], steps: int) -> tuple[list[nn.Module], list[float]]:
        """Networks after training, and the mean loss of their last tenth (infinite: it broke)."""
        torch.set_float32_matmul_precision("high")
        mode = "graph" if self.device == "cuda" else "eager"
        settings = Settings(
            steps=steps, optimizer=self.kind, weight_decay=0.0, warmup=0.0, decay="constant", clip=0.0, mode=mode,
            device=self.device,
        )  # fmt: skip
        models, losses = [], []
        for start in range(0, len(cells), self.size.together):
            chunk = cells[start : start + self.size.together]
            made = [self._made(point) for point, _ in chunk]
            runs = train_many(made, self.batches, [rate for _, rate in chunk], settings)
            losses += [run.last for run in runs]
            models += made if steps == self.size.steps else []
        return models, losses

    def _made(self, point: Point) -> nn.Module:
        torch.manual_seed(0)
        with torch.device(self.device):
            return self.network(point)


def drawn_(model: nn.Module, sigma_w: float, sigma_b: float) -> nn.Module:
    """Every matrix and kernel with variance sigma_w^2 / fan_in, every bias of a linear map with sigma_b^2."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.normal_(module.weight, 0.0, sigma_w / module.weight[0].numel() ** 0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, 0.0, sigma_b)
    return model


def _best(points: list[Point], tried: list[tuple[Point, float]], losses: list[float]) -> list[float]:
    """For every point the rate with the lowest loss; the last one where all broke."""
    found = dict.fromkeys(points, tried[-1][1])
    lowest = dict.fromkeys(points, float("inf"))
    for (point, rate), loss in zip(tried, losses, strict=True):
        if loss < lowest[point]:
            lowest[point], found[point] = loss, rate
    return list(found.values())


@torch.no_grad()
def _accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    right = [(model(part).argmax(-1) == truth).sum() for part, truth in zip(images.split(2000), labels.split(2000))]  # noqa: B905
    return float(sum(right)) / len(labels)
