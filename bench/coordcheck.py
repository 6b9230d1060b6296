"""Cost of the coordinate check: recorded training against the same steps without recording.

python -m bench.coordcheck [cpu|cuda]
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
from sigprop.scaling import coord_check, parametrize
from sigprop.scaling.training import make_optimizers, make_step

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
    return lambda width: build("transformer", vocabulary=256, context=128, width=width, depth=4, heads=4).to(device)


def main() -> None:
    """A 4-layer GPT at widths 64 to 512, 3 steps of AdamW under muP: both ways, in turns."""
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    ids = torch.randint(0, 256, (8, 128), generator=torch.Generator().manual_seed(0)).to(device)
    models, step = make(device), make_step(ids, None)

    def plain() -> None:
        base = models(WIDTHS[0])
        for width in WIDTHS:
            model = models(width)
            plan = parametrize(model, "mup", base=base)
            plan.apply_(model)
            optimizers = make_optimizers("adamw", model, plan, LR)
            for _ in range(STEPS):
                step(model)[1].backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
            step(model)

    def checked() -> None:
        coord_check(models, WIDTHS, batch=ids, seeds=1, steps=STEPS, lr=LR)

    plain(), checked()
    times = [(seconds(plain, device), seconds(checked, device)) for _ in range(3)]
    least = [min(column) for column in zip(*times, strict=True)]
    table = Table(title=f"coordinate check, 4-layer GPT, widths {WIDTHS}, {STEPS} steps, {device}")
    for heading in ("plain training", "with the check", "ratio"):
        table.add_column(heading)
    table.add_row(f"{least[0]:.2f} s", f"{least[1]:.2f} s", f"{least[1] / least[0]:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
