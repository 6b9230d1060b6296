"""What `Watch` says of sick and healthy runs: `python -m studies.watch_findings --help`.

A sick run is named right when its first finding has the right name and place. Writes `docs/data/watch_findings.json`.
"""

from __future__ import annotations

import datetime
import json
import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import typer

from sigprop.watch import Watch
from studies.watch_runs import HEALTHY, SICK, Run

DATA = Path(__file__).parent.parent / "docs" / "data"
EVERY = 5


def watched(run: Run, every: int = EVERY) -> list[Any]:
    """The findings of a run, in the order in which they were made."""
    logging.getLogger("sigprop.watch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Watch(run.model, every=every, folder=folder) as watch:
            run.train(watch)
    return watch.findings


def named_right(run: Run, findings: list[Any]) -> bool:
    """The first finding has the name, and the place is in its sites, parameters or title."""
    if not findings or findings[0].name != run.sick:
        return False
    first = findings[0]
    return run.where in " ".join((*first.sites, *first.parameters, first.title))


def main(seeds: int = 3, only: str = "", out: Path = DATA / "watch_findings.json") -> None:
    """Both forms of each illness, and the healthy runs, over seeds."""
    results: dict[str, Any] = {"sick": {}, "healthy": {}}
    for name, forms in SICK.items():
        if only and only not in name:
            continue
        for form, make in zip(("tuned", "held out"), forms, strict=True):
            rows = []
            for seed in range(seeds) if form == "tuned" else range(100, 100 + seeds):
                run = make(seed)
                findings = watched(run)
                rows.append({"right": named_right(run, findings), "said": [f"{f.name}: {f.title}" for f in findings]})
            results["sick"][f"{name}, {form}"] = rows
            print(f"{name}, {form}: {sum(row['right'] for row in rows)} of {seeds}", [r["said"][:3] for r in rows])
    for name, make in HEALTHY.items():
        if only and only not in name:
            continue
        rows = [[f"{f.name}: {f.title}" for f in watched(make(seed))] for seed in range(seeds)]
        results["healthy"][name] = rows
        print(f"healthy {name}: {sum(not row for row in rows)} of {seeds} silent", rows)
    if not only:
        command = "python -m studies.watch_findings " + " ".join(sys.argv[1:])
        stamp = {"command": command.strip(), "date": str(datetime.date.today()), "seeds": seeds}
        out.write_text(json.dumps({**stamp, **results}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
