"""The step of a plan's optimizer beside torch's own on the same weights: `python -m bench planned_step`.

Processor time of the step alone, planned over plain, the two turn by turn; median over rebuilt models, least and
largest in brackets.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn

import sigprop as sp
from sigprop.models import build
from sigprop.plans.optimizers import trained_by

STEPS = {"adamw": 30, "sgd": 30, "muon": 4}
DEPTH, WIDTH = 8, 384
REBUILDS = 6
"""Of the model and its optimizers: the states are laid in memory anew each time."""


def plain(name: str, model: nn.Module, plan: sp.Plan) -> list[torch.optim.Optimizer]:
    if name == "sgd":
        return [torch.optim.SGD(model.parameters(), lr=1e-6, weight_decay=0.1)]
    if name == "adamw":
        return [torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.1)]
    sides: dict[str, list[nn.Parameter]] = {"muon": [], "adamw": []}
    for row in plan:
        sides[trained_by(name, row.role, row.shape)].append(model.get_parameter(row.name))
    return [torch.optim.Muon(sides["muon"], lr=1e-6), torch.optim.AdamW(sides["adamw"], lr=1e-6)]


def timed(optimizers: list[torch.optim.Optimizer]) -> float:
    start = time.process_time()
    for each in optimizers:
        each.step()
    return time.process_time() - start


def ratios(name: str, steps: int) -> list[float]:
    """Planned over plain on the same weights and gradients: where tensors lie in memory alone is worth 5 %."""
    model = build("transformer", vocabulary=512, context=32, width=WIDTH, depth=DEPTH, heads=6)
    plan = sp.plan(model, "unit", width="mup", optimizer=name, batch=torch.randint(0, 512, (1, 32)))
    sides = [plan.optimizers(model, lr=1e-6, weight_decay=0.1), plain(name, model, plan)]
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    order = sides if torch.rand(()) < 0.5 else sides[::-1]
    for side in order * 3:
        timed(side)
    found = []
    for turn in range(steps):
        first = timed(sides[turn % 2]) / timed(sides[1 - turn % 2])
        found.append(first if turn % 2 == 0 else 1.0 / first)
    return found


def main() -> None:
    torch.set_num_threads(1)
    for name, steps in STEPS.items():
        medians = [statistics.median(ratios(name, steps)) for _ in range(REBUILDS)]
        print(f"{name}: {statistics.median(medians):.3f} ({min(medians):.3f} to {max(medians):.3f})")


if __name__ == "__main__":
    main()
