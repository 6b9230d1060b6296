"""What fresh initializations of every class of transformers show: `python -m studies.coverage_witness --help`.

Stored for `coverage_check`: means and standard errors of each module's output and its gradient, and of each parameter's
gradient, so that predictions can be judged again without measuring again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from sigprop.measure import measure
from sigprop.results import Profile
from sigprop.sources import made_up_batch, zipf_ids
from sigprop.trace import build
from studies.coverage_configs import KINDS, VOCABULARY, checkable, classes
from studies.predict_coverage import Late, limited, quiet, reason_of

STORED = Path("docs/data/coverage_witness.json")
TOKENS, FIRST = 16, 50_000


def batch_of(model: Any) -> dict[str, Any]:
    """The made-up batch, with words for labels that have nothing to do with the input."""
    batch = made_up_batch(model, TOKENS)
    if isinstance(batch.get("labels"), torch.Tensor) and batch["labels"].dim() == 2:
        words = min(VOCABULARY, int(model.config.get_text_config().vocab_size))
        batch["labels"] = zipf_ids(words, tuple(batch["labels"].shape), seed=2)
    return batch


def blocks_of(model: torch.nn.Module) -> list[str]:
    """Modules with a number for a name that hold modules and parameters."""
    return [
        name
        for name, module in model.named_modules()
        if name.rpartition(".")[2].isdigit() and any(module.children()) and any(True for _ in module.parameters())
    ]


def made(kind: str, number: int) -> tuple[Callable[[], Any], int]:
    config_class, model_class = classes(kind)[number]
    return checkable(model_class.config_class or config_class, model_class, kind == "causal LM")


def witnessed(kind: str, number: int, seeds: int, seconds: int) -> dict[str, Any]:
    """One class measured, or why not. A class whose own loss does not take the made-up labels is run without them."""
    row: dict[str, Any] = {"kind": kind, "model": classes(kind)[number][1].__name__, "seeds": seeds}
    try:
        with limited(seconds):
            make, row["parameters"] = made(kind, number)
            model = build(make)
            batch, row["blocks"] = batch_of(model), blocks_of(model)
            numbers = range(FIRST, FIRST + seeds)
            try:
                found, row["labels"] = measure(None, batch, build=make, seeds=numbers), "labels" in batch
            except Exception:
                if batch.pop("labels", None) is None:
                    raise
                found, row["labels"] = measure(None, batch, build=make, seeds=numbers), False
        return row | _stored(found)
    except (Exception, Late) as error:
        return row | {"reason": reason_of(error)}


def _stored(profile: Profile) -> dict[str, Any]:
    sites = {row.name: _pairs(row, ("variance", "grad_variance")) for row in profile.sites}
    return {"sites": sites, "weights": {row.name: _pairs(row, ("grad_second_moment",)) for row in profile.parameters}}


def _pairs(row: Any, columns: tuple[str, ...]) -> list[float | None]:
    """Mean and standard error of each column."""
    numbers = [value for key in columns for value in (getattr(row, key), row.errors.get(key, math.nan))]
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in numbers]


def main(
    only: Annotated[str, typer.Option(help="Class names, comma-separated; all by default.")] = "",
    seeds: Annotated[int, typer.Option(help="Initializations measured.")] = 32,
    seconds: Annotated[int, typer.Option(help="Limit for each class.")] = 300,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    gigabytes: Annotated[int, typer.Option(help="Memory for each process.")] = 16,
    out: Annotated[Path, typer.Option(help="JSON file; classes that are in it are not measured again.")] = STORED,
) -> None:
    """Measure every class that has not been measured."""
    import transformers

    rows = {
        (row["kind"], row["model"]): row for row in (json.loads(out.read_text())["classes"] if out.exists() else [])
    }
    places = [(kind, number, item[1].__name__) for kind in KINDS for number, item in enumerate(classes(kind))]
    chosen = [name for name in only.split(",") if name]
    wanted = [
        (kind, number, seeds, seconds)
        for kind, number, name in places
        if "sites" not in rows.get((kind, name), {}) and (not chosen or name in chosen)
    ]
    head = {"command": f"python -m studies.coverage_witness --seeds {seeds}", "first seed": FIRST}
    head |= {"date": str(date.today()), "transformers": transformers.__version__, "torch": torch.__version__}
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=quiet, initargs=(gigabytes,)) as pool:
        for count, job in enumerate(as_completed([pool.submit(witnessed, *item) for item in wanted]), 1):
            row = job.result()
            rows[row["kind"], row["model"]] = row
            if "reason" in row:
                print(row["kind"], row["model"], row["reason"], flush=True)
            if count % 16 == 0 or count == len(wanted):
                kept = [rows[kind, name] for kind, _, name in places if (kind, name) in rows]
                out.write_text(json.dumps(head | {"classes": kept}) + "\n")
    print(len(rows), "classes")


if __name__ == "__main__":
    typer.run(main)
