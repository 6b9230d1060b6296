"""Does every plan pass the package's own coordinate check? `python -m studies.coordinate_table --out FILE`.

Rules, written before the runs: a Pre-LN decoder of one block (`sigprop.models`), 32 symbols, 16 positions, widths 32,
64 and 128, two steps, two seeds (and four others for what fails, as the check does itself), rate of the check. Cells
are recipe x width rule x optimizer x heads (two at every width, or of size 8) x readout (tied or not) x base (width 32,
or none with a reference width of 32). A cell passes when `coord_check` passes; a refusal counts as its reason; anything
else is listed with what the check accuses. All cells are stored, in the order of `cells()`; a run that is cut keeps its
rows.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import sigprop as sp
from sigprop.errors import SigpropError
from sigprop.models import build
from sigprop.plans.scaling import coord_check
from studies.stored import read, write

WIDTHS = [32, 64, 128]
RECIPES = ("unit", "xavier", "gpt2", "own", "lecun", "deepscale", "megatron", "mitchell", "kaiming", "orthogonal")
OPTIMIZERS = ("adamw", "muon", "muon:rms", "sgd", "lion")
RATES = {"sgd": 0.05, "lion": 3e-3, "muon": 0.02, "muon:rms": 0.02}


def cells(rules: tuple[str, ...] = ("mup", "sp")) -> list[dict[str, Any]]:
    names = ("rule", "recipe", "heads", "tied", "base", "optimizer")
    rows = itertools.product(rules, RECIPES, ("number", "size"), (False, True), (True, False), OPTIMIZERS)
    return [dict(zip(names, row, strict=True)) for row in rows]


def judged(cell: dict[str, Any]) -> dict[str, Any]:
    ids = torch.randint(0, 32, (4, 16), generator=torch.Generator().manual_seed(0))

    def make(width: int) -> nn.Module:
        heads = 2 if cell["heads"] == "number" else width // 8
        return build(
            "transformer", vocabulary=32, context=16, width=width, depth=1, heads=heads, tied_head=cell["tied"]
        )

    def plan(model: nn.Module, base: nn.Module) -> sp.Plan:
        beside = {"base": base} if cell["base"] else {"reference_width": WIDTHS[0]}
        return sp.plan(model, cell["recipe"], width=cell["rule"], optimizer=cell["optimizer"], batch=ids, **beside)

    start = time.process_time()
    try:
        report = coord_check(
            make, WIDTHS, batch=ids, plan=plan, expect=cell["rule"], optimizer=cell["optimizer"], steps=2, seeds=2,
            lr=RATES.get(cell["optimizer"]),
        )  # fmt: skip
    except SigpropError as error:
        return {"refused": str(error).splitlines()[0][:160]}
    found = {"passed": report.passed, "seconds": round(time.process_time() - start, 1)}
    return found | ({} if report.passed else {"accused": [str(item) for item in report.culprits[:3]]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--first", type=int, default=10_000, help="how many cells")
    asked = parser.parse_args()
    rows = read(asked.out, [])
    for cell in cells()[len(rows) : asked.first]:
        rows.append(cell | judged(cell))
        write(asked.out, rows)
        print(rows[-1], flush=True)


if __name__ == "__main__":
    main()
