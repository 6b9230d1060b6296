"""apjn Fig. 5 (3) and (4) in reduced size: MLP-Mixers trained from six initializations, at mu = 0.5 and mu = 1.

The paper trains 100 blocks on CIFAR-10; here Fashion-MNIST. Each initialization has its own best rate.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from sigprop.models import build
from studies.image_runs import TRAINED, Panel, Point, Size, drawn_, images_of
from studies.reproduction import Judgement, Reproduction, Row, Setting

FULL = Size(6, 40, 64, 60_000, 128, 50, 600, 32)
SMALL = Size(6, 16, 32, 6_000, 32, 20, 150, 32)
POINTS: list[Point] = [(0.5, 0.0), (0.5, 1.0), (1.4, 0.0), (1.4, 1.0), (2.5, 0.0), (2.5, 1.0)]
"""(sigma_w, sigma_b): both sides of the line of mu = 0.5."""
RATES = (0.001, 0.01, 0.05, 0.2)


def run(setting: Setting) -> dict[str, Any]:
    size = FULL if setting.is_full else SMALL
    batches = images_of(setting, size)
    panels = []
    for mu in (0.5, 1.0):

        def network(point: Point, mu: float = mu) -> nn.Module:
            shape = {"width": size.width, "token_hidden": 2 * size.width, "channel_hidden": 2 * size.width}
            model = build("mixer", image=28, channels=1, patch=4, depth=size.depth, mu=mu, **shape)
            return drawn_(model, *point)

        panel = Panel(network, size, setting.device, batches)
        panels.append(setting.part(f"mu {mu:g}", lambda panel=panel: panel.measured(POINTS, RATES)) | {"mu": mu})
        print(panels[-1], flush=True)
    sizes = {"depth": size.depth, "width": size.width, "epochs": size.epochs, "seeds": [0]}
    return {**sizes, "points": POINTS, "panels": panels}


def judge(data: dict[str, Any]) -> Judgement:
    half, whole = (panel["accuracy"] for panel in data["panels"])
    rows = tuple(
        Row(f"sigma_w = {w:g}, sigma_b = {b:g}: accuracy at mu = 0.5, at mu = 1", "higher at 1", f"{x:.0%}, {y:.0%}")
        for (w, b), x, y in zip(data["points"], half, whole, strict=True)
    )
    higher = sum(y > x for x, y in zip(half, whole, strict=True))
    narrower = max(whole) - min(whole) < max(half) - min(half)
    trained = sum(value >= TRAINED for value in whole)
    why = (
        f"{data['depth']} blocks of width {data['width']}, {data['epochs']:g} epochs, one seed. At mu = 1 {higher} of "
    )
    why += f"{len(half)} initializations train better and {trained} reach {TRAINED:.0%}; accuracies spread over "
    why += f"{max(whole) - min(whole):.0%}, at mu = 0.5 over {max(half) - min(half):.0%}."
    if higher == len(half) and narrower and trained == len(whole):
        return Judgement("reproduced", why, rows)
    ordered = higher > len(half) / 2 and narrower
    return Judgement("in order but not in size" if ordered else "not reproduced", why, rows)


REPRODUCTION = Reproduction(
    id="apjn-figure5-trained",
    paper="apjn",
    place="Fig. 5 (3) and (4), in reduced size",
    claim="From mu = 0.5 to mu = 1 every MLP-Mixer trains better, and the initialization matters less.",
    run=run,
    judge=judge,
    minutes=(4, 1),
    budget=(("epochs", 5.0), ("seeds", 3.0)),
)
