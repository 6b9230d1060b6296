r"""apjn Fig. 11: up to which depth kernel regression learns, erf with LayerNorm on pre-activations, sigma_b^2 = 0.5.

Tangent kernels of infinitely wide networks on Fashion-MNIST (the paper: CIFAR-10), with correlations c of normalized
pre-activations, K the covariance before the norm and T the tangent kernel:

    K <- sigma_w^2 E[phi phi](c) + sigma_b^2,    T <- K + sigma_w^2 E[phi' phi'](c) T / (std std')
    c = K / (std std')

Differences between inputs fall like exp(-l / xi), 1 / xi = -log chi_J, so that a regression with rounding errors (here
a ridge) can tell them apart up to a depth proportional to xi.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sigprop.research.lab.data import labelled_idx
from sigprop.theory.activations import get
from studies.reproduction import Judgement, Reproduction, Row, Setting, mean_and_spread, verdict

SQUARES = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
"""sigma_w^2, all in the ordered phase."""
BIAS, CLASSES, PREFACTOR = 0.5, 10, 28.0
RIDGES = {"32-bit floats": 1e-7, "64-bit floats": 1e-13}
"""Relative to the mean of the diagonal."""


def run(setting: Setting) -> dict[str, Any]:
    train, test = (2000, 1000) if setting.is_full else (400, 300)
    images, labels = labelled_idx(setting.folder("fashion-mnist"), count=train + test)
    x = images.flatten(1).double().to(setting.device)
    rows = []
    for square in SQUARES:
        found = setting.part(f"{square}", lambda s=square: accuracies(x, labels.to(setting.device), train, s))
        rows.append({"sigma_w^2": square, **found})
        print(square, found["depths"][-1], flush=True)
    return {"train": train, "test": test, "rows": rows, "seeds": []}


def accuracies(x: Tensor, labels: Tensor, train: int, square: float) -> dict[str, Any]:
    """Test accuracy over depth, for each ridge; deep enough for twice the paper's prefactor."""
    erf = get("erf")
    length = correlation_length(square)
    last = int(2.2 * PREFACTOR * length) + 2
    wanted = sorted({max(1, round(last * (place / 40) ** 1.5)) for place in range(1, 41)})
    kernel = square * x @ x[:train].T / x.shape[1] + BIAS
    own = square * x.square().mean(1) + BIAS
    tangent, scale = kernel.clone(), torch.outer(own, own[:train]).sqrt()
    found: dict[str, list[float]] = {name: [] for name in RIDGES}
    for depth in range(1, last + 1):
        c = (kernel / scale).clamp(-1.0, 1.0)
        kernel = square * erf.cross_moment(1.0, 1.0, c) + BIAS
        tangent = kernel + square * erf.derivative_cross_moment(1.0, 1.0, c) * tangent / scale
        scale = square * erf.second_moment(1.0) + BIAS
        if depth in wanted:
            for name, ridge in RIDGES.items():
                found[name].append(_accuracy(tangent, labels, train, ridge))
    return {"length": round(length, 4), "depths": wanted, **found}


def correlation_length(square: float) -> float:
    erf = get("erf")
    chi = square * float(erf.derivative_second_moment(1.0)) / (square * float(erf.second_moment(1.0)) + BIAS)
    return -1.0 / math.log(chi)


def _accuracy(tangent: Tensor, labels: Tensor, train: int, ridge: float) -> float:
    targets = torch.nn.functional.one_hot(labels[:train], CLASSES).double() - 1.0 / CLASSES
    system = tangent[:train] + ridge * tangent[:train].diagonal().mean() * torch.eye(train).to(tangent)
    guessed = (tangent[train:] @ torch.linalg.solve(system, targets)).argmax(-1)
    return round((guessed == labels[train:]).double().mean().item(), 4)


def reach(depths: list[int], accuracy: list[float]) -> float:
    """The depth at which accuracy has fallen half way from its best to chance; infinite if it never does."""
    half = (max(accuracy) + 1 / CLASSES) / 2
    above = [place for place, value in enumerate(accuracy) if value >= half][-1]
    if above + 1 == len(depths):
        return math.inf
    left, right = accuracy[above : above + 2]
    return depths[above] + (depths[above + 1] - depths[above]) * (left - half) / (left - right)


def judge(data: dict[str, Any]) -> Judgement:
    rows, ratios = [], {name: [] for name in RIDGES}
    for item in data["rows"]:
        told = []
        for name in RIDGES:
            ratios[name].append(reach(item["depths"], item[name]) / item["length"])
            told.append(f"{ratios[name][-1] * item['length']:.0f} layers, {ratios[name][-1]:.1f} xi ({name})")
        best = max(max(item[name]) for name in RIDGES)
        what = f"sigma_w^2 = {item['sigma_w^2']:g}, xi = {item['length']:.2f}: learns up to (best accuracy {best:.0%})"
        rows.append(Row(what, f"{PREFACTOR * item['length']:.0f} layers, 28 xi", "; ".join(told)))
    spreads = {name: mean_and_spread(values) for name, values in ratios.items()}
    said = "; ".join(f"{mean:.1f} ± {spread:.1f} xi with a ridge of {name}" for name, (mean, spread) in spreads.items())
    why = f"The depth up to which the regression learns is {said} (± over sigma_w^2). {data['train']} training images."
    steady = all(spread < 0.2 * mean for mean, spread in spreads.values())
    near = all(abs(mean / PREFACTOR - 1) < 0.2 for mean, _ in spreads.values())
    return Judgement(verdict(steady and near, steady), why, tuple(rows))


REPRODUCTION = Reproduction(
    id="apjn-figure11",
    paper="apjn",
    place="Fig. 11",
    claim="With LayerNorm on pre-activations kernel regression learns up to a depth of 28 correlation lengths.",
    run=run,
    judge=judge,
    minutes=(1, 1),
)
