"""apjn Fig. 12: erf MLPs with LayerNorm on pre-activations train over orders of magnitude of sigma_w^2.

The machinery of Fig. 3: all rates at all points as one program, the best rate of each point then trained in full.
"""

from __future__ import annotations

from typing import Any

from studies.apjn_figure3 import FULL, SMALL, measured_panel
from studies.image_runs import TRAINED, Point, images_of
from studies.reproduction import Judgement, Reproduction, Row, Setting, verdict

POWERS = tuple(range(-3, 6))
"""sigma_w^2 = 10^power; sigma_b = 0."""
RATES = tuple(10.0**power for power in range(-5, 4))
"""Gradients of normalized layers fall like 1 / sigma_w: large weights want large rates."""


def run(setting: Setting) -> dict[str, Any]:
    size = FULL if setting.is_full else SMALL
    batches = images_of(setting, size)
    points: list[Point] = [(10.0 ** (power / 2), 0.0) for power in POWERS]
    work = ("erf", "preactivation", 0.0, points, size, setting.device, batches, RATES)
    found = setting.part("erf", lambda: measured_panel(*work))
    sizes = {"depth": size.depth, "width": size.width, "epochs": size.epochs, "seeds": [0]}
    return {**sizes, "powers": POWERS, "panel": found}


def judge(data: dict[str, Any]) -> Judgement:
    accuracies = dict(zip(data["powers"], data["panel"]["accuracy"], strict=True))
    rows = tuple(
        Row(f"sigma_w^2 = 10^{power}: training accuracy", "trains", f"{accuracy:.0%}, rate {rate:g}")
        for (power, accuracy), rate in zip(accuracies.items(), data["panel"]["rate"], strict=True)
    )
    trained = [power for power, accuracy in accuracies.items() if accuracy >= TRAINED]
    orders = max(trained) - min(trained) if trained else 0
    whole = len(trained) == orders + 1
    why = (
        f"{len(trained)} of {len(accuracies)} points train (from {TRAINED:.0%} accuracy), over {orders} orders of "
        f"magnitude{'' if whole else ', with gaps'}; {data['depth']} layers of width {data['width']}, "
        f"{data['epochs']:g} epochs, one seed."
    )
    return Judgement(verdict(orders >= 3 and whole, orders >= 1), why, rows)


REPRODUCTION = Reproduction(
    id="apjn-figure12",
    paper="apjn",
    place="Fig. 12",
    claim="Deep erf networks with LayerNorm on pre-activations train over several orders of magnitude of sigma_w^2.",
    run=run,
    judge=judge,
    minutes=(2, 1),
    deviation="One seed; small images of clothes in place of CIFAR-10.",
    budget=(("epochs", 5.0), ("seeds", 3.0)),
)
