"""What `Watch` says of faulty and healthy runs: `python -m studies.watch_findings --help`.

A faulty run is named right when its first finding has the right name and place. Seeds 0 and 100 were looked at while
the rules were written, and are left out. Writes `docs/data/watch_findings.json` as it goes.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import typer

from sigprop.monitoring import Watch
from studies.stored import stamp, write
from studies.watch_runs import FAULTY, HEALTHY, Run

DATA = Path(__file__).parent.parent / "docs" / "data"
EVERY = 5


def watched(run: Run, every: int = EVERY) -> list[Any]:
    """The findings of a run, in the order in which they were made."""
    logging.getLogger("sigprop.monitoring").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Watch(run.model, every=every, folder=folder) as watch:
            run.train(watch)
    return watch.findings


def named_right(run: Run, findings: list[Any]) -> bool:
    """The first finding has the name, and the place is in its sites, parameters or title."""
    if not findings or findings[0].name != run.faulty:
        return False
    first = findings[0]
    return run.where in " ".join((*first.sites, *first.parameters, first.title))


def main(seeds: int = 3, first: int = 1, only: str = "", out: Path = DATA / "watch_findings.json") -> None:
    """Both forms of each fault, and the healthy runs, over seeds from `first` on (100 more for the held-out form)."""
    command = " ".join(["watch_findings", *sys.argv[1:]])
    results = stamp(command, seeds=seeds, first=first, faulty={}, healthy={})
    for name, forms in FAULTY.items():
        for form, make in zip(("tuned", "held out"), forms, strict=True):
            if only in name:
                start = first if form == "tuned" else 100 + first
                results["faulty"][f"{name}, {form}"] = [faulty_row(make(seed)) for seed in range(start, start + seeds)]
                report(results, f"{name}, {form}", out)
    for name, make in HEALTHY.items():
        if only in name:
            runs = [watched(make(seed)) for seed in range(first, first + seeds)]
            results["healthy"][name] = [[f"{f.name}: {f.title}" for f in findings] for findings in runs]
            report(results, name, out)


def faulty_row(run: Run) -> dict[str, Any]:
    findings = watched(run)
    return {"right": named_right(run, findings), "said": [f"{f.name}: {f.title}" for f in findings]}


def report(results: dict[str, Any], name: str, out: Path) -> None:
    """Say what came, and keep it."""
    rows = results["faulty"].get(name)
    if rows is not None:
        print(f"{name}: {sum(row['right'] for row in rows)} of {len(rows)} named right", flush=True)
    else:
        silent = sum(not row for row in results["healthy"][name])
        print(f"{name}: {silent} of {len(results['healthy'][name])} silent", flush=True)
    write(out, results)


if __name__ == "__main__":
    typer.run(main)
