r"""Measured alignment: how updates and activations line up in training, and the rates that follow.

For every linear layer with input h, weight W, and their changes dh, dW since the start,

    RMS(W dh) / (RMS(W) RMS(dh)) ~ d^omega,   RMS(dW h) / (RMS(dW) RMS(h)) ~ d^alpha,
    RMS(dW dh) / (RMS(dW) RMS(dh)) ~ d^u

are fitted over widths. Reference: Stratos, eqs. (15) to (17); Everett et al. 2024.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sigprop.errors import InputError, require
from sigprop.grid import Grid
from sigprop.losses import LossChoice
from sigprop.plans.exponents import Alignment
from sigprop.plans.scaling.dimensions import compare
from sigprop.plans.scaling.expectations import fit_exponent
from sigprop.plans.scaling.training import PlanMaker, build_seeded, compare_known, make_optimizers, make_plan, make_step

KINDS = ("omega", "alpha", "u")


@dataclass(frozen=True)
class AlignmentRow:
    """Fitted exponents of one layer, each as (exponent, low, high) at 95 percent."""

    layer: str
    role: str
    omega: tuple[float, float, float]
    alpha: tuple[float, float, float]
    u: tuple[float, float, float]


@dataclass
class AlignmentReport:
    """One row per linear layer, after `steps` steps of training over `widths`."""

    rows: list[AlignmentRow]
    widths: list[int]
    steps: int

    def alignment(self) -> Alignment:
        """Medians over the hidden and the readout layers, as an assumption for `solve` and `compose`.

        Exponents are cut to [0, 1]; a hidden omega whose interval reaches 1/2 counts as 1/2 at most.
        """
        found = {}
        for role in ("hidden", "readout"):
            rows = [row for row in self.rows if row.role == role]
            if not rows:
                raise InputError(f"no {role} layer among {[row.layer for row in self.rows]}")
            for kind in KINDS:
                value = median(getattr(row, kind)[0] for row in rows)
                low = median(getattr(row, kind)[1] for row in rows)
                if (kind, role) == ("omega", "hidden") and low <= 0.5:
                    value = min(value, 0.5)
                found[f"{kind}_{role}"] = Fraction(round(100 * min(max(value, 0.0), 1.0)), 100)
        return Alignment(**found, name="measured")

    def table(self) -> Grid:
        cells = []
        for row in self.rows:
            shown = (f"{value:.2f} ({low:.2f} .. {high:.2f})" for value, low, high in (row.omega, row.alpha, row.u))
            cells.append([row.layer, row.role, *shown])
        title = f"alignment exponents after {self.steps} steps, widths {self.widths}"
        return Grid(["layer", "role", *KINDS], cells, title=title, left=[1])


def measure_alignment(
    build: Callable[[int], nn.Module],
    widths: Sequence[int],
    *,
    batch: Any,
    loss: LossChoice = None,
    plan: str | PlanMaker | None = "mup",
    optimizer: str = "adamw",
    lr: float | None = None,
    steps: int = 3,
    seeds: int = 3,
) -> AlignmentReport:
    """Train `build(width)` for a few steps at every width and fit the alignment of each linear layer."""
    widths = sorted(set(widths))
    require(len(widths) > 1, "widths", widths, "two or more different widths")
    base, widest = build_seeded(build, (widths[0],), 0), build_seeded(build, (widths[-1],), 0)
    roles = {item.name: item.role for item in compare(widest, base)}
    step_fn = make_step(batch, loss)
    ratios: dict[str, dict[str, list[list[float]]]] = {}
    for width in widths:
        first = build_seeded(build, (width,), 0)
        made = make_plan(plan, first, base, compare_known(first, base, roles), optimizer)
        models = (first if seed == 0 else build_seeded(build, (width,), seed) for seed in range(seeds))
        runs = [_ratios(model, made, step_fn, optimizer, lr, steps) for model in models]
        for layer in runs[0]:
            for kind in KINDS:
                ratios.setdefault(layer, {}).setdefault(kind, []).append([run[layer][kind] for run in runs])
    rows = []
    for layer, kinds in ratios.items():
        role = roles.get(f"{layer}.weight", "readout")
        if role in ("hidden", "readout"):
            fits = {kind: fit_exponent(widths, np.array(values).T) for kind, values in kinds.items()}
            rows.append(AlignmentRow(layer, role, **fits))
    return AlignmentReport(rows, widths, steps)


def _ratios(model, plan, step_fn, optimizer, lr, steps) -> dict[str, dict[str, float]]:
    """The three ratios of every linear layer after training one model."""
    if plan is not None:
        plan.apply_(model)
    layers = {name: module for name, module in model.named_modules() if _is_linear(module)}
    weights = {name: module.weight.detach().clone() for name, module in layers.items()}
    optimizers = make_optimizers(optimizer, model, plan, lr)
    first = _inputs(model, layers, step_fn)
    for _ in range(steps):
        step_fn(model)[1].backward()
        for each in optimizers:
            each.step()
            each.zero_grad()
    last = _inputs(model, layers, step_fn)
    found = {}
    for name, module in layers.items():
        if name not in first:
            continue
        weight, change = weights[name], module.weight.detach() - weights[name]
        h, dh = first[name], last[name] - first[name]
        pairs = {"omega": (weight, dh), "alpha": (change, h), "u": (change, dh)}
        found[name] = {kind: _ratio(module, matrix, vector) for kind, (matrix, vector) in pairs.items()}
    return found


def _inputs(model: nn.Module, layers: dict[str, nn.Module], step_fn: Callable) -> dict[str, Tensor]:
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable:
        return lambda module, inputs: seen.__setitem__(name, inputs[0].detach())

    handles = [module.register_forward_pre_hook(keep(name)) for name, module in layers.items()]
    with torch.no_grad():
        step_fn(model)
    for handle in handles:
        handle.remove()
    return seen


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _ratio(module: nn.Module, matrix: Tensor, vector: Tensor) -> float:
    product = vector @ (matrix.T if isinstance(module, nn.Linear) else matrix)
    return _rms(product) / max(_rms(matrix) * _rms(vector), 1e-300)


def _rms(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values)) / math.sqrt(values.numel())
