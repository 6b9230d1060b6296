"""Cost of predicting blueprints: deep stacks, grids of settings, dense token kernels."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from sigprop.blueprints import Transformer, predict, run
from sigprop.blueprints.repeated import unroll


def least(work: Callable[[], object], rounds: int) -> float:
    """Least elapsed seconds over some rounds, after one to warm up."""
    work()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    torch.set_num_threads(2)
    gains = torch.linspace(0.1, 2.0, 10_000, dtype=torch.float64)
    deep, shallow = Transformer(depth=1000), Transformer(depth=250)
    chain = least(lambda: run(deep), 1)
    at_once = least(lambda: unroll(deep, None), 7)
    table = Table("work", "seconds", "target", "beside")
    rows = [
        (
            "1,000-layer Transformer, all layers at once",
            at_once,
            "0.05",
            f"{chain / at_once:.0f}x faster than the chain",
        ),
        ("the same with its 14,000 rows", least(lambda: predict(deep), 7), "", ""),
        (
            "250 layers at once",
            (quarter := least(lambda: unroll(shallow, None), 7)),
            "",
            f"1,000 layers take {at_once / quarter:.1f}x",
        ),
        ("12 layers on 10,000 settings", least(lambda: run(Transformer(query_key_gain=gains)), 3), "1", ""),
        (
            "48-layer decoder, dense, 128 tokens",
            least(lambda: predict(Transformer(depth=48, kind="decoder")), 2),
            "3",
            "",
        ),
    ]
    for name, seconds, target, beside in rows:
        table.add_row(name, f"{seconds:.3f}", target, beside)
    Console().print(table)


if __name__ == "__main__":
    main()
