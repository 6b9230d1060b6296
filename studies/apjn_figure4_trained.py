"""apjn Fig. 4 (3) and (4) in reduced size: ResNets with LayerNorm trained over sigma_w^2 and mu.

The paper trains ResNet-110 on CIFAR-10 for 50 epochs; here fewer and narrower blocks on Fashion-MNIST. SGD with
momentum, each point at its own best rate.
"""

from __future__ import annotations

import itertools
import statistics
from typing import Any

from torch import nn

from sigprop.models import build
from studies.image_runs import Panel, Point, Size, drawn_, images_of
from studies.reproduction import Judgement, Reproduction, Row, Setting

FULL = Size(0, 9, 8, 20_000, 64, 60, 600, 12)
SMALL = Size(0, 3, 4, 2_000, 32, 15, 100, 12)
SQUARES, STRENGTHS = (0.1, 0.5, 2.0, 4.0), (0.0, 0.5, 0.9, 1.0)
RATES = (0.001, 0.01, 0.05)


def run(setting: Setting) -> dict[str, Any]:
    size = FULL if setting.is_full else SMALL
    batches = images_of(setting, size)
    panels = []
    for mu in STRENGTHS:

        def network(point: Point, mu: float = mu) -> nn.Module:
            model = build("resnet", channels=1, width=size.width, depth=size.depth, norm="layer_norm", mu=mu)
            return drawn_(model, point[0] ** 0.5, 0.0)

        panel = Panel(network, size, setting.device, batches, "momentum")
        points: list[Point] = [(square,) for square in SQUARES]
        panels.append(setting.part(f"mu {mu:g}", lambda panel=panel: panel.measured(points, RATES)) | {"mu": mu})  # noqa: B023
        print(panels[-1], flush=True)
    sizes = {"layers": 6 * size.depth + 2, "width": size.width, "epochs": size.epochs, "seeds": [0]}
    return {**sizes, "squares": SQUARES, "panels": panels}


def judge(data: dict[str, Any]) -> Judgement:
    rows = tuple(
        Row(
            f"mu = {panel['mu']:g}: training accuracy at sigma_w^2 = {', '.join(f'{s:g}' for s in data['squares'])}",
            "poor at small sigma_w^2" if panel["mu"] == 0 else "better with mu",
            ", ".join(f"{value:.0%}" for value in panel["accuracy"]),
        )
        for panel in data["panels"]
    )
    means = [statistics.mean(panel["accuracy"]) for panel in data["panels"]]
    critical = [panel["accuracy"][data["squares"].index(2.0)] for panel in data["panels"]]
    rises = all(after >= before - 0.02 for before, after in itertools.pairwise(means))
    poor = data["panels"][0]["accuracy"][0] < 0.3
    why = f"ResNet-{data['layers']} of width {data['width']}, {data['epochs']:g} epochs, one seed. Mean accuracy over "
    why += f"sigma_w^2: {', '.join(f'{value:.0%}' for value in means)} for mu = 0, 0.5, 0.9, 1; at sigma_w^2 = 2 "
    why += f"{', '.join(f'{value:.0%}' for value in critical)}."
    if rises and poor and means[-1] > means[0] + 0.1:
        return Judgement("reproduced", why, rows)
    return Judgement("in order but not in size" if means[-1] > means[0] else "not reproduced", why, rows)


REPRODUCTION = Reproduction(
    id="apjn-figure4-trained",
    paper="apjn",
    place="Fig. 4 (3) and (4), in reduced size",
    claim="ResNets with LayerNorm train better the closer mu is to 1; at mu = 0 and small sigma_w^2 they hardly train.",
    run=run,
    judge=judge,
    minutes=(4, 2),
    budget=(("epochs", 5.0), ("seeds", 3.0)),
)
