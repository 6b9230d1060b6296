"""What the models of the accuracy study show when they are run: `python -m studies.accuracy_measurements --help`.

Every setting over fresh initializations, one process each; kept are means and standard errors of all module outputs and
parameters, so that predictions can be compared with them again and again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from sigprop.measurement import measure
from sigprop.results import ParameterRow, Profile, SiteRow
from studies.accuracy_models import CASES, Setting, settings
from studies.stored import in_processes, read, stamp, write

STORED = Path("docs/data/accuracy_measurements.json.gz")
DIGITS = 8
COLUMNS = {"sites": ("variance", "token_correlation", "grad_variance"), "parameters": ("grad_second_moment",)}


def all_settings() -> list[Setting]:
    return settings(list(CASES), [12], ["standard", "width"], [False, True])


def measured(setting: Setting, draws: int, first: int) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    case = CASES[setting.name](setting)
    start = time.perf_counter()
    training = setting.name == "resnet"
    found = measure(
        None, case.batch, case.loss, build=lambda: case.make().train(training), seeds=range(first, first + draws)
    )
    rows = {kind: list(_packed(getattr(found, kind), columns)) for kind, columns in COLUMNS.items()}
    return {"label": setting.label, "seconds": round(time.perf_counter() - start, 1), "digits": DIGITS, **rows}


def _packed(rows: list[Any], columns: tuple[str, ...]) -> Iterator[list[Any]]:
    for row in rows:
        pairs = [(getattr(row, column), row.errors.get(column)) for column in columns]
        numbers = [
            [float(f"{value:.{DIGITS}g}"), float(f"{error:.3g}")] if error is not None else None
            for value, error in pairs
        ]
        yield [row.name, *numbers]


def stored_profiles(path: Path = STORED) -> dict[str, Profile]:
    """By setting, the measured profile."""
    stored = read(path)
    seeds = list(range(stored["first seed"], stored["first seed"] + stored["draws"]))
    found = {}
    for entry in stored["settings"]:
        sites = [_unpacked(SiteRow(row[0], 0), row[1:], COLUMNS["sites"]) for row in entry["sites"]]
        parameters = [
            _unpacked(ParameterRow(row[0], ()), row[1:], COLUMNS["parameters"]) for row in entry["parameters"]
        ]
        found[entry["label"]] = Profile(sites, parameters, {"source": "measure", "seeds": seeds})
    return found


def _unpacked(row: Any, pairs: list[Any], columns: tuple[str, ...]) -> Any:
    for column, pair in zip(columns, pairs, strict=True):
        if pair is not None:
            setattr(row, column, pair[0])
            row.errors[column] = pair[1]
    return row


def main(
    draws: Annotated[int, typer.Option(help="Initializations of each setting.")] = 100,
    first: Annotated[int, typer.Option(help="The first seed.")] = 40_000,
    only: Annotated[str, typer.Option(help="Part of a setting's name.")] = "",
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    out: Annotated[
        Path, typer.Option(help="JSON file; settings with all digits in it are not measured again.")
    ] = STORED,
) -> None:
    """Measure every setting."""
    entries = {entry["label"]: entry for entry in read(out, {"settings": []})["settings"]}
    done = {label for label, entry in entries.items() if entry.get("digits") == DIGITS}
    wanted = [item for item in all_settings() if only in item.label and item.label not in done]
    head = stamp(f"accuracy_measurements --draws {draws} --first {first}", draws=draws) | {"first seed": first}
    for entry in in_processes(measured, [(item, draws, first) for item in wanted], workers):
        entries[entry["label"]] = entry
        print(entry["label"], entry["seconds"], flush=True)
        write(out, head | {"settings": [entries[label] for label in sorted(entries)]})


if __name__ == "__main__":
    typer.run(main)
