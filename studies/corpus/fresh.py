"""`python -m studies.corpus.fresh`: the tenth set, each model predicted once, by theory alone and as called by default.
`--models ninth`, `eleventh` or `twelfth`: that one; `constructs`: the 98 of the first, for who changes the engine.

The witness (`studies.corpus.witness`) makes 16 initializations of its own, four of a large model. Kept is a line for
each model and way: how the numbers came about, rows judged, confident and wrong ones, stated errors and how many were
missed by more than four standard errors of the witness.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import sigprop
from sigprop.errors import SigpropError
from studies.corpus import constructs, eleventh, eleventh_images, ninth, tenth, twelfth, twelfth_images
from studies.corpus.case import Case
from studies.corpus.judging import compared, confident_and_wrong, is_right
from studies.corpus.witness import Summary, witnessed

SETS = {
    "constructs": constructs.cases,
    "ninth": ninth.cases,
    "tenth": tenth.cases,
    "eleventh": lambda: [*eleventh.cases(), *eleventh_images.cases()],
    "twelfth": lambda: [*twelfth.cases(), *twelfth_images.cases()],
}
DRAWS, OF_LARGE = 16, 4
COLUMNS = ("variance", "grad_variance", "grad_second_moment")


def file_of(models: str) -> Path:
    """Where a set is stored."""
    return Path(f"docs/data/corpus_{models}.json")


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file; models that it has are left alone.")] = None,
    only: Annotated[str, typer.Option(help="Part of a name.")] = "",
    part: Annotated[int, typer.Option(help="Every second model: 0 or 1; all by default.")] = -1,
    first: Annotated[bool, typer.Option(help="Theory alone only.")] = False,
    draws: Annotated[int, typer.Option(help="Initializations of the witness; 16 by default, 4 of a large model.")] = 0,
    models: Annotated[str, typer.Option(help="The set: ninth, tenth, eleventh, twelfth or constructs.")] = "tenth",
) -> None:
    """Predict and judge what the file does not have yet."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    out = out or file_of(models)
    found = json.loads(out.read_text()) if out.exists() else {"models": {}}
    for number, case in enumerate(SETS[models]()):
        if only in case.name and part in (-1, number % 2):
            row = found["models"].setdefault(case.name, {})
            ways = [way for way in (("theory", 0), ("default", None)) if way[0] not in row][: 1 if first else 2]
            if ways:
                torch.manual_seed(7)
                batch = case.batch()
                usual = OF_LARGE if case.name.startswith(f"{models}/large") else DRAWS
                table = witnessed(case.make, batch, case.loss, draws or usual)
                row |= {way: judged(case, batch, table, verify) for way, verify in ways}
                print(case.name, {way: row[way] for way, _ in ways}, flush=True)
                out.write_text(json.dumps(found, separators=(",", ":")) + "\n")


def judged(case: Case, batch: Any, table: Summary, verify: int | None) -> dict[str, Any]:
    start = time.process_time()
    try:
        profile = sigprop.predict(case.make, batch, loss=case.loss or "noise", verify=verify)
    except SigpropError as error:
        return {"way": "refused", "why": str(error).splitlines()[0][:160]}
    except Exception as error:
        return {"way": "fault", "why": f"{type(error).__name__}: {error}"[:160]}
    simulated = "theory" in profile.meta
    row: dict[str, Any] = {"rows": compared(profile, table)}
    stated, missed = _stated(profile, table)
    made: dict[str, Any] = {
        "way": "simulated" if simulated else "theory",
        "right": all(is_right(row, c) for c in COLUMNS),
    }
    made |= {"rows": len(row["rows"]), "confident": sum(item[4] != "assumed" for item in row["rows"])}
    made |= {"wrong": len(confident_and_wrong(row)), "stated": stated, "missed": missed}
    made |= {"seconds": round(time.process_time() - start, 1)}
    return made | ({"why": profile.meta["theory"].splitlines()[0][:160]} if simulated else {})


def _stated(profile: sigprop.Profile, table: Summary) -> tuple[int, int]:
    """How many numbers state an error, and how many miss it by more than four standard errors of the witness."""
    named = [(row.name, row) for row in profile.sites] + [(f"parameter {row.name}", row) for row in profile.parameters]
    stated = missed = 0
    for name, row in named:
        for column, (mean, error) in table.get(name, {}).items():
            value, own = getattr(row, column), row.stated_errors.get(column)
            if own is not None and mean > 1e-12 and math.isfinite(value):
                stated += 1
                missed += abs(value - mean) > own * abs(value) + 4.0 * error
    return stated, missed


if __name__ == "__main__":
    typer.run(main)
