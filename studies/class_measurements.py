"""What the classes of transformers show when they are run: `python -m studies.class_measurements --help`.

Every class of the coverage check, built anew for each initialization and run forward and backward on the batch of that
check by the witness of the corpus, which shares no line with what it judges. Stored are the values themselves, means
with standard errors of every module output and every parameter's gradient, so that predictions can be compared with
them again and again.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from sigprop.capture import build
from studies.corpus.witness import Table, mean_and_error, one_draw
from studies.coverage_check import batch_of
from studies.coverage_configs import checkable, class_of, places, varied
from studies.predict_coverage import quiet, reason_of
from studies.stored import in_processes, read, stamp, write

FIRST = 50_000
FEWEST = 8
DIGITS = 8
OUT = Path("docs/data/class_measurements.json.gz")
OTHER = Path("docs/data/class_measurements_other.json")
"""The same classes in a setting that no rule was tried on (`--other`): narrow, large weights, more tokens."""
MORE_TOKENS = 22


def setting_of(kind: str, number: int, other: bool) -> tuple[Any, int, Any]:
    """A function that builds a class, its number of parameters, and a batch; in the `other` setting more tokens."""
    config_class, model_class = class_of(kind, number)
    choose = varied if other else checkable
    make, size = choose(config_class, model_class, kind == "causal LM")
    return make, size, batch_of(build(make), MORE_TOKENS) if other else batch_of(build(make))


def attempt(kind: str, number: int, draws: int, seconds: float, other: bool = False) -> dict[str, Any]:
    """One class: rows of a name with means and standard errors, or why there are none."""
    import transformers

    _, model_class = class_of(kind, number)
    row: dict[str, Any] = {"model": model_class.__name__, "kind": kind, "release": transformers.__version__}
    start = time.perf_counter()
    try:
        make, row["parameters"], batch = setting_of(kind, number, other)
        row["labels"] = "labels" in batch
        table = measured(make, batch, draws, start + seconds)
        row["draws"] = max(len(values) for found in table.values() for values in found.values())
        row["digits"], row["rows"] = DIGITS, list(rows_of(table))
    except Exception as error:
        row["reason"] = reason_of(error)
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def measured(make: Any, batch: Any, draws: int, until: float) -> Table:
    """Every number of every initialization; fewer of them, but eight, where the time is over."""
    table: Table = {}
    loss = own_loss if "labels" in batch else None
    for seed in range(FIRST, FIRST + draws):
        if seed >= FIRST + FEWEST and time.perf_counter() > until:
            break
        torch.manual_seed(seed)
        for name, row in one_draw(make(), batch, loss, seed).items():
            for column, value in row.items():
                table.setdefault(name, {}).setdefault(column, []).append(value)
    return table


def own_loss(output: Any) -> torch.Tensor:
    return output.loss


def rows_of(table: Table) -> Iterator[list[Any]]:
    """Name, then mean and standard error of each column; `coverage_check.table_of` reads them."""
    most = max(len(values) for row in table.values() for values in row.values())
    for name, row in table.items():
        numbers: list[float] = []
        for values in row.values():
            if len(values) == most and all(map(math.isfinite, values)):
                mean, error = mean_and_error(values)
                numbers += [float(f"{mean:.{DIGITS}g}"), float(f"{error:.3g}")]
        if numbers:
            yield [name, *numbers]


def main(
    only: Annotated[str, typer.Option(help="Class names, comma-separated; all by default.")] = "",
    leave_out: Annotated[Path | None, typer.Option(help="JSON file of classes that are not measured again.")] = None,
    draws: Annotated[int, typer.Option(help="Initializations.")] = 32,
    seconds: Annotated[float, typer.Option(help="After which a class gets no more than eight of them.")] = 90.0,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    gigabytes: Annotated[int, typer.Option(help="Memory for each process.")] = 16,
    other: Annotated[bool, typer.Option(help="In the other setting (with `--out` of its own).")] = False,
    out: Annotated[Path, typer.Option(help="JSON file; classes with all digits in it are not measured again.")] = OUT,
) -> None:
    """Measure every class, in the order of a hash of their names, and keep the numbers."""
    chosen = [name for name in only.split(",") if name]
    known = {row["model"] for row in read(leave_out)["classes"]} if leave_out else set()
    known_places = places()
    stored = read(out, {"classes": []})["classes"]
    rows = {(row["kind"], row["model"]): row for row in stored}
    done = {place for place, row in rows.items() if row.get("digits") == DIGITS}
    names = sorted(known_places, key=lambda place: hashlib.md5(place[1].encode()).hexdigest())
    names = [(kind, name) for kind, name in names if name not in known and (not chosen or name in chosen)]
    wanted = [(place[0], known_places[place], draws, seconds, other) for place in names if place not in done]
    head = stamp(f"class_measurements --draws {draws}{' --other' if other else ''}") | {"first seed": FIRST}
    for row in in_processes(attempt, wanted, workers, quiet, gigabytes):
        rows[row["kind"], row["model"]] = row
        print(row["model"], row["seconds"], row.get("draws", ""), row.get("reason", ""), flush=True)
        write(out, head | {"classes": [rows[place] for place in {**known_places, **rows} if place in rows]})


if __name__ == "__main__":
    typer.run(main)
