"""Does one prescription train well at every size? `python -m studies.prescription_training SOURCE --cells ...`.

Byte-level Hugging Face models on a text file (or ViT on a folder of Fashion-MNIST), trained by the lab: AdamW with
betas 0.9 and 0.95, bf16 autocast and a CUDA graph on a GPU, clip at 1, warm-up over the first tenth, then cosine to a
tenth. One JSON line per cell: settings, first loss, mean loss of the last tenth, milliseconds a step.

A cell is `family,width,layers,scheme,rate,seed`, with the rate as a number or a power like 2^-7. `--grid` makes cells
of lists instead: `--grid "llama;128,256;4,16;default,mup,mup+linear,ours;-11:-5;0,1,2"` (rates are powers of two).
Schemes: `default` (the model's own initialization, one rate), `mup` (base: width 128), `mup+linear` (base: width 128, 4
layers), `ours` (unit with width rule mup), `unit` (no width rule), or any `recipe+width+depth`; with options:
`ours:k=2`, or `ours:table=8&positions=8` for rates of the embeddings of tokens and of positions that are eight times
the plan's (and so `biases`, `gains`), or `ours:shaped=0` for tied tables and positions at the rate itself instead of
`std sqrt(128)`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import torch

from sigprop.research.lab import Run, Settings, train
from studies.prescription_models import (
    STEPS,
    batches_of,
    build,
    optimizers_of,
    prescribe,
    with_every_expert,
    with_usual,
    without_masks,
)
from studies.stored import read

CURVE = 50
DATA = Path(__file__).parents[1] / "docs/data"
STORED = (DATA / "prescription_training.json", DATA / "prescription_long.json")
CELL = ("family", "width", "layers", "scheme", "rate", "seed")
Cell = tuple[str, int, int, str, float, int]
PLANS: dict[tuple, Any] = {}
"""The plan of each size and scheme: rates and seeds share it."""


def trained(cell: Cell, args: argparse.Namespace) -> dict[str, Any]:
    """One run and what it came to."""
    family, width, layers, scheme, rate, seed = cell
    torch.manual_seed(seed)
    model = build(family, width, layers, args.tokens)
    if cell[:4] not in PLANS:
        PLANS[cell[:4]] = prescribe(scheme, model, family, layers, args.tokens, args.optimizer)
    plan, on_gpu = PLANS[cell[:4]], args.device == "cuda"
    if plan is not None:
        plan.apply_(model, torch.Generator().manual_seed(seed))
    if family == "mixtral":
        with_every_expert(model)
    settings = Settings(
        steps=args.steps, seed=seed, device=args.device, mode="graph" if on_gpu else "eager",
        precision="bfloat16" if on_gpu else "float32",
    )  # fmt: skip
    batches = batches_of(family, args.source, args.batch, args.tokens, seed)
    optimizers = optimizers_of(args.optimizer, plan, model, rate, args.decay)
    with without_masks() if on_gpu else contextlib.nullcontext():
        run = train(model, batches, settings, optimizers=optimizers)
    row = dict(zip(CELL, cell, strict=True))
    row |= {"optimizer": args.optimizer, "decay": args.decay, "steps": args.steps, "done": len(run.losses)}
    row |= {"batch": args.batch, "tokens": args.tokens, "parameters": sum(p.numel() for p in model.parameters())}
    row |= {"groups": sum(len(each.param_groups) for each in optimizers)}
    return row | told(run, args)


def told(run: Run, args: argparse.Namespace) -> dict[str, Any]:
    losses, tenth = run.losses, max(args.steps // 10, 1)
    found: dict[str, Any] = {"first": losses[0], "ms": round(1000 * run.seconds / len(losses), 2)}
    if run.ended == "finished":
        found |= {"middle": sum(losses[len(losses) // 2 :][:tenth]) / tenth, "last": run.last}
    if args.curve:
        points = range(0, len(losses) - CURVE + 1, CURVE)
        found["curve"] = [round(sum(losses[at : at + CURVE]) / CURVE, 4) for at in points]
    return found


def read_rate(text: str) -> float:
    return 2.0 ** float(text[2:]) if text.startswith("2^") else float(text)


def read_cell(text: str) -> Cell:
    family, width, layers, scheme, rate, seed = text.split(",")
    return family, int(width), int(layers), scheme, read_rate(rate), int(seed)


def read_grid(text: str) -> list[Cell]:
    families, widths, layers, schemes, powers, seeds = [part.split(",") for part in text.split(";")]
    if len(powers) == 1 and ":" in powers[0]:
        low, high = powers[0].split(":")
        powers = [str(power) for power in range(int(low), int(high) + 1)]
    made = itertools.product(families, map(int, layers), map(int, widths), schemes, powers, map(int, seeds))
    return [(f, w, n, scheme, 2.0 ** float(power), seed) for f, n, w, scheme, power, seed in made]


def done(args: argparse.Namespace) -> set[Cell]:
    """Cells of whole runs with these settings, among the stored ones and those of the file that is written."""
    lines = args.out.read_text().splitlines() if args.out.exists() else []
    rows = [json.loads(line) for line in lines] + [row for path in STORED for row in read(path)["rows"]]
    found = set()
    for row in (row for row in rows if row.get("last") is not None):
        given = with_usual(row)
        same = all(given[name] == getattr(args, name) for name in ("optimizer", "steps", "batch", "tokens"))
        if same and row.get("done", args.steps) == args.steps:
            found.add(tuple(row[name] for name in CELL))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="text file (may be .gz), or folder of Fashion-MNIST for vit")
    parser.add_argument("--cells", nargs="*", default=[], help="family,width,layers,scheme,rate,seed")
    parser.add_argument("--grid", action="append", default=[], help="families;widths;layers;schemes;powers;seeds")
    parser.add_argument("--out", type=Path, default=Path("prescription_training.jsonl"))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--decay", type=float, default=0.1)
    parser.add_argument("--optimizer", default="adamw", choices=("adamw", "momentum", "muon:rms"))
    parser.add_argument("--curve", action="store_true", help="keep means over 50 steps")
    parser.add_argument("--missing", action="store_true", help="leave out runs that are stored")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    cells = [read_cell(text) for text in args.cells] + [cell for text in args.grid for cell in read_grid(text)]
    known = done(args) if args.missing else set()
    for cell in (cell for cell in dict.fromkeys(cells) if cell not in known):
        row = trained(cell, args)
        with args.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps({key: value for key, value in row.items() if key != "curve"}), flush=True)


if __name__ == "__main__":
    main()
