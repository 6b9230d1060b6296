"""Are stated errors right: `python -m studies.calibration --help`.

Every class of transformers that was measured (`studies.classes`) and every setting of the accuracy study
(`studies.accuracy_models`) is predicted, by theory alone and as `predict` does it by default, and each number is
compared with the measured one. A number is within its stated error `e` when it is off by no more than
`hypot(e, t s)`, `s` the standard error of the measurement and `t` the quantile of its 99 % interval. Numbers of one
tensor under several names count once. Classes come in the order of a hash of their names, so that a study that is cut
off is still a sample.
"""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from scipy.special import stdtrit

import sigprop
from sigprop.capture import build
from sigprop.capture import predict as by_theory
from sigprop.results import Profile
from studies import accuracy_models, classes
from studies.corpus.judging import is_rounding
from studies.engine_code import engine_code
from studies.stored import Late, in_processes, limited, quiet, read, reason_of, stamp, write

OUT = Path("docs/data/calibration.json.gz")
WAYS = ("theory", "default")
DEVELOPMENT, OTHER, ACCURACY = "development", "other setting", "accuracy study"
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
            if is_rounding(mean, value, largest[column]):
                continue
            if (key := (column, mean, error, value)) in seen or math.isnan(value):
                continue
            seen.add(key)
            if mean == 0.0:
                off, spread, room = math.inf, 0.0, 0.0
            else:
                off, spread = value / mean - 1.0, error / mean
                room = math.hypot((stated or 0.0) * abs(value / mean), quantile * spread)
            yield {"name": name, "column": column, "status": row.status, "off": off, "spread": spread,
                   "stated": stated, "within": abs(off) <= room, "reason": row.reason}  # fmt: skip


def entry_of(profile: Profile, measured: Measured, draws: int) -> dict[str, Any]:
    found = list(judged(profile, measured, draws))
    numbers: dict[str, list[Any]] = {}
    for item in found:
        kept = [_short(item[key]) for key in ("off", "spread", "stated")]
        numbers.setdefault(item["status"], []).append([*kept, int(item["within"])])
    outside = [item for item in found if item["stated"] is not None and not item["within"]]
    outside.sort(key=lambda item: -abs(item["off"]))
    keys = ("name", "column", "off", "spread", "stated", "status", "reason")
    listed = [[_short(item[key]) for key in keys] for item in outside[:6]]
    return {"draws": draws, "numbers": numbers, "outside": listed}


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.2g}") if math.isfinite(value) else 1e9
    return value


# -- the two studies


@dataclass(frozen=True)
class Job:
    """One way of predicting one model; `prepared` makes what it needs in the process that runs it."""

    study: str
    kind: str
    model: str
    way: str
    half: str
    prepared: Callable[[], tuple[Any, Any, Any, Measured, int]]
    """A function that builds the model, batch, loss, what was measured, with how many draws."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.study, self.kind, self.model, self.way


def class_jobs(stored: list[dict[str, Any]], ways: list[str], other: bool = False) -> Iterator[Job]:
    study, half = (OTHER, OTHER) if other else ("classes", DEVELOPMENT)
    for entry in sorted(stored, key=_bits):
        for way in ways if "rows" in entry else ():
            yield Job(study, entry["kind"], entry["model"], way, half, partial(_class, entry, other))


def _class(entry: dict[str, Any], other: bool) -> tuple[Any, Any, Any, Measured, int]:
    number = classes.places()[entry["kind"], entry["model"]]
    make, batch = classes.setting_of(entry["kind"], number, other)
    return make, batch, None, classes.table_of(entry), entry["draws"]


def setting_jobs(profiles: Mapping[str, Profile], ways: list[str]) -> Iterator[Job]:
    for setting in accuracy_models.all_settings():
        for way in ways if setting.label in profiles else ():
            prepared = partial(_setting, setting, profiles[setting.label])
            yield Job("accuracy", setting.name, setting.label, way, ACCURACY, prepared)


def _setting(setting: Any, profile: Profile) -> tuple[Any, Any, Any, Measured, int]:
    case = accuracy_models.CASES[setting.name](setting)
    measured: dict[str, dict[str, tuple[float, float]]] = {}
    for prefix, rows in (("", profile.sites), ("parameter ", profile.parameters)):
        for row in rows:
            columns = [column for column in row.errors if column != "token_correlation"]
            measured[prefix + row.name] = {column: (getattr(row, column), row.errors[column]) for column in columns}
    make = lambda: case.make().train(setting.name == "resnet")  # noqa: E731
    return make, case.batch, case.loss, measured, len(profile.meta["seeds"])


def run(job: Job, seconds: int) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    head = {"study": job.study, "model": job.model, "kind": job.kind, "half": job.half, "way": job.way}
    start = time.perf_counter()
    try:
        with limited(seconds):
            make, batch, loss, measured, draws = job.prepared()
            profile = predicted(job.way, make, batch, loss)
        found = entry_of(profile, measured, draws)
    except (Exception, Late) as error:
        found = {"reason": reason_of(error)}
    return head | found | {"seconds": round(time.perf_counter() - start, 1), "code": engine_code()}


def main(
    studies: Annotated[str, typer.Option(help="classes, other, accuracy, comma-separated.")] = "classes,accuracy",
    only: Annotated[str, typer.Option(help="Names of classes or settings, comma-separated.")] = "",
    ways: Annotated[str, typer.Option(help="theory, default, or both, comma-separated.")] = "theory,default",
    seconds: Annotated[int, typer.Option(help="Limit of one prediction.")] = 120,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    gigabytes: Annotated[int, typer.Option(help="Memory for each process.")] = 16,
    out: Annotated[Path, typer.Option(help="JSON file; what is run again replaces what is in it.")] = OUT,
    resume: Annotated[bool, typer.Option(help="What the file lacks first; nothing that this code made.")] = False,
) -> None:
    """Predict what was measured and judge every number."""
    chosen, wanted = [name for name in only.split(",") if name], ways.split(",")
    jobs: list[Job] = []
    if "classes" in studies:
        jobs += class_jobs(read(classes.MEASURED)["classes"], wanted)
    if "other" in studies:
        jobs += class_jobs(read(classes.OTHER)["classes"], wanted, other=True)
    if "accuracy" in studies:
        jobs += setting_jobs(accuracy_models.stored_profiles(), wanted)
    before: dict[str, Any] = read(out, {"entries": []})
    found = {_key(entry): entry for entry in before["entries"]}
    jobs = [job for job in jobs if not chosen or job.model in chosen]
    if resume:
        made = {key: entry.get("code") for key, entry in found.items() if "numbers" in entry}
        jobs = [job for job in jobs if made.get(job.key) != engine_code()]
        jobs.sort(key=lambda job: job.key in made)
    head = stamp("calibration", codes=before.get("codes", {}), torch=torch.__version__)
    for entry in in_processes(run, [(job, seconds) for job in jobs], workers, quiet, gigabytes):
        found[_key(entry)] = entry
        _say(entry)
        write(out, head | {"entries": [found[key] for key in sorted(found)]})


def _key(entry: dict[str, Any]) -> tuple[str, str, str, str]:
    return entry["study"], entry["kind"], entry["model"], entry["way"]


def _say(entry: dict[str, Any]) -> None:
    numbers = [item for rows in entry.get("numbers", {}).values() for item in rows if item[2] is not None]
    within = sum(item[3] for item in numbers)
    print(entry["model"], entry["way"], f"{within} of {len(numbers)}", entry.get("reason", ""), flush=True)


if __name__ == "__main__":
    typer.run(main)
