"""The step of a plan's optimizer beside torch's own on the same weights: `python -m bench planned_step`.

Processor time of the step alone, planned over plain, the two turn by turn; median and quartiles.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn

import sigprop as sp
from sigprop.models import build
from sigprop.plans.optimizers import trained_by

STEPS = {"adamw": 30, "sgd": 30, "muon": 5}
DEPTH, WIDTH = 8, 384


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


def main() -> None:
    torch.set_num_threads(1)
    ids = torch.randint(0, 512, (1, 32))
    for name, steps in STEPS.items():
        models = [build("transformer", vocabulary=512, context=32, width=WIDTH, depth=DEPTH, heads=6) for _ in range(2)]
        plan = sp.plan(models[0], "unit", width="mup", optimizer=name, batch=ids)
        sides = [plan.optimizers(models[0], lr=1e-6, weight_decay=0.1), plain(name, models[1], plan)]
        for model in models:
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
        for side in sides * 3:
            timed(side)
        ratios = []
        for turn in range(steps):
            first = timed(sides[turn % 2]) / timed(sides[1 - turn % 2])
            ratios.append(first if turn % 2 == 0 else 1.0 / first)
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"{name}: {middle:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
