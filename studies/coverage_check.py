"""Are covered models predicted rightly: `python -m studies.coverage_check --help`.

Every class of transformers is predicted with the defaults of `predict`, from the function that builds it, and compared
with what `studies.class_measurements` has stored. The measure is that of the corpus: a class is right when its median
block is within a tenth and its worst within a fifth, less two standard errors, in variance and in gradient. Blocks are
modules with a number for a name and modules inside; rows of all modules and parameters are kept, too.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from sigprop import predict
from sigprop.capture import build
from sigprop.inputs import made_up_batch, zipf_ids
from studies.corpus.judging import compared, confident_and_wrong, errors_of, is_right
from studies.coverage_configs import VOCABULARY, checkable, class_of, places
from studies.predict_coverage import Late, limited, quiet, reason_of
from studies.stored import in_processes, read, stamp, table, write

TITLES = {"variance": "variance", "grad_variance": "gradient variance"}
TOKENS = 16
MEASURED = Path("docs/data/class_measurements.json.gz")
OUT = Path("docs/data/class_checks.json.gz")


def batch_of(model: Any, tokens: int = TOKENS) -> Any:
    """The made-up batch, with words for labels that have nothing to do with the input."""
    batch = made_up_batch(model, tokens)
    if isinstance(batch.get("labels"), torch.Tensor) and batch["labels"].dim() == 2:
        words = min(VOCABULARY, int(model.config.get_text_config().vocab_size))
        batch["labels"] = zipf_ids(words, tuple(batch["labels"].shape), seed=2)
    return batch


def attempt(kind: str, number: int, measured: dict[str, Any], seconds: int) -> dict[str, Any]:
    """One class: rows as [name, column, error, standard error, status], or why there are none."""
    config_class, model_class = class_of(kind, number)
    row: dict[str, Any] = {"model": model_class.__name__, "kind": kind, "draws": measured.get("draws")}
    start = time.perf_counter()
    try:
        with limited(seconds):
            make, row["parameters"] = checkable(config_class, model_class, kind == "causal LM")
            blank = build(make)
            batch = batch_of(blank)
            profile = predict(make, batch, tokens=1024, loss=None if measured.get("labels") else "noise")
        row["way"] = "simulation" if "theory" in profile.meta else "theory"
        row["blocks"] = blocks_of(blank)
        row["rows"] = compared(profile, table_of(measured))
    except (Exception, Late) as error:
        row["reason"] = reason_of(error)
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def table_of(measured: dict[str, Any]) -> dict[str, dict[str, tuple[float, float]]]:
    """What was stored of a class, by row and column."""
    table: dict[str, dict[str, tuple[float, float]]] = {}
    for name, *numbers in measured["rows"]:
        columns = ("grad_second_moment",) if name.startswith("parameter ") else ("variance", "grad_variance")
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        table[name] = dict(zip(columns, pairs, strict=False))
    return table


def blocks_of(model: torch.nn.Module) -> list[str]:
    """Modules with a number for a name that hold modules and parameters."""
    return [
        name
        for name, module in model.named_modules()
        if name.rpartition(".")[2].isdigit() and any(module.children()) and any(True for _ in module.parameters())
    ]


def blocks_alone(row: dict[str, Any]) -> dict[str, Any]:
    """The row of a class with its blocks only; with all modules where it has none."""
    blocks = set(row.get("blocks", []))
    found = [item for item in row.get("rows", []) if item[0] in blocks]
    return row | {"rows": found or row.get("rows", [])}


# -- the page


def tables(data: dict[str, Any]) -> dict[str, list[str]]:
    """What stands between the marks of the coverage page: shares, and the classes that are off."""
    rows = data["classes"]
    found = [row for row in rows if row.get("rows")]
    draws = Counter(row["draws"] for row in found)
    judged = {column: [is_right(blocks_alone(row), column) for row in found] for column in TITLES}
    both = [all(pair) for pair in zip(*judged.values(), strict=True)]
    shown = [*((TITLES[column], judged[column]) for column in TITLES), ("both", both)]
    n = max(len(found), 1)
    shares = [(title, len(found), sum(right), f"{100 * sum(right) / n:.1f} %") for title, right in shown]
    wrong = [(row["model"], item) for row in found for item in confident_and_wrong(row)]
    errors = [(model, f"`{name}` {column}", _size(e, s), status) for model, (name, column, e, s, status, _) in wrong]
    off = [
        (row["model"], row["kind"], *(_pair(errors_of(blocks_alone(row), column)) for column in TITLES), row["way"])
        for row, right in zip(found, both, strict=True)
        if not right
    ]
    total = sum(len(row["rows"]) for row in found)
    answer = [
        f"- Of {len(found)} that were run, of {data['measured']}, {sum(both)} are right in variance and gradient.",
        f"- {len(wrong)} of {total} rows are better than `assumed` and off by more than 20 % and five standard errors.",
    ]
    measured = f"{min(draws)} to {max(draws)} initializations each ({draws[max(draws)]} classes with {max(draws)})."
    return {
        "answer": answer,
        "measured": [measured, *(line for note in data.get("notes", []) for line in ("", note))],
        "right": table(("quantity", "classes", "right", "share"), shares),
        "wrong rows": table(("model", "row", "error", "status"), errors) if wrong else ["None."],
        "not right": table(("model", "kind", "variance", "gradient", "how"), off) if off else ["None."],
        "not judged": table(("model", "kind", "reason"), [reasons_of(row) for row in rows if not row.get("rows")]),
    }


def reasons_of(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["model"], row["kind"], row.get("reason", "no rows").replace("|", "/")


def _pair(numbers: tuple[float, float]) -> str:
    return "-" if math.isnan(numbers[0]) else f"{100 * numbers[0]:.0f} / {100 * numbers[1]:.0f} %"


def _size(error: float | None, spread: float) -> str:
    return "no number" if error is None else f"{100 * error:+.0f} % (s.e. {100 * spread:.0f} %)"


def main(
    only: Annotated[str, typer.Option(help="Class names, comma-separated; all by default.")] = "",
    seconds: Annotated[int, typer.Option(help="Limit for each class.")] = 120,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    gigabytes: Annotated[int, typer.Option(help="Memory for each process.")] = 16,
    rest: Annotated[bool, typer.Option(help="Only classes that have no rows in the file.")] = False,
    measured: Annotated[Path, typer.Option(help="What class_measurements stored.")] = MEASURED,
    out: Annotated[Path, typer.Option(help="JSON file; classes named again replace those in it.")] = OUT,
) -> None:
    """Compare predictions with the stored measurements of every class."""
    import transformers

    chosen = [name for name in only.split(",") if name]
    stored = {(row["kind"], row["model"]): row for row in read(measured)["classes"]}
    found = places()
    before = read(out, {"classes": []})
    rows = {(row["kind"], row["model"]): row for row in before["classes"]}
    wanted = [
        (kind, number, stored[kind, name], seconds)
        for (kind, name), number in found.items()
        if stored.get((kind, name), {}).get("rows") and (not chosen or name in chosen)
        if not (rest and rows.get((kind, name), {}).get("rows"))
    ]
    for place, row in stored.items():
        if not row.get("rows"):
            rows[place] = {key: row[key] for key in ("model", "kind", "reason") if key in row}
    count = sum("rows" in row for row in stored.values())
    head = stamp("coverage_check", notes=before.get("notes", []), transformers=transformers.__version__, measured=count)
    for row in in_processes(attempt, wanted, workers, quiet, gigabytes):
        rows[row["kind"], row["model"]] = row
        wrong = len(confident_and_wrong(row))
        verdicts = [f"{column} {is_right(blocks_alone(row), column)}" for column in TITLES]
        print(row["model"], row["seconds"], *verdicts, f"wrong {wrong}", row.get("reason", ""), flush=True)
        write(out, head | {"classes": [rows[place] for place in found if place in rows]})


if __name__ == "__main__":
    typer.run(main)
