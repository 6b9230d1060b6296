"""chi_J of whole blueprints: the backward chain started from white noise at one block, read one block earlier."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sigprop.blueprints.base import Blueprint
from sigprop.blueprints.inits import Init
from sigprop.blueprints.mixer import Mixer
from sigprop.blueprints.resnet import ResNet
from sigprop.blueprints.transformer import Transformer
from sigprop.blueprints.vit import ViT
from sigprop.errors import UnknownNameError, UnsupportedError, require
from sigprop.results.phase import PhaseDiagram
from sigprop.theory import Tape
from sigprop.theory.ops import loss

Axis = tuple[str, Sequence[float]]
BLUEPRINTS: dict[str, type[Blueprint]] = {"mixer": Mixer, "resnet": ResNet, "transformer": Transformer, "vit": ViT}


class Gain(Init):
    """Variance sigma_w^2 / fan_in for every matrix, unit embeddings."""

    def __init__(self, sigma_w: float | Tensor):
        self.variance = sigma_w**2

    def matrix(self, fan_in: int, fan_out: int) -> Any:
        return self.variance / fan_in


def block_factor(blueprint: Blueprint) -> Tensor:
    """chi_J of the penultimate block: energy of a unit white-noise gradient at its output, seen at its input."""
    tape = Tape()
    blueprint.forward(tape)
    blocks = [node for node in tape.nodes if re.fullmatch(r"(.*\.)?blocks\.\d+", node.name)]
    require(len(blocks) >= 3, "depth", len(blocks), "at least three blocks, to have a penultimate one")
    before, after = blocks[-3], blocks[-2]
    tape.backward((after, loss.white_noise(after.signal)))
    assert before.gradient is not None
    return before.gradient.summary()[0]


def blueprint_diagram(
    name: str, x: Axis, y: Axis, fixed: dict[str, float] | None = None, settings: dict[str, Any] | None = None
) -> PhaseDiagram:
    """chi_J over two of sigma_w, sigma_b and residual, point by point; `fixed` sets the third."""
    if name not in BLUEPRINTS:
        raise UnknownNameError("blueprint", name, BLUEPRINTS)
    start = {"sigma_w": 1.0, "sigma_b": 0.0, "residual": 1.0, **(fixed or {})}
    rows = []
    for up in y[1]:
        row = []
        for across in x[1]:
            point = {**start, x[0]: float(across), y[0]: float(up)}
            row.append(float(block_factor(_at(name, point, dict(settings or {})))))
        rows.append(row)
    record = {"model": name, **(settings or {}), **(fixed or {}), "source": "theory"}
    return PhaseDiagram(x[0], list(x[1]), y[0], list(y[1]), rows, None, record)


def _at(name: str, point: dict[str, float], settings: dict[str, Any]) -> Blueprint:
    blueprint = BLUEPRINTS[name]
    if name in ("transformer", "vit"):
        settings |= {"init": Gain(torch.tensor(point["sigma_w"]).double()), "skip_scale": point["residual"]}
    else:
        settings |= {"sigma_w": point["sigma_w"], "mu": point["residual"]}
    if name == "mixer":
        settings["sigma_b"] = point["sigma_b"]
    elif point["sigma_b"] != 0:
        raise UnsupportedError(f"the {name} blueprint has no biases: use --sigma-b 0, or --measure")
    return blueprint.from_settings(settings)
