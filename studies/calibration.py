"""Are stated errors right: `python -m studies.calibration --help`.

Every class of transformers that was measured (`studies.class_measurements`) and every setting of the accuracy study
(`studies.accuracy_measurements`) is predicted, by theory alone and as `predict` does it by default, and each number is
compared with the measured one. A number is within its stated error `e` when it is off by no more than
`hypot(e, t s)`, `s` the standard error of the measurement and `t` the quantile of its 99 % interval. Numbers of one
tensor under several names count once. Classes come in the order of a hash of their names, so that a study that is cut
off is still a sample.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from scipy.special import stdtrit

import sigprop
from sigprop.results import Profile
from sigprop.trace import build
from sigprop.trace import predict as by_theory
from studies import accuracy_measurements, class_measurements
from studies.accuracy_models import CASES
from studies.coverage_configs import classes
from studies.predict_coverage import Late, limited, quiet, reason_of

OUT = Path("docs/data/calibration.json")
WAYS = ("theory", "default")
DEVELOPMENT, OTHER, ACCURACY = "development", "other setting", "accuracy study"
ROUNDED = 1e-4
"""Relatively, what the stored measurements of four digits leave open."""
NEGLIGIBLE = 1e-9
"""Of the largest number of its column: rounding."""
Measured = Mapping[str, Mapping[str, tuple[float, float]]]
"""By name and column, mean and standard error."""


def _bits(entry: Mapping[str, Any]) -> int:
    return int(hashlib.md5(entry["model"].encode()).hexdigest(), 16)


def predicted(way: str, make: Any, batch: Any, loss: Any = None) -> Profile:
    if way == "theory":
        return by_theory(build(make), batch, loss=loss, tokens=1024)
    return sigprop.predict(make, batch, loss=loss, tokens=1024)


def judged(profile: Profile, measured: Measured, draws: int) -> Iterator[dict[str, Any]]:
    """One dictionary for each number that both have."""
    quantile = float(stdtrit(draws - 1, 0.995))
    largest: dict[str, float] = {}
    for row in measured.values():
        for column, (mean, _) in row.items():
            largest[column] = max(largest.get(column, 0.0), mean)
    seen = set()
    named = [(row.name, row) for row in profile.sites] + [(f"parameter {row.name}", row) for row in profile.parameters]
    for name, row in named:
        for column, (mean, error) in measured.get(name, {}).items():
            value, stated = getattr(row, column), row.stated_errors.get(column)
            if mean <= NEGLIGIBLE * largest[column] and not abs(value) > NEGLIGIBLE * largest[column]:
                continue
            if (key := (column, mean, error, value)) in seen or math.isnan(value):
                continue
            seen.add(key)
            if mean == 0.0:
                off, spread, room = math.inf, 0.0, 0.0
            else:
                off, spread = value / mean - 1.0, error / mean
                room = math.hypot((stated or 0.0) * abs(value / mean), quantile * spread) + ROUNDED
            yield {"name": name, "column": column, "status": row.status, "off": off, "spread": spread,
                   "stated": stated, "within": abs(off) <= room, "reason": row.reason}  # fmt: skip


def entry_of(head: dict[str, Any], way: str, profile: Profile, measured: Measured, draws: int) -> dict[str, Any]:
    found = list(judged(profile, measured, draws))
    numbers: dict[str, list[Any]] = {}
    for item in found:
        kept = [_short(item[key]) for key in ("off", "spread", "stated")]
        numbers.setdefault(item["status"], []).append([*kept, int(item["within"])])
    outside = [item for item in found if item["stated"] is not None and not item["within"]]
    outside.sort(key=lambda item: -abs(item["off"]))
    keys = ("name", "column", "off", "spread", "stated", "status", "reason")
    listed = [[_short(item[key]) for key in keys] for item in outside[:6]]
    return head | {"way": way, "draws": draws, "numbers": numbers, "outside": listed}


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.2g}") if math.isfinite(value) else 1e9
    return value


# -- the two studies


def of_class(entry: dict[str, Any], ways: list[str], seconds: int, other: bool = False) -> list[dict[str, Any]]:
    head = {"study": OTHER if other else "classes", "model": entry["model"], "kind": entry["kind"]}
    head["half"] = OTHER if other else DEVELOPMENT
    try:
        number = [item.__name__ for _, item in classes(entry["kind"])].index(entry["model"])
        make, _, batch = class_measurements.setting_of(entry["kind"], number, other)
    except Exception as error:
        return [head | {"way": way, "reason": reason_of(error)} for way in ways]
    measured = {
        row[0]: dict(zip(class_measurements.columns_of(row[0]), zip(row[1::2], row[2::2], strict=True), strict=False))
        for row in entry["rows"]
    }
    return list(_ways(head, ways, seconds, make, batch, None, measured, entry["draws"]))


def of_setting(setting: Any, profile: Profile, ways: list[str], seconds: int) -> list[dict[str, Any]]:
    case = CASES[setting.name](setting)
    head = {"study": "accuracy", "model": setting.label, "kind": setting.name, "half": ACCURACY}
    measured: dict[str, dict[str, tuple[float, float]]] = {}
    for prefix, rows in (("", profile.sites), ("parameter ", profile.parameters)):
        for row in rows:
            columns = [column for column in row.errors if column != "token_correlation"]
            measured[prefix + row.name] = {column: (getattr(row, column), row.errors[column]) for column in columns}
    make = lambda: case.make().train(setting.name == "resnet")  # noqa: E731
    return list(_ways(head, ways, seconds, make, case.batch, case.loss, measured, len(profile.meta["seeds"])))


def _ways(
    head: dict[str, Any],
    ways: list[str],
    seconds: int,
    make: Any,
    batch: Any,
    loss: Any,
    measured: Measured,
    draws: int,
) -> Iterator[dict[str, Any]]:
    warnings.simplefilter("ignore")
    for way in ways:
        start = time.perf_counter()
        try:
            with limited(seconds):
                profile = predicted(way, make, batch, loss)
            made = entry_of(head, way, profile, measured, draws)
        except (Exception, Late) as error:
            made = head | {"way": way, "reason": reason_of(error)}
        yield made | {"seconds": round(time.perf_counter() - start, 1)}


def main(
    studies: Annotated[str, typer.Option(help="classes, other, accuracy, comma-separated.")] = "classes,accuracy",
    only: Annotated[str, typer.Option(help="Names of classes or settings, comma-separated.")] = "",
    ways: Annotated[str, typer.Option(help="theory, default, or both, comma-separated.")] = "theory,default",
    seconds: Annotated[int, typer.Option(help="Limit of one prediction.")] = 120,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    gigabytes: Annotated[int, typer.Option(help="Memory for each process.")] = 16,
    out: Annotated[Path, typer.Option(help="JSON file; what is run again replaces what is in it.")] = OUT,
    resume: Annotated[bool, typer.Option(help="Leave out what is in the file.")] = False,
) -> None:
    """Predict what was measured and judge every number."""
    chosen, wanted = [name for name in only.split(",") if name], ways.split(",")
    jobs: list[tuple[Any, ...]] = []
    if "classes" in studies:
        stored = json.loads(class_measurements.OUT.read_text())["classes"]
        jobs += [(of_class, entry, wanted, seconds) for entry in sorted(stored, key=_bits) if "rows" in entry]
    if "other" in studies:
        stored = json.loads(class_measurements.OTHER.read_text())["classes"]
        jobs += [(of_class, entry, wanted, seconds, True) for entry in sorted(stored, key=_bits) if "rows" in entry]
    if "accuracy" in studies:
        profiles = accuracy_measurements.stored_profiles()
        settings = [item for item in accuracy_measurements.all_settings() if item.label in profiles]
        jobs += [(of_setting, item, profiles[item.label], wanted, seconds) for item in settings]
    found = {_key(entry): entry for entry in (json.loads(out.read_text())["entries"] if out.exists() else [])}
    known = {(key[0], key[2]) for key in found} if resume else set()
    jobs = [job for job in jobs if (not chosen or _named(job)[1] in chosen) and _named(job) not in known]
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=quiet, initargs=(gigabytes,)) as pool:
        for job in as_completed([pool.submit(*item) for item in jobs]):
            for entry in job.result():
                found[_key(entry)] = entry
                _say(entry)
            _write(out, found)


def _named(job: tuple[Any, ...]) -> tuple[str, str]:
    """The study and the model of a job."""
    if not isinstance(job[1], dict):
        return "accuracy", job[1].label
    return OTHER if job[0] is of_class and job[-1] is True else "classes", job[1]["model"]


def _key(entry: dict[str, Any]) -> tuple[str, str, str, str]:
    return entry["study"], entry["kind"], entry["model"], entry["way"]


def _say(entry: dict[str, Any]) -> None:
    numbers = [item for rows in entry.get("numbers", {}).values() for item in rows if item[2] is not None]
    within = sum(item[3] for item in numbers)
    print(entry["model"], entry["way"], f"{within} of {len(numbers)}", entry.get("reason", ""), flush=True)


def _write(out: Path, found: dict[Any, dict[str, Any]]) -> None:
    head = {"command": "python -m studies.calibration", "date": str(date.today())}
    head["torch"] = torch.__version__
    lines = ",\n".join(json.dumps(found[key], separators=(",", ":")) for key in sorted(found))
    out.write_text(json.dumps(head)[:-1] + ', "entries": [\n' + lines + "\n]}\n")


if __name__ == "__main__":
    typer.run(main)
