r"""Which parameters move the function: each group's share of one optimizer step.

With the step dtheta of all parameters known, only one group at a time is moved: `output` is the root mean square
change of the output, `loss` the change of the loss, and `predicted` its first order <gradient, dtheta>, where a
weight's gradient is the sum over tokens of (input) x (gradient at its output). The model is left as it was.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sigprop.errors import UnsupportedError, require
from sigprop.grid import Grid
from sigprop.losses import LossChoice
from sigprop.plans.exponents import read_optimizer
from sigprop.plans.plan import Plan
from sigprop.plans.scaling.dimensions import pattern
from sigprop.plans.scaling.training import make_optimizers, make_step
from sigprop.results import Profile
from sigprop.sites import plain_name


@dataclass(frozen=True)
class Contribution:
    """One group: number of parameters, change of output, change of loss measured and to first order."""

    group: str
    parameters: int
    output: float
    loss: float
    predicted: float


def contributions(
    model: nn.Module,
    batch: Any,
    *,
    plan: Plan | None = None,
    optimizer: str = "adamw",
    lr: float | None = None,
    loss: LossChoice = None,
    by: str = "pattern",
) -> list[Contribution]:
    """Contributions by name `pattern` (layers pooled), by single `name`, or by the plan's `role`."""
    require(by in ("pattern", "name", "role"), "by", by, "pattern, name or role")
    require(by != "role" or plan is not None, "by", by, "a plan, whose rows carry the roles")
    step_fn = make_step(batch, loss)
    moved = copy.deepcopy(model)
    start = {plain_name(name): parameter.detach().clone() for name, parameter in moved.named_parameters()}
    output, value = step_fn(moved)
    value.backward()
    gradients = {plain_name(name): p.grad.clone() for name, p in moved.named_parameters() if p.grad is not None}
    for each in make_optimizers(optimizer, moved, plan, lr):
        each.step()
    parameters = {plain_name(name): parameter for name, parameter in moved.named_parameters()}
    steps = {name: parameters[name].detach() - start[name] for name in gradients}
    groups: dict[str, list[str]] = {}
    for name in gradients:
        key = plan[name].role if by == "role" and plan is not None else (pattern(name) if by == "pattern" else name)
        groups.setdefault(key, []).append(name)
    groups["all"] = list(gradients)
    return [
        _contribution(group, names, moved, parameters, start, steps, gradients, step_fn, output.detach(), value.item())
        for group, names in groups.items()
    ]


def _contribution(group, names, model, parameters, start, steps, gradients, step_fn, output, loss) -> Contribution:
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(start[name] + steps[name] if name in names else start[name])
        moved_output, moved_loss = step_fn(model)
    change = torch.linalg.vector_norm(moved_output - output) / math.sqrt(output.numel())
    predicted = sum(float((gradients[name] * steps[name]).sum()) for name in names)
    count = sum(parameters[name].numel() for name in names)
    return Contribution(group, count, float(change), float(moved_loss) - loss, predicted)


def contribution_table(rows: list[Contribution]) -> Grid:
    """Largest change of the output first."""
    headings = ["group", "parameters", "output change", "loss change", "first order"]
    cells = [
        [row.group, f"{row.parameters:,}", *(f"{value:.3g}" for value in (row.output, row.loss, row.predicted))]
        for row in sorted(rows, key=lambda row: -row.output)
    ]
    return Grid(headings, cells, title="what moves the function in one step")


def expected_contributions(
    profile: Profile, *, lr: float, plan: Plan | None = None, optimizer: str = "adamw", by: str = "pattern"
) -> dict[str, float]:
    r"""First-order fall of the loss in one step by group, from the gradient moments of a profile.

    A profile from theory or from measurement: `lr n E g^2` for SGD, and for normalized updates
    `lr n E|g| = lr n sqrt(2 E g^2 / pi)`, taking gradient entries as Gaussian (Adafactor: times the init std).
    """
    rule = read_optimizer(optimizer)
    if rule.orthogonal:
        raise UnsupportedError(f"{optimizer}: an orthogonal update does not follow from the gradient's moments")
    found: dict[str, float] = {}
    for row in profile.parameters:
        rate = lr * (plan[row.name].lr if plan is not None else 1.0)
        role = plan[row.name].role if by == "role" and plan is not None else ""
        key = role or (pattern(row.name) if by == "pattern" else row.name)
        entry = row.grad_second_moment if rule.gradient else math.sqrt(2 * row.grad_second_moment / math.pi)
        size = row.init_std if rule.weight else 1.0
        found[key] = found.get(key, 0.0) + rate * math.prod(row.shape) * entry * size
    return found
