"""apjn Fig. 3: where deep MLPs can be trained on Fashion-MNIST, over (sigma_w, sigma_b), in eight panels.

All points of a panel at all learning rates are trained as one batched program for a quarter of an epoch; the best rate
of each point is then trained anew for the paper's ten epochs. The text names erf; the second activation is taken to be
ReLU.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import torch
from torch import nn

from sigprop.models import mlp
from sigprop.research.criticality import architecture, factor_at_depth
from sigprop.research.lab.data import ImageBatches
from studies.apjn_shared import axis
from studies.image_runs import TRAINED, Panel, Point, Size, images_of
from studies.reproduction import Judgement, Reproduction, Row, Setting

PANELS = tuple(itertools.product(("erf", "relu"), ("none", "preactivation"), (0.0, 1.0)))
RATES = tuple(10.0**-power for power in range(5))
CLOSE = 0.1
"""Points with |log chi_J| below this are close to criticality: over 50 layers gradients change by less than e^2.5."""


FULL = Size(8, 50, 500, 60_000, 256, 58, 2340, 160)
SMALL = Size(4, 30, 100, 6_000, 64, 20, 250, 80)


def run(setting: Setting) -> dict[str, Any]:
    size = FULL if setting.is_full else SMALL
    batches = images_of(setting, size)
    points = list(itertools.product(axis(0.25, 3.0, size.points), axis(0.0, 1.5, size.points)))
    panels = []
    for activation, norm, mu in PANELS:
        work = partial(measured_panel, activation, norm, mu, points, size, setting.device, batches)
        panels.append(setting.part(f"{activation} {norm} {mu:g}", work))
        print(panels[-1] | {"rate": None, "loss": None, "chi": None}, flush=True)
    sizes = {"depth": size.depth, "width": size.width, "epochs": size.epochs, "probe_steps": size.probe}
    return {**sizes, "batch": size.batch, "rates": RATES, "points": points, "seeds": [0], "panels": panels}


def measured_panel(
    activation: str,
    norm: str,
    mu: float,
    points: list[Point],
    size: Size,
    device: str,
    batches: ImageBatches,
    rates: tuple[float, ...] = RATES,
) -> dict[str, Any]:
    """Rates, accuracies and losses of all points of one architecture, beside chi_J of theory."""

    def network(point: Point) -> nn.Module:
        settings = {"activation": activation, "norm_placement": norm, "mu": mu}
        return mlp(depth=size.depth, width=size.width, sigma_w=point[0], sigma_b=point[1], **settings)

    found = Panel(network, size, device, batches).measured(points, rates)
    chi = _factors(activation, norm, mu, points, size.depth)
    return {"activation": activation, "norm": norm, "mu": mu, **found, "chi": chi}


def _factors(activation: str, norm: str, mu: float, points: list, depth: int) -> list[float]:
    """chi_J of theory at the last layer."""
    weights, biases = torch.tensor(points, dtype=torch.float64).T
    found = factor_at_depth(architecture(activation, norm, mu), weights, biases, depth)
    return [float(f"{value:.4g}") for value in found.tolist()]


def judge(data: dict[str, Any]) -> Judgement:
    shares = {(p["activation"], p["norm"], p["mu"]): _share(p["accuracy"]) for p in data["panels"]}
    rows = [
        Row(
            f"{activation}, {'LayerNorm' if norm != 'none' else 'no norm'}, mu = {mu:g}: points trained",
            "everywhere" if norm != "none" and mu == 1 else "",
            f"{shares[activation, norm, mu]:.0%}",
        )
        for activation, norm, mu in PANELS
    ]
    close, far = _by_distance(data["panels"])
    rows.append(
        Row("mu = 0: trained of points close to the critical line, of the others", "close", f"{close:.0%}, {far:.0%}")
    )
    everywhere = min(shares[activation, "preactivation", 1.0] for activation in ("erf", "relu"))
    subcritical = shares["erf", "none", 1.0] > shares["erf", "none", 0.0]
    most = all(shares[key[0], "preactivation", 1.0] >= share for key, share in shares.items())
    ordered = most and subcritical and close > far
    if ordered and everywhere == 1.0:
        return Judgement("reproduced", _told(data, "Every point trains with LayerNorm and mu = 1."), tuple(rows))
    if ordered:
        why = f"LayerNorm with mu = 1 trains at least {everywhere:.0%} of the points, the most for each activation."
        return Judgement("in order but not in size", _told(data, why), tuple(rows))
    why = "LayerNorm with mu = 1 does not train the most points for each activation, or the other claims do not hold."
    return Judgement("not reproduced", _told(data, why), tuple(rows))


def _told(data: dict[str, Any], why: str) -> str:
    size = f"{data['depth']} layers of width {data['width']}, {data['epochs']:g} epochs"
    counted = f"a point counts as trained from {TRAINED:.0%} training accuracy"
    minutes = sum(panel.get("seconds", 0.0) for panel in data["panels"]) / 60
    return f"{why} {size}, {len(data['points'])} points a panel, one seed, {minutes:.0f} minutes in all; {counted}."


def _share(accuracies: list[float]) -> float:
    return sum(value >= TRAINED for value in accuracies) / len(accuracies)


def _by_distance(panels: list[dict[str, Any]]) -> tuple[float, float]:
    """Share of trained points close to chi_J = 1 and far from it, in the panels without a skip."""
    points = [
        (abs(torch.tensor(chi).log().item()) < CLOSE, accuracy >= TRAINED)
        for panel in panels
        if panel["mu"] == 0
        for chi, accuracy in zip(panel["chi"], panel["accuracy"], strict=True)
    ]
    close, far = ([trained for near, trained in points if near is side] for side in (True, False))
    return sum(close) / max(len(close), 1), sum(far) / max(len(far), 1)


REPRODUCTION = Reproduction(
    id="apjn-figure3",
    paper="apjn",
    place="Fig. 3",
    claim="MLPs of 50 layers train near the critical line; with LayerNorm and mu = 1 they train everywhere, and erf "
    "with mu = 1 trains more often than without a skip.",
    run=run,
    judge=judge,
    minutes=(4, 6),
    budget=(("epochs", 5.0),),
)
