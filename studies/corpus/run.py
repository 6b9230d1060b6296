"""`python -m studies.corpus.run`: predictions of the corpus against the witness, row by row.

Each model is built from a seed and given as a module, or as the function that builds it (`Case.given_as_module`);
`predict` is called with its defaults; what the witness saw is stored (`studies.corpus.measured`). Kept are errors of
all rows that both have: relative, with the standard errors of witness and prediction together.
"""

from __future__ import annotations

import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import sigprop
from sigprop.errors import SigpropError
from studies.corpus.judging import compared, confident_and_wrong, errors_of
from studies.corpus.measured import stored_tables
from studies.corpus.models import all_cases
from studies.corpus.witness import Summary
from studies.engine_code import engine_code
from studies.stored import read, write

OUT = Path("docs/data/corpus.json.gz")


def judged(name: str, table: Summary, verify: int | None = None) -> dict[str, Any]:
    """One model: its rows as [name, column, error, standard error, status], or the reason why there are none."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    case = next(case for case in all_cases() if case.name == name)
    torch.manual_seed(7)
    batch = case.batch()
    given: Any = case.make() if case.given_as_module else case.make
    row: dict[str, Any] = {"model": case.name, "kind": case.kind, "half": case.half}
    row |= {"given": "module" if case.given_as_module else "factory", "code": engine_code()}
    start = time.process_time()
    try:
        profile = sigprop.predict(given, batch, loss=case.loss or "noise", verify=verify)
    except SigpropError as error:
        return row | {"reason": str(error).splitlines()[0][:200]}
    except Exception as error:
        return row | {"reason": f"{type(error).__name__}: {error}".splitlines()[0][:200], "raw": True}
    row["seconds"] = round(time.process_time() - start, 2)
    row["way"] = "simulation" if "theory" in profile.meta else "theory"
    if row["way"] == "simulation":
        row["theory"] = profile.meta["theory"].splitlines()[0][:160]
    row["rows"] = compared(profile, table)
    return row


def main(
    half: Annotated[str, typer.Option(help="development, held out, or all.")] = "development",
    only: Annotated[str, typer.Option(help="Parts of names, comma-separated.")] = "",
    added: Annotated[int, typer.Option(help="The set: 1 to 5; all by default.")] = 0,
    before: Annotated[int, typer.Option(help="Only sets before this one.")] = 99,
    out: Annotated[Path, typer.Option(help="JSON file; models run again replace those in it.")] = OUT,
    again: Annotated[
        bool, typer.Option(help="Also models that other code has run; those that none has run first.")
    ] = False,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    theory_alone: Annotated[bool, typer.Option(help="No model is run to verify what theory says.")] = False,
) -> None:
    """Judge the models of one half."""
    stored = read(out, {"models": []})
    rows = {row["model"]: row for row in stored["models"]}
    tables = stored_tables()
    parts = only.split(",")
    cases = [case for case in all_cases() if any(part in case.name for part in parts) and added in (0, case.added)]
    cases = [case for case in cases if case.added < before]
    wanted = [case.name for case in cases if half == "all" or case.half.startswith(half)]
    current = {name for name, row in rows.items() if row.get("code") == engine_code()}
    wanted = [name for name in wanted if name in tables and name not in (current if again else rows)]
    wanted.sort(key=lambda name: name in rows)
    verify = 0 if theory_alone else None
    command = "python -m studies.corpus.run --half all" + " --theory-alone" * theory_alone
    data: dict[str, Any] = {"command": command, "date": str(date.today())}
    data |= {"notes": stored.get("notes", []), "codes": stored.get("codes", {})}
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for job in as_completed([pool.submit(judged, name, tables[name], verify) for name in wanted]):
            row = job.result()
            rows[row["model"]] = row
            print(summary(row), flush=True)
            write(out, data | {"models": sorted(rows.values(), key=lambda item: item["model"])})


def summary(row: dict[str, Any]) -> str:
    if "rows" not in row:
        return f"{row['model']}: NOT PREDICTED {row['reason']}"
    parts = [
        f"{column} {errors_of(row, column)[0]:.3f}/{errors_of(row, column)[1]:.3f}"
        for column in ("variance", "grad_variance", "grad_second_moment")
    ]
    wrong = confident_and_wrong(row)
    tail = f" WRONG {len(wrong)}: {wrong[:2]}" if wrong else ""
    return f"{row['model']} [{row['way']}, {row['seconds']} s] {', '.join(parts)}{tail}"


if __name__ == "__main__":
    typer.run(main)
