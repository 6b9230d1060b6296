"""What a reproduction is: a claim of a paper, a protocol, a rule, and a verdict that follows from stored numbers.

`run` trains or measures at the settings of a scale and returns plain data. `figures` reduces that data to numbers, to a
table beside the paper's, and to a sentence. The rule is a condition over those numbers, evaluated as it is printed on
the page, so that a verdict can be taken again from what is stored.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import math
import platform
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch

from sigprop.errors import InputError, require
from sigprop.results.files import write_whole, written

VERDICTS = ("reproduced", "in order but not in size", "not reproduced", "too small to tell")
SCALES = ("small", "full")
DOCS = Path(__file__).parents[1] / "docs"
STORE = DOCS / "data" / "reproductions"
UNSEEN = 7000
"""The first seed of runs whose rule was written before them: no earlier run came to it."""


@dataclass(frozen=True)
class Setting:
    """Where a study runs and how large: `small` is minutes on two CPU cores, `full` is one large GPU.

    `parts`: a folder for what is finished of a study that may be killed.
    """

    scale: str = "small"
    device: str = "cpu"
    data: Path | None = None
    parts: Path | None = None

    def __post_init__(self) -> None:
        require(self.scale in SCALES, "scale", self.scale, " or ".join(SCALES))

    def folder(self, name: str) -> Path:
        """A folder of data that the user brings."""
        if self.data is None or not (self.data / name).is_dir():
            raise InputError(f"this study needs data: give --data FOLDER with a folder {name!r} in it")
        return self.data / name

    def part(self, name: str, work: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
        """What `work` returns, kept in the folder `parts`: a study that was killed goes on with its next part."""
        path = None if self.parts is None else self.parts / f"{name}.json"
        if path is not None and path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
        found = json.loads(json.dumps(work(*given)))
        if path is not None:
            write_whole(path, json.dumps(found) + "\n")
        short = {key: value for key, value in found.items() if isinstance(value, (int, float, str))}
        print(name, short, file=sys.stderr, flush=True)
        return found


@dataclass(frozen=True)
class Row:
    """One figure of the paper beside ours, both as text with units and spread."""

    what: str
    paper: str
    ours: str


@dataclass(frozen=True)
class Found:
    """What a run's data come to: a sentence or two, the table, and the numbers that the rule is about."""

    why: str
    rows: Sequence[Row]
    numbers: Mapping[str, float]


@dataclass(frozen=True)
class Judgement:
    """A verdict of `VERDICTS`, the reason, and the figures that it rests on."""

    verdict: str
    why: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of a paper, its protocol, and the rule that judges it.

    `reproduced`, `in_order`, `decided`: conditions over the numbers of a run, as Python writes them. Where `decided`
    does not hold the run is too small to tell.
    `full`: the settings of a full run.
    `deviation`: where the protocol differs from the paper's beyond what `claim` and `place` say.
    `budget`: the least that a run needs to decide, by the name under which the run stores it; of lists the length
    counts.
    `minutes`: about how long the small run takes on two CPU cores and the full one on an H200; estimates.
    `commit`: the last one with the study, where that is history.
    """

    id: str
    place: str
    claim: str
    reproduced: str
    in_order: str
    decided: str = "True"
    full: Mapping[str, Any] = field(default_factory=dict)
    minutes: tuple[float, float] = (1, 1)
    deviation: str = ""
    budget: Mapping[str, float] = field(default_factory=dict)
    commit: str = ""

    @property
    def paper(self) -> str:
        return self.id.partition("-")[0]

    def spent(self, data: dict[str, Any]) -> list[tuple[str, float, float]]:
        """What a run used of everything the budget names: name, used, needed."""
        used = [(name, data.get(name, 0.0), least) for name, least in self.budget.items()]
        return [(name, float(len(have) if isinstance(have, list) else have), least) for name, have, least in used]

    def command(self, setting: Setting) -> str:
        data = "" if setting.data is None else " --data DATA"
        return f"sigprop research reproduce {self.id} --scale {setting.scale} --device {setting.device}{data}"


@dataclass(frozen=True, kw_only=True)
class Reproduction(Claim):
    """A claim with its study: `run` gets the settings `small` or `full`, `figures` reduces what it returns."""

    run: Callable[..., dict[str, Any]]
    figures: Callable[[dict[str, Any]], Found]
    small: Mapping[str, Any] = field(default_factory=dict)
    draw: Callable[[dict[str, Any], Path], None] | None = None

    def rule(self, scale: str) -> str:
        """A digest of claim, protocol and rule: a record that carries it was made after all of them stood."""
        told = [self.claim, self.reproduced, self.in_order, self.decided, sorted(self.budget.items())]
        told += [sorted(getattr(self, scale).items()), _code(self.figures)]
        return hashlib.sha256(repr(told).encode()).hexdigest()[:12]

    def judged(self, data: dict[str, Any]) -> Judgement:
        """The verdict of the rule, or that the run was too small for one."""
        found = self.figures(data)
        missing = [f"{have:g} of {least:g} {name}" for name, have, least in self.spent(data) if have < least]
        if not self.holds(self.decided, found):
            missing.append(f"decided only where {told_rule(self.decided)}")
        if missing:
            why = f"Too small to tell ({', '.join(missing)}). {found.why}"
            return Judgement(VERDICTS[3], why, tuple(found.rows))
        place = 0 if self.holds(self.reproduced, found) else 1 if self.holds(self.in_order, found) else 2
        return Judgement(VERDICTS[place], found.why, tuple(found.rows))

    def holds(self, condition: str, found: Found) -> bool:
        known = {"abs": abs, "min": min, "max": max, **found.numbers}
        return bool(eval(condition, {"__builtins__": {}}, known))


def told_rule(condition: str) -> str:
    """A condition in words: the names of its numbers without underscores."""
    return condition.replace("_", " ")


def _code(function: Any) -> str:
    """What a function does: its syntax without comments and layout, and what it was given beforehand."""
    if isinstance(function, functools.partial):
        return _code(function.func) + repr((function.args, sorted(function.keywords.items())))
    return ast.dump(ast.parse(textwrap.dedent(inspect.getsource(function))))


def reproduce(item: Reproduction, setting: Setting, store: Path = STORE) -> dict[str, Any]:
    """Run a study and store its record."""
    started, rule = time.perf_counter(), item.rule(setting.scale)
    data = json.loads(json.dumps(item.run(setting, **getattr(item, setting.scale))))
    record = {
        "id": item.id,
        "scale": setting.scale,
        "command": item.command(setting),
        "date": str(date.today()),
        "hardware": hardware(setting.device),
        "torch": torch.__version__,
        "rule": rule,
        "seconds": round(time.perf_counter() - started, 1),
        "data": data,
    }
    record = keep(item, record, store)
    if setting.parts is not None:
        shutil.rmtree(setting.parts, ignore_errors=True)
    return record


def keep(item: Reproduction, record: dict[str, Any], store: Path = STORE) -> dict[str, Any]:
    """The record with its judgement, written to the store."""
    record = {**record, "judgement": asdict(item.judged(data_of(record)))}
    store.mkdir(parents=True, exist_ok=True)
    written(record, record_file(item.id, record["scale"], store))
    return record


def record_file(name: str, scale: str, store: Path = STORE) -> Path:
    return store / (f"{name}.json" if scale == "full" else f"{name}.{scale}.json")


def records(store: Path = STORE) -> dict[tuple[str, str], dict[str, Any]]:
    """Everything stored, by id and scale."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(store.glob("*.json"))]
    return {(record["id"], record["scale"]): record for record in found}


def data_of(record: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a record: its own, or those of the files in docs/data that it names."""
    data = record["data"]
    if isinstance(data, str):
        return _read(data)
    return {name: _read(name) for name in data} if isinstance(data, list) else data


def _read(name: str) -> dict[str, Any]:
    return json.loads((DOCS / "data" / name).read_text(encoding="utf-8"))


def hardware(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name()
    return f"CPU, {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}, {platform.machine()}"


# -- numbers and their text


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation over seeds."""
    tensor = torch.tensor(list(values), dtype=torch.float64)
    return tensor.mean().item(), tensor.std().item() if len(values) > 1 else 0.0


def rounded(values: Sequence[float], digits: int = 5) -> list[float]:
    """Numbers with so many significant digits."""
    return [float(f"{value:.{digits}g}") for value in values]


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of the least-squares line."""
    one, two = (torch.tensor(list(values), dtype=torch.float64) for values in (x, y))
    one = one - one.mean()
    return float((one * (two - two.mean())).sum() / one.square().sum())


def power(x: Sequence[float], y: Sequence[float]) -> float:
    """Of the power law that fits best in logarithms."""
    return slope(*([math.log(value) for value in values] for values in (x, y)))
