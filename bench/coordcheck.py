"""Cost of the coordinate check: against the same steps of the same seeds without recording.

python -m bench.coordcheck [cpu|cuda] [seeds]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from sigprop.models import build
from sigprop.plans.scaling import coord_check
from sigprop.plans.scaling import plan as prescribe
from sigprop.plans.scaling.training import make_optimizers, make_step

WIDTHS, STEPS, LR = (64, 128, 256, 512), 3, 1e-3


def seconds(work: Callable[[], object], device: str) -> float:
    """Processor time on a CPU, elapsed time on a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return time.perf_counter() - start
    start = time.process_time()
    work()
    return time.process_time() - start


def make(device: str) -> Callable[[int], nn.Module]:
    def built(width: int) -> nn.Module:
        with torch.device(device):
            return build("transformer", vocabulary=256, context=128, width=width, depth=4, heads=4)

    return built


def main() -> None:
    """A 4-layer GPT at widths 64 to 512, 3 steps of AdamW under muP: plain (build, plan once per width, train)
    and the check, in turns."""
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    ids = torch.randint(0, 256, (8, 128), generator=torch.Generator().manual_seed(0)).to(device)
    models, step = make(device), make_step(ids, None)

    def plain() -> None:
        base = models(WIDTHS[0])
        for width in WIDTHS:
            plan = None
            for seed in range(seeds):
                torch.manual_seed(seed)
                model = models(width)
                plan = plan or prescribe(model, "mup", base=base)
                plan.apply_(model)
                optimizers = make_optimizers("adamw", model, plan, LR)
                for _ in range(STEPS):
                    step(model)[1].backward()
                    for optimizer in optimizers:
                        optimizer.step()
                        optimizer.zero_grad()

    def checked() -> None:
        coord_check(models, WIDTHS, batch=ids, seeds=seeds, steps=STEPS, lr=LR)

    ways: dict[str, Callable[[], None]] = {"plain training": plain, "check": checked}
    for work in ways.values():
        work()
    times = [[seconds(work, device) for work in ways.values()] for _ in range(3 if device == "cpu" else 7)]
    least = [min(column) for column in zip(*times, strict=True)]
    table = Table(title=f"4-layer GPT, widths {WIDTHS}, {STEPS} steps, {seeds} seeds, {device}")
    for heading in ("", "seconds", "ratio"):
        table.add_column(heading)
    for name, value in zip(ways, least, strict=True):
        table.add_row(name, f"{value:.2f}", f"{value / least[0]:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
