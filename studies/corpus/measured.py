"""`python -m studies.corpus.measured`: what the witness sees of every model, stored so that it is measured once."""

from __future__ import annotations

import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from studies.corpus.models import all_cases
from studies.corpus.witness import Summary, witnessed
from studies.stored import read, write

STORED = Path("docs/data/corpus_witness.json.gz")
FIRST = 50_000


def measured(name: str, seeds: int) -> dict[str, Any]:
    """Rows of one model over fresh initializations, or why there are none."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    case = next(case for case in all_cases() if case.name == name)
    try:
        table = witnessed(case.make, case.batch(), case.loss, seeds, FIRST)
    except Exception as error:
        return {"reason": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    return {
        "seeds": seeds,
        "rows": {name: {key: _short(pair) for key, pair in row.items()} for name, row in table.items()},
    }


def _short(pair: tuple[float, float]) -> list[float]:
    return [float(f"{value:.6g}") for value in pair]


def stored_tables(path: Path = STORED) -> dict[str, Summary]:
    """By model, what the witness saw."""
    models = read(path)["models"]
    return {
        name: {
            row: {key: (pair[0], pair[1]) for key, pair in columns.items()} for row, columns in entry["rows"].items()
        }
        for name, entry in models.items()
        if "rows" in entry
    }


def main(
    seeds: Annotated[int, typer.Option(help="Initializations.")] = 32,
    only: Annotated[str, typer.Option(help="Part of a name.")] = "",
    added: Annotated[int, typer.Option(help="The set: 1 to 5; all by default.")] = 0,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    out: Annotated[Path, typer.Option(help="JSON file; models that are in it are not measured again.")] = STORED,
) -> None:
    """Measure every model of the corpus that has not been measured."""
    models = read(out, {"models": {}})["models"]
    wanted = [case.name for case in all_cases() if only in case.name and added in (0, case.added)]
    wanted = [name for name in wanted if "rows" not in models.get(name, {})]
    command = f"python -m studies.corpus.measured --seeds {seeds}"
    head = {"command": command, "first seed": FIRST, "date": str(date.today()), "torch": torch.__version__}
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        jobs = {pool.submit(measured, name, seeds): name for name in wanted}
        for count, job in enumerate(as_completed(jobs), 1):
            models[jobs[job]] = job.result()
            if count % 16 == 0 or count == len(jobs):
                write(out, head | {"models": dict(sorted(models.items()))})
    print(f"{sum('rows' in entry for entry in models.values())} models")
    for name, entry in models.items():
        if "reason" in entry:
            print(name, entry["reason"])


if __name__ == "__main__":
    typer.run(main)
