"""What severity means: small networks with one thing wrong each, what `check` calls it, and how they train.

    python -m studies.severity ask --workers 12                 # what check says, on a CPU
    python -m studies.severity train --data FOLDER --part 0/3   # trains before and after the printed fix, on a GPU
    python -m studies.severity page PARTS                       # joins what was stored, writes the page

Rules, written before any run. A setting *ends* at the mean of its last 50 losses of 500 steps, at the best of the three
rates, averaged over three seeds; its reference is the same family unaltered, on the same batches.
- *problem*: it does not train (not finite, or above 0.9 x the loss of outputs of zero), or ends 10 % or more above;
- *warning*: 2 to 10 % above; *note*: less.
- A fix *works* where the setting ends less than 2 % above the reference after it.
A threshold is moved only where the settings of two families or more contradict it and none agrees with it.
"""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

import sigprop as sp
from sigprop.models import load_text
from sigprop.research.lab.data import ImageBatches, TextBatches, labelled_idx, tokens_of
from studies.severity_models import BYTES, FAMILIES, TOKENS
from studies.stored import fill, in_processes, read, stamp, table, write

STORED, PAGE = Path("docs/data/severity.json"), Path("docs/evidence/severity.md")
STEPS, LAST, WARM, RATES, SEEDS, BATCH = 500, 50, 50, (1e-3, 3e-3, 9e-3), 3, 32
PROBLEM, WARNING, STUCK = 0.10, 0.02, 0.9
ORDER = ("problem", "warning", "note", "nothing")
IMAGES = ("ViT", "ResNet")
Setting = tuple[str, str, float | None]
app = typer.Typer(add_completion=False)


def settings() -> list[Setting]:
    """One of each family in turn, references first."""
    chosen: dict[str, list[Setting]] = {
        name: [(name, "", None), *((name, what, value) for what, (_, values) in given.items() for value in values)]
        for name, (_, given) in FAMILIES.items()
    }
    longest = max(map(len, chosen.values()))
    return [rows[place] for place in range(longest) for rows in chosen.values() if place < len(rows)]


def built(family: str, what: str, value: float | None, seed: int) -> nn.Module:
    make, knobs = FAMILIES[family]
    torch.manual_seed(seed)
    model = make()
    if value is not None:
        knobs[what][0](model, value)
    return model


def batches(family: str, data: Path, seed: int, steps: int = STEPS) -> dict[str, Tensor]:
    """All batches of a run, one behind the other: bytes of English, or images of Fashion-MNIST."""
    if family in IMAGES:
        images = ImageBatches(*labelled_idx(data / "fashion-mnist", count=20_000), BATCH)
        found = [images(1000 * seed + step) for step in range(steps)]
        return {
            "x": torch.stack([one["pixel_values"] for one in found]),
            "targets": torch.stack([one["labels"] for one in found]),
        }
    text = TextBatches(tokens_of(load_text(data / "text" / "web-docs-train.txt.gz")), BATCH, TOKENS + 1, seed)
    ids = torch.stack([text(step)["input_ids"] for step in range(steps)])
    return {"x": ids[..., :-1].contiguous(), "targets": ids[..., 1:].contiguous()}


# -- what check says


def random_batch(family: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    if family in IMAGES:
        x = torch.randn(8, 1, 28, 28, generator=generator)
        return {"x": x, "targets": torch.randint(10, (8,), generator=generator)}
    ids = torch.randint(BYTES, (8, TOKENS + 1), generator=generator)
    return {"x": ids[:, :-1], "targets": ids[:, 1:]}


def asked(family: str, what: str, value: float | None) -> dict[str, Any]:
    """Findings, and the first code that is printed for one that is more than a note."""
    torch.set_num_threads(1)
    row: dict[str, Any] = {"family": family, "what": what, "value": value, "told": [], "code": "", "failed": ""}
    model = built(family, what, value, 0)
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            findings = sp.check(model, random_batch(family)).findings
    except Exception as error:
        return row | {"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"}
    row["told"] = [f"{item.severity} {item.name}: {item.title}" for item in findings]
    codes = [item.prescription.code for item in findings if item.prescription is not None and item.severity != "note"]
    return row | {"code": next(filter(None, codes), "")}


@app.command()
def ask(workers: int = 2, out: Path = STORED) -> None:
    """What `check` calls each setting."""
    stored = read(out, {}) or stamp("severity", ends={})
    stored["asked"] = sorted(in_processes(asked, settings(), workers), key=lambda row: str(row["family"]))
    write(out, stored)


# -- how it trains


def fixed(model: nn.Module, code: str) -> nn.Module:
    names = {"model": model, "torch": torch, "nn": nn, "init": nn.init, "math": math, "sp": sp}
    with torch.no_grad():
        exec(code, names)
    return model


class Runs:
    """All seeds and rates of a setting as one program: a flat row of weights each, AdamW, one CUDA graph a step."""

    def __init__(self, models: list[nn.Module], given: dict[str, Tensor]):
        for module in models[0].modules():
            if isinstance(module, nn.BatchNorm2d):  # in training mode nothing reads its running statistics
                module.track_running_stats, module.running_mean, module.running_var = False, None, None
        device = given["x"].device
        flat = torch.stack(
            [torch.cat([weight.detach().flatten() for weight in model.parameters()]) for model in models]
        )
        self.model, self.given = models[0].to(device).train(), given
        self.shapes = {name: weight.shape for name, weight in self.model.named_parameters()}
        self.start = flat.to(device).repeat_interleave(len(RATES), 0)
        self.weights, self.first, self.second = (torch.zeros_like(self.start) for _ in range(3))
        self.losses = torch.zeros(STEPS, len(self.start), device=device)
        self.step = torch.zeros(1, dtype=torch.long, device=device)
        self.peaks = torch.tensor(RATES * len(models), device=device)[:, None]
        self.schedule = torch.tensor([min((i + 1) / WARM, 1 - 0.9 * i / STEPS) for i in range(STEPS)], device=device)
        self.gradients = torch.func.vmap(torch.func.grad_and_value(self._loss), randomness="error")

    def _loss(self, flat: Tensor, batch: dict[str, Tensor]) -> Tensor:
        pieces = flat.split([shape.numel() for shape in self.shapes.values()])
        named = {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}
        return torch.func.functional_call(self.model, named, kwargs=batch)

    @torch.no_grad()
    def one(self) -> None:
        batch = {
            key: value.index_select(1, self.step)[:, 0].repeat_interleave(len(RATES), 0)
            for key, value in self.given.items()
        }
        gradients, losses = self.gradients(self.weights, batch)
        self.losses.index_copy_(0, self.step, losses[None])
        gradients = gradients * (1.0 / gradients.norm(dim=1, keepdim=True)).clamp(max=1.0)
        self.first.lerp_(gradients, 0.1)
        self.second.lerp_(gradients.square(), 0.05)
        done = self.step + 1
        update = self.first / (1 - 0.9**done) / ((self.second / (1 - 0.95**done)).sqrt() + 1e-8)
        rate = self.peaks * self.schedule[self.step]
        self.weights.sub_(rate * (update + 0.01 * self.weights))
        self.step.add_(1)

    @torch.no_grad()
    def reset(self) -> None:
        self.weights.copy_(self.start)
        for tensor in (self.first, self.second, self.step):
            tensor.zero_()

    def train(self) -> list[list[float | None]]:
        """Mean of the last losses, by seed and rate; None where a loss is not finite."""
        self.reset()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.one()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.one()
        self.reset()
        for _ in range(STEPS):
            graph.replay()
        return self.ends()

    def ends(self) -> list[list[float | None]]:
        found = self.losses.mT.tolist()
        last = [round(sum(of[-LAST:]) / LAST, 4) if all(map(math.isfinite, of)) else None for of in found]
        return [last[at : at + len(RATES)] for at in range(0, len(last), len(RATES))]


@app.command()
def train(
    data: Annotated[Path, typer.Option(help="A folder with text/ and fashion-mnist/.")],
    part: Annotated[str, typer.Option(help="Which of how many processes this one is.")] = "0/1",
    out: Annotated[Path, typer.Option(help="JSON file of this part.")] = Path("severity_part.json"),
    asked_in: Annotated[Path, typer.Option(help="Where `ask` stored what it was told.")] = STORED,
) -> None:
    """Train each setting that `out` does not have, and the setting with the printed code applied."""
    torch.set_float32_matmul_precision("high")
    own, count = map(int, part.split("/"))
    ends: dict[str, Any] = read(out, {})
    codes = {(row["family"], row["what"], row["value"]): row["code"] for row in read(asked_in)["asked"]}
    given: dict[bool, dict[str, Tensor]] = {}
    for family, what, value in settings()[own::count]:
        if f"{family}|{what}|{value}" in ends:
            continue
        images = family in IMAGES
        if images not in given:
            of_seeds = [batches(family, data, seed) for seed in range(SEEDS)]
            given[images] = {key: torch.stack([one[key] for one in of_seeds]).to("cuda") for key in of_seeds[0]}
        row: dict[str, Any] = {"ends": [], "after": []}
        for key, code in (("ends", ""), ("after", codes[family, what, value])):
            if key == "ends" or code:
                try:
                    models = [fixed(built(family, what, value, seed), code) for seed in range(SEEDS)]
                    row[key] = Runs(models, given[images]).train()
                except Exception as error:
                    row["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
        ends[f"{family}|{what}|{value}"] = row
        write(out, ends)
        print(family, what, value, row, flush=True)


# -- the verdict of training


def best(ends: list[list[float | None]]) -> float:
    """At the best rate, over seeds."""
    means = [sum(math.inf if loss is None else loss for loss in at) / len(at) for at in zip(*ends, strict=True)]
    return min(means)


def verdict(loss: float, reference: float, chance: float) -> str:
    over = loss / reference - 1
    return "problem" if loss > STUCK * chance or over >= PROBLEM else "warning" if over >= WARNING else "note"


def worst(told: list[str]) -> str:
    return min((line.split()[0] for line in told), key=ORDER.index, default="nothing")


def judged(stored: dict[str, Any]) -> list[dict[str, Any]]:
    """Each setting: what it was called, what training says, and what the printed fix brought.

    `training` compares with the unaltered family, `beside_best` with the better of that and the fixed model.
    """
    found = []
    for row in stored["asked"]:
        family, what, value = row["family"], row["what"], row["value"]
        ends, reference = (stored["ends"].get(f"{family}|{key}") for key in (f"{what}|{value}", "|None"))
        if not ends or not reference or not ends["ends"]:
            continue
        start, chance = best(reference["ends"]), math.log(10 if family in IMAGES else BYTES)
        loss, after = best(ends["ends"]), best(ends["after"]) if ends["after"] else None
        made = {"loss": loss, "over": loss / start - 1, "training": verdict(loss, start, chance)}
        made |= {"called": worst(row["told"]), "after": None if after is None else after / start - 1}
        made["beside_best"] = verdict(loss, min(start, after or start), chance)
        found.append(row | made)
    return found


def severity_of(called: str) -> str:
    return "note" if called == "nothing" else called


@app.command()
def page(parts: Annotated[list[Path] | None, typer.Argument(help="What `train` wrote.")] = None) -> None:
    """Join what the processes stored, and write the tables."""
    stored = read(STORED)
    for part in parts or []:
        stored["ends"] |= read(part)
    write(STORED, stored)
    rows = [row for row in judged(stored) if row["what"]]
    kinds = ("problem", "warning", "note")
    heads = ["called", *(f"training: {kind}" for kind in kinds)]
    crossed = {
        name: table(heads, [[called, *(_count(rows, called, key, kind) for kind in kinds)] for called in kinds])
        for name, key in (("crossed", "training"), ("beside", "beside_best"))
    }
    lines = [
        [
            row["family"], f"{row['what']} {row['value']:g}", f"{row['over']:+.1%}", row["training"],
            row["beside_best"], row["called"], "" if row["after"] is None else f"{row['after']:+.1%}",
            row["failed"] or "; ".join(line[:70] for line in row["told"] if not line.startswith("note")) or "nothing",
        ]
        for row in sorted(rows, key=lambda row: list(FAMILIES).index(row["family"]))
    ]  # fmt: skip
    heads = ["family", "setting", "ends", "training", "beside the best", "called", "fixed, ends", "told"]
    fill(PAGE, crossed | {"settings": table(heads, lines)})


def _count(rows: list[dict[str, Any]], called: str, key: str, kind: str) -> int:
    return sum(severity_of(row["called"]) == called and row[key] == kind for row in rows)


if __name__ == "__main__":
    app()
