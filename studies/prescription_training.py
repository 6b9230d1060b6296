"""Does one prescription train well at every size? `python -m studies.prescription_training --help`.

Byte-level Hugging Face models on a text file (or ViT on a folder of Fashion-MNIST), AdamW, bf16 autocast on CUDA, clip
at 1, warm-up over the first tenth, then cosine to a tenth. One JSON line per cell: settings, first loss, mean loss of
the last tenth, milliseconds a step. On CUDA the whole step (batch, forward, backward, clipping, schedule, AdamW) is one
CUDA graph, so that the number of optimizer groups costs nothing, and runs of one size and scheme share it; other
optimizers step outside it. `--compile` compiles the blocks first. `--together` runs of one process share the device,
each on a stream of its own; `--processes` take turns on it, which only helps where Python is what a step waits for.
Without them, with `--spread`, cells run in the order given. With `--curve` a long run that is cut leaves rows with
fewer steps `done`. `--plans` keeps plans in a folder, where another process finds them; `--plan-only` makes no more.

A cell is `family,width,layers,scheme,rate,seed`, with the rate as a number or a power like 2^-7. `--grid` makes cells
of lists instead: `--grid "llama;128,256;4,16;default,mup,mup+linear,ours;-11:-5;0,1,2"` (rates are powers of two).
Schemes: `default` (the model's own draw, one rate), `mup` (base: width 128), `mup+linear` (base: width 128, 4 layers),
`ours` (unit with width rule mup), `unit` (no width rule), or any `recipe+width+depth`; with options: `ours:k=2`, or
`ours:table=8&positions=8` for rates of the embeddings of tokens and of positions that are eight times the plan's (and
so `biases`, `gains`), or `ours:shaped=0` for tied tables and positions at the rate itself instead of `std sqrt(128)`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import sigprop as sp
from studies.prescription_models import (
    STEPS,
    Batches,
    build,
    groups_of,
    optimizers_of,
    prescribe,
    with_every_expert,
    with_usual,
    without_masks,
)

TOLD_EVERY, CURVE = 500, 50
DATA = Path(__file__).parents[1] / "docs/data"
STORED = (DATA / "prescription_training.json", DATA / "prescription_long.json")
CELL = ("family", "width", "layers", "scheme", "rate", "seed")
Cell = tuple[str, int, int, str, float, int]
PLANS: dict[tuple, Any] = {}
"""The plan of each size and scheme: rates and seeds share it."""


# -- one run


class Trainer:
    """A step as a function of device tensors alone: `place` counts steps, `rates` follow the schedule.

    AdamW's update is part of the CUDA graph. Other optimizers (`others`) step outside it.
    """

    def __init__(self, model: nn.Module, batches: Batches, groups: list[dict[str, Any]], steps: int, device: str,
                 others: list[torch.optim.Optimizer] | None = None):  # fmt: skip
        self.model, self.batches, self.device = model, batches, device
        self.place = torch.zeros(1, dtype=torch.long, device=device)
        self.losses = torch.zeros(steps, device=device)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        warm = max(steps // 10, 1)
        self.shape = [
            min((i + 1) / warm, 1.0) * (0.1 + 0.45 * (1 + math.cos(math.pi * i / steps))) for i in range(steps)
        ]
        self.inside = device == "cuda" and others is None
        if self.inside:
            self.schedule = torch.tensor(self.shape, device=device)
            self.rates = torch.zeros(len(groups), device=device)
            self.peaks = torch.zeros_like(self.rates)
            groups = [group | {"lr": self.rates[place]} for place, group in enumerate(groups)]
            others = [torch.optim.AdamW(groups, betas=(0.9, 0.95), capturable=True, fused=True)]
        self.optimizers = others or [torch.optim.AdamW(groups, betas=(0.9, 0.95))]
        self.groups = [(group, group["lr"]) for each in self.optimizers for group in each.param_groups]

    def gradients(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()
        inputs, targets = self.batches.take(self.place)
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.device == "cuda"):
            logits = self.model(inputs).logits
        loss = self.batches.loss(logits, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.losses.index_copy_(0, self.place, loss.detach()[None])
        if self.inside:
            torch.mul(self.peaks, self.schedule.index_select(0, self.place), out=self.rates)
            self.optimizers[0].step()
        self.place.add_(1)

    def ready(self, compiled: bool) -> None:
        """Capture the step as a CUDA graph, with compiled blocks or, where that fails, without; else the plain step."""
        self.work, self.stream = self.gradients, None
        for way in (True, False) if compiled else (False,):
            compile_blocks(self.model, way)
            if self.device != "cuda":
                return
            try:
                self.stream = torch.cuda.Stream()
                self.work = self._captured()
                return
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                print("no graph:", str(error).splitlines()[0], f"(compiled: {way})", file=sys.stderr, flush=True)

    def begin(self, model: nn.Module, groups: list[dict[str, Any]], seed: int) -> None:
        """Start from the model's numbers (in place, so that the graph stays true), with the groups' rates."""
        with torch.no_grad():
            for mine, drawn in zip(self.model.parameters(), model.parameters(), strict=True):
                mine.copy_(drawn)
        self.batches.choose(seed)
        self.place.zero_()
        self.losses.zero_()
        if self.inside:
            for state in self.optimizers[0].state.values():
                for value in state.values():
                    value.zero_()
            self.peaks.copy_(torch.tensor([group["lr"] for group in groups]))
        if self.device == "cuda":
            torch.cuda.synchronize()

    def step(self, step: int) -> None:
        with torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext():
            self.work()
            if not self.inside:
                for group, peak in self.groups:
                    group["lr"] = peak * self.shape[step]
                for each in self.optimizers:
                    each.step()

    def _captured(self) -> Callable[[], None]:
        """Warm-up (all rates are zero), capture and replay on one stream of its own: so are cuBLAS's workspaces."""
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                self.gradients()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"), without_masks():
            self.gradients()
        torch.cuda.synchronize()
        return graph.replay


def compile_blocks(model: nn.Module, wanted: bool) -> None:
    """Compile the repeated blocks one by one, or undo it: they share their code, so that only the first costs time."""
    for block in max((each for each in model.modules() if isinstance(each, nn.ModuleList)), key=len):
        if wanted:
            block.compile(dynamic=False)
        else:
            block._compiled_call_impl = None


def plan_of(cell: Cell, args: argparse.Namespace) -> Any:
    """The plan of a size and scheme, from memory, from the folder of plans or made."""
    family, width, layers, scheme, _, seed = cell
    key = (family, width, layers, scheme, args.optimizer)
    if key not in PLANS:
        path = args.plans and args.plans / ("-".join(map(str, key)).replace(":", "_") + ".json")
        if path and path.exists():
            PLANS[key] = sp.Plan.from_json(path)
        else:
            torch.manual_seed(seed)
            model = build(family, width, layers, args.tokens)
            PLANS[key] = prescribe(scheme, model, family, layers, args.tokens, args.optimizer)
            if path and PLANS[key] is not None:
                PLANS[key].to_json(path.with_suffix(f".{os.getpid()}"))
                path.with_suffix(f".{os.getpid()}").replace(path)
    return PLANS[key]


def trainer_of(cell: Cell, args: argparse.Namespace, free: dict[tuple, list[Trainer]]) -> Trainer:
    """A trainer at the start of the cell's run: a free one of the size and scheme, or a new one."""
    family, width, layers, _, rate, seed = cell
    plan = plan_of(cell, args)
    torch.manual_seed(seed)
    with torch.device(args.device):
        model = build(family, width, layers, args.tokens)
    torch.manual_seed(seed)
    if plan is not None:
        plan.apply_(model)
    if family == "mixtral":
        with_every_expert(model)
    model.train()
    others = None
    if args.optimizer != "adamw":
        others = optimizers_of(args.optimizer, plan, model, rate, args.decay)
    groups = groups_of(plan, model, rate, args.decay) if others is None else []
    if free.get(cell[:4]):
        trainer = free[cell[:4]].pop()
    else:
        batches = Batches(family, args.source, args.steps, args.batch, args.tokens, args.device)
        batches.choose(seed)
        trainer = Trainer(model, batches, groups, args.steps, args.device, others)
        trainer.ready(args.compile)
    trainer.begin(model, groups, seed)
    return trainer


def row_of(cell: Cell, trainer: Trainer, done: int, milliseconds: float, args: argparse.Namespace) -> dict[str, Any]:
    """What a run came to; `last` only when it is whole."""
    losses = trainer.losses[:done].tolist()
    tenth = max(args.steps // 10, 1)
    row = dict(zip(CELL, cell, strict=True))
    row |= {"optimizer": args.optimizer, "decay": args.decay, "steps": args.steps, "done": done}
    row |= {"batch": args.batch, "tokens": args.tokens, "first": losses[0], "groups": len(trainer.groups)}
    row |= {"parameters": sum(p.numel() for p in trainer.model.parameters()), "ms": round(milliseconds, 2)}
    if done == args.steps:
        row |= {"middle": sum(losses[done // 2 :][:tenth]) / tenth, "last": sum(losses[-tenth:]) / tenth}
    if args.curve:
        row["curve"] = [round(sum(losses[at : at + CURVE]) / CURVE, 4) for at in range(0, done - CURVE + 1, CURVE)]
    return row


def train(cells: list[Cell], args: argparse.Namespace, free: dict[tuple, list[Trainer]]) -> None:
    """Train cells side by side, step by step, and write a row for each; their trainers are free afterwards."""
    trainers: dict[Cell, Trainer] = {}
    for cell in cells:
        try:
            trainers[cell] = trainer_of(cell, args, free)
        except Exception as error:
            traceback.print_exc()
            write({"cell": cell, "error": f"{type(error).__name__}: {error}"[:300]}, args.out)
    begun = time.perf_counter()
    for step in range(args.steps):
        for trainer in trainers.values():
            trainer.step(step)
        if step + 1 == args.steps or (args.curve and (step + 1) % TOLD_EVERY == 0):
            if args.device == "cuda":
                torch.cuda.synchronize()
            took = 1000 * (time.perf_counter() - begun) / (step + 1)
            for cell, trainer in trainers.items():
                write(row_of(cell, trainer, step + 1, took, args), args.out)
    for cell, trainer in trainers.items():
        if trainer.inside:
            free.setdefault(cell[:4], []).append(trainer)


def write(row: dict[str, Any], path: Path) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps({key: value for key, value in row.items() if key != "curve"}), flush=True)


# -- cells


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


def trained(args: argparse.Namespace) -> set[Cell]:
    """Cells of whole runs with these settings, among the stored ones and those of the file that is written."""
    lines = args.out.read_text().splitlines() if args.out.exists() else []
    rows = [json.loads(line) for line in lines] + [
        row for path in STORED for row in json.loads(path.read_text())["rows"]
    ]
    found = set()
    for row in (row for row in rows if row.get("last") is not None):
        told = with_usual(row)
        same = all(told[name] == getattr(args, name) for name in ("optimizer", "steps", "batch", "tokens"))
        if same and row.get("done", args.steps) == args.steps:
            found.add(tuple(row[name] for name in CELL))
    return found


def cost(cell: Cell) -> float:
    return cell[2] * cell[1] ** 1.5


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
    parser.add_argument("--spread", action="store_true", help="share out single runs instead of sizes: for long runs")
    parser.add_argument("--curve", action="store_true", help="keep means over 50 steps")
    parser.add_argument("--compile", action="store_true", help="compile the repeated blocks")
    parser.add_argument("--plans", type=Path, default=None, help="folder that keeps plans")
    parser.add_argument("--missing", action="store_true", help="leave out runs that are stored")
    parser.add_argument("--plan-only", action="store_true", help="make the plans of the cells and stop")
    parser.add_argument("--together", type=int, default=1, help="runs that share the device, on streams of their own")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--part", type=int, default=None, help="run every PROCESSES-th cell from this one")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    cells = [read_cell(text) for text in args.cells] + [cell for text in args.grid for cell in read_grid(text)]
    done = trained(args) if args.missing else set()
    cells = [cell for cell in dict.fromkeys(cells) if cell not in done]
    if args.processes > 1:
        cells.sort(key=cost, reverse=True)
    if args.part is None and args.processes > 1:
        command = [sys.executable, "-m", "studies.prescription_training", *sys.argv[1:], "--part"]
        parts = [subprocess.Popen([*command, str(part)]) for part in range(args.processes)]
        sys.exit(max(part.wait() for part in parts))
    keys = [cell if args.spread else cell[:4] for cell in cells]
    mine = list(dict.fromkeys(keys))[args.part or 0 :: args.processes]
    cells = [cell for key in mine for cell in cells if cell[: len(key)] == key]
    if args.plan_only:
        for cell in cells:
            plan_of(cell, args)
        return
    free: dict[tuple, list[Trainer]] = {}
    for start in range(0, len(cells), args.together):
        train(cells[start : start + args.together], args, free)
        wanted = {cell[:4] for cell in cells[start + args.together :]}
        free = {key: found for key, found in free.items() if key in wanted}
        if args.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
