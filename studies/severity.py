"""What severity means: small trainings with one thing wrong each, beside what `check` called it before them.

    python -m studies.severity run --data FOLDER      # appends rows; goes on where it was stopped
    python -m studies.severity page                   # writes docs/evidence/severity.md

Rules, written before any run. A setting *ends* at the mean of its last 30 losses of 300 steps, at the best of the two
rates, over the seeds that were run; its reference is the same family unaltered, on the same batches.
- *problem*: it does not train (not finite, or above 0.9 x the loss of outputs of zero), or ends 10 % or more above;
- *warning*: 2 to 10 % above; *note*: less.
A threshold is moved only where a whole family of settings contradicts it, and where the change is silent on the rest.
"""

from __future__ import annotations

import contextlib
import copy
import io
import math
import time
import warnings
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

import sigprop as sp
from sigprop.models import load_text
from sigprop.research.lab.data import ImageBatches, TextBatches, labelled_idx, tokens_of
from studies.severity_models import BYTES, FAMILIES, TOKENS
from studies.stored import read, stamp, write

STORED = Path("docs/data/severity.json")
STEPS, LAST, WARM, RATES = 300, 30, 30, (2e-3, 8e-3)
PROBLEM, WARNING, STUCK = 0.10, 0.02, 0.9
ORDER = ("problem", "warning", "note", "nothing")
app = typer.Typer(add_completion=False, callback=lambda: None)


class Batches:
    """Bytes of English, or images of Fashion-MNIST, as the keyword arguments of a network."""

    def __init__(self, data: Path):
        text = load_text(data / "text" / "web-docs-train.txt.gz")
        self.text = TextBatches(tokens_of(text), 8, TOKENS + 1)
        self.images = ImageBatches(*labelled_idx(data / "fashion-mnist", count=20_000), 32)

    def __call__(self, family: str, step: int) -> dict[str, torch.Tensor]:
        if family in ("ViT", "ResNet"):
            found = self.images(step)
            return {"x": found["pixel_values"], "targets": found["labels"]}
        ids = self.text(step)["input_ids"]
        return {"x": ids[:, :-1], "targets": ids[:, 1:]}


def built(family: str, what: str, value: float | None, seed: int) -> nn.Module:
    make, settings = FAMILIES[family]
    torch.manual_seed(seed)
    model = make()
    if value is not None:
        settings[what][0](model, value)
    return model


def trained(model: nn.Module, family: str, batches: Batches, rate: float, seed: int) -> float:
    """Mean of the last losses of AdamW; infinite where one is not finite."""
    model.train()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    losses = []
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = rate * min((step + 1) / WARM, 1 - 0.9 * step / STEPS)
        loss = model(**batches(family, 1000 * seed + step))
        if not math.isfinite(loss.item()):
            return math.inf
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
    return sum(losses[-LAST:]) / LAST


def asked(model: nn.Module, batch: dict[str, Any]) -> tuple[list[str], str, nn.Module | None]:
    """Findings, the first code that is printed, and the model after it."""
    torch.manual_seed(0)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        findings = sp.check(copy.deepcopy(model), batch).findings
    told = [f"{item.severity} {item.name}: {item.title}" for item in findings]
    codes = [item.prescription.code for item in findings if item.prescription is not None and item.severity != "note"]
    code = next(filter(None, codes), "")
    if not code:
        return told, "", None
    mended = copy.deepcopy(model)
    names = {"model": mended, "torch": torch, "nn": nn, "init": nn.init, "math": math, "sp": sp}
    with torch.no_grad():
        exec(code, names)
    return told, code, mended


def row_of(family: str, what: str, value: float | None, seed: int, batches: Batches) -> dict[str, Any]:
    started = time.process_time()
    model = built(family, what, value, seed)
    told, code, failed, mended = [], "", "", None
    if seed == 0:
        try:
            told, code, mended = asked(model, batches(family, 0))
        except Exception as error:
            failed = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"

    def ends(start: nn.Module) -> list[float | None]:
        found = [trained(copy.deepcopy(start), family, batches, rate, seed) for rate in RATES]
        return [round(loss, 4) if math.isfinite(loss) else None for loss in found]

    return {
        "family": family, "what": what, "value": value, "seed": seed, "told": told, "code": code, "failed": failed,
        "ends": ends(model), "mended": [] if mended is None else ends(mended),
        "seconds": round(time.process_time() - started, 1),
    }  # fmt: skip


def settings() -> list[tuple[str, str, float | None]]:
    """One of each family in turn, references first, so that what is cut off is cut off of all."""
    chosen = {
        name: [("", None), *((what, value) for what, (_, values) in given.items() for value in values)]
        for name, (_, given) in FAMILIES.items()
    }
    longest = max(map(len, chosen.values()))
    return [(name, *rows[place]) for place in range(longest) for name, rows in chosen.items() if place < len(rows)]


@app.command()
def run(
    data: Annotated[Path, typer.Option(help="A folder with text/ and fashion-mnist/.")],
    seeds: int = 1,
    minutes: Annotated[float, typer.Option(help="No setting is begun after these.")] = 600,
) -> None:
    """Ask, train, apply what is printed, train again."""
    torch.set_num_threads(1)
    batches, started = Batches(data), time.perf_counter()
    stored = read(STORED, {}) or stamp("severity run", rows=[])
    done = {(row["family"], row["what"], row["value"], row["seed"]) for row in stored["rows"]}
    for seed in range(seeds):
        for setting in settings():
            if (*setting, seed) in done:
                continue
            if time.perf_counter() - started > 60 * minutes:
                return
            stored["rows"].append(row_of(*setting, seed, batches))
            print(stored["rows"][-1], flush=True)
            write(STORED, stored)


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


def judged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each setting: what was called, what training says, and what the printed fix brought."""
    by: dict[tuple[str, str, float | None], list[dict[str, Any]]] = {}
    for row in rows:
        by.setdefault((row["family"], row["what"], row["value"]), []).append(row)
    found = []
    for (family, what, value), same in by.items():
        of = {row["seed"]: row for row in by[family, "", None]}
        shared = [row for row in same if row["seed"] in of]
        reference = best([of[row["seed"]]["ends"] for row in shared])
        chance = math.log(10 if family in ("ViT", "ResNet") else BYTES)
        after = [row["mended"] for row in shared if row["mended"]]
        start = best([of[row["seed"]]["ends"] for row in shared if row["mended"]]) if after else math.nan
        loss = best([row["ends"] for row in shared])
        first = min(same, key=lambda row: row["seed"])
        found.append({
            "family": family, "what": what, "value": value, "seeds": len(shared), "loss": loss,
            "over": loss / reference - 1, "training": verdict(loss, reference, chance),
            "called": worst(first["told"]), "told": first["told"], "code": first["code"], "failed": first["failed"],
            "after": best(after) / start - 1 if after else None,
        })  # fmt: skip
    return found


if __name__ == "__main__":
    app()
