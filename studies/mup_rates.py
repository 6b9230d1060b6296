"""The best learning rate over widths, standard and muP, beside the table of a public implementation of muP.

A Pre-LN decoder of two layers on bytes, Adam, all rates and seeds of a width as one program; base width 128. The public
table (widths 128 to 2048) was made with another network and data, so that the powers of width are compared, not the
rates: SP halves its best rate with every doubling, muP keeps it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sigprop.api import plan as prescribe
from sigprop.models import build
from sigprop.research.lab.data import TextBatches, tokens_of
from sigprop.research.lab.many import train_many
from studies.rate_runs import best_of, rows_of, settings_on
from studies.reproduction import Judgement, Reproduction, Row, Setting

PUBLIC = {
    "sp": {128: 9.77e-4, 256: 4.88e-4, 512: 2.44e-4, 1024: 1.22e-4, 2048: 6.10e-5},
    "mup": {128: 9.77e-4, 256: 9.77e-4, 512: 9.77e-4, 1024: 9.77e-4, 2048: 1.95e-3},
}
LENGTH = 128
TOGETHER = 1_000_000_000
"""Parameters that are trained as one program."""


def run(setting: Setting) -> dict[str, Any]:
    widths, powers, steps = ((128, 256, 512, 1024, 2048), range(-13, -3), 200)
    seeds, passages = (0, 1), 16
    if not setting.is_full:
        widths, powers, steps, seeds, passages = (32, 64, 128), range(-10, -3), 120, (0,), 4
    batches = TextBatches(tokens_of(setting.text()), passages, LENGTH)
    rates = tuple(2.0**power for power in powers)
    found = []
    for rule in ("sp", "mup"):
        for width in widths:
            cell = (rule, width, widths[0], rates, seeds, steps)
            row = setting.part(f"{rule} {width}", lambda cell=cell: _trained(*cell, batches, setting.device))
            print(rule, width, best_of(row), flush=True)
            found.append(row)
    sizes = {"text": setting.text_name, "steps": steps, "batch": [passages, LENGTH], "rates": rates, "seeds": seeds}
    return {**sizes, "widths": widths, "rows": found}


def _trained(
    rule: str, width: int, base: int, rates: tuple[float, ...], seeds: tuple[int, ...], steps: int,
    batches: TextBatches, device: str,
) -> dict[str, Any]:  # fmt: skip
    model = _network(width, 0)
    plan = prescribe(model, rule, base=_network(base, 0))
    cells = [(rate, seed) for rate in rates for seed in seeds]
    settings = settings_on(device, steps, weight_decay=0.0)
    size = sum(parameter.numel() for parameter in model.parameters())
    together = max(TOGETHER // size, 1)
    runs = []
    for start in range(0, len(cells), together):
        chunk = cells[start : start + together]
        models = [plan.apply_(_network(width, seed)) for _, seed in chunk]
        runs += train_many(models, batches, [rate for rate, _ in chunk], settings, plan=plan)
    return {"rule": rule, "width": width, "runs": rows_of(cells, runs)}


def _network(width: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return build("transformer", kind="decoder", depth=2, width=width, heads=max(width // 32, 1), context=LENGTH)


def judge(data: dict[str, Any]) -> Judgement:
    best = {(row["rule"], row["width"]): best_of(row) for row in data["rows"]}
    rows = tuple(
        Row(
            f"{rule}, width {width}: best rate (loss)",
            f"{PUBLIC[rule][width]:.3g}" if width in PUBLIC[rule] else "",
            f"{found.rate:.3g} ({found.mean:.3f})",
        )
        for (rule, width), found in best.items()
    )
    widths = data["widths"]
    slopes = {rule: _slope(widths, [best[rule, width].rate for width in widths]) for rule in ("sp", "mup")}
    edges = [f"{rule} {w}" for (rule, w), found in best.items() if found.rate in (data["rates"][0], data["rates"][-1])]
    why = f"Power of the best rate over widths {widths[0]} to {widths[-1]}: SP {slopes['sp']:+.2f} (public table -1), "
    why += f"muP {slopes['mup']:+.2f} (public table 0 to +0.25)."
    why += f" At the edge of the rates: {', '.join(edges)}." if edges else ""
    if abs(slopes["sp"] + 1) < 0.3 and abs(slopes["mup"]) < 0.3:
        return Judgement("reproduced", why, rows)
    in_order = slopes["sp"] < slopes["mup"] - 0.3
    return Judgement("in order but not in size" if in_order else "not reproduced", why, rows)


def _slope(widths: list[int], rates: list[float]) -> float:
    x, y = torch.tensor(widths, dtype=torch.float64).log2(), torch.tensor(rates, dtype=torch.float64).log2()
    return (((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()).item()


REPRODUCTION = Reproduction(
    id="others-mup-rates",
    paper="others",
    place="best-rate table of a public muP implementation",
    claim="From width 128 to 2048 the best rate of SP falls from 9.77e-4 to 6.1e-5, halving at each doubling; that of "
    "muP stays at 9.77e-4 up to 1024.",
    run=run,
    judge=judge,
    minutes=(4, 3),
    budget=(("steps", 1000.0), ("seeds", 3.0)),
)
