"""What a reproduction is: a claim of a paper, our run of it, and a verdict in words that follows from stored numbers.

A study's file holds one `Reproduction`. `run` trains or measures and returns plain data; `judge` turns that data into a
table beside the paper's figures and a verdict, so that verdicts can be drawn again from what is stored.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch

from sigprop.errors import InputError, require
from sigprop.models import load_text, sample_text
from sigprop.research.lab.checkpoint import write_file
from sigprop.results.files import written

VERDICTS = ("reproduced", "in order but not in size", "not reproduced", "too small to tell")
SCALES = ("small", "full")
DOCS = Path(__file__).parents[1] / "docs"
STORE = DOCS / "data" / "reproductions"


@dataclass(frozen=True)
class Setting:
    """Where a study runs and how large: `small` is minutes on two CPU cores, `full` at most 25 minutes on one H200.

    `parts`: a folder for what is finished of a study that may be killed.
    """

    scale: str = "small"
    device: str = "cpu"
    data: Path | None = None
    parts: Path | None = None

    def __post_init__(self) -> None:
        require(self.scale in SCALES, "scale", self.scale, " or ".join(SCALES))

    @property
    def is_full(self) -> bool:
        return self.scale == "full"

    def folder(self, name: str) -> Path:
        """A folder of data that the user brings."""
        if self.data is None or not (self.data / name).is_dir():
            raise InputError(f"this study needs data: give --data FOLDER with a folder {name!r} in it")
        return self.data / name

    def text(self) -> str:
        """English text: `text/web-docs-train.txt.gz` of the user's data, or the sample that ships with sigprop."""
        return sample_text() if self.data is None else load_text(self.folder("text") / "web-docs-train.txt.gz")

    def part(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What `work` returns, kept in the folder `parts`: a study that was killed goes on with its next part."""
        path = None if self.parts is None else self.parts / f"{name}.json"
        if path is not None and path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
        found = json.loads(json.dumps(work()))
        if path is not None:
            write_file(path, json.dumps(found) + "\n")
        return found

    @property
    def text_name(self) -> str:
        return "shipped sample" if self.data is None else "web-docs-train"


@dataclass(frozen=True)
class Row:
    """One figure of the paper beside ours, both as text with units and spread."""

    what: str
    paper: str
    ours: str


@dataclass(frozen=True)
class Judgement:
    """A verdict of `VERDICTS`, the reason in a sentence or two, and the figures that it rests on."""

    verdict: str
    why: str
    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        require(self.verdict in VERDICTS, "verdict", self.verdict, ", ".join(VERDICTS))


def verdict(size: bool, order: bool, decided: bool = True) -> str:
    """What a rule says: whether the claim holds in size, or in order alone, and whether this run could tell."""
    if not decided:
        return "too small to tell"
    return "reproduced" if size else "in order but not in size" if order else "not reproduced"


ON_BYTES = (
    "Decoders on bytes of English text, of reduced size; the paper trains BERT on word pieces for 41 tokens a "
    "parameter, with a warm-up of 1,000 steps and beta2 = 0.999."
)
MATRIX_XAVIER = (
    "Xavier's variance is 2/(d + d) for queries, keys and values; the paper's is per head, 2/(d + d_head), which gives "
    "scores about twice as wide."
)


@dataclass(frozen=True)
class Reproduction:
    """A claim, how it is run, and the rule that judges it.

    `deviation`: where the protocol differs from the paper's beyond what `claim` and `place` say.

    `budget`: the least that a run needs to decide, by the name under which the run stores it; of lists the length
    counts. A run below it is too small to tell, whatever its numbers say.

    `minutes`: about how long the small run takes on two CPU cores and the full one on an H200; estimates.

    `earlier`: what a full run left in docs/data before the records existed: one file, which `judge` reads as it is, or
    several, which it reads by name.
    """

    id: str
    paper: str
    place: str
    claim: str
    run: Callable[[Setting], dict[str, Any]]
    judge: Callable[[dict[str, Any]], Judgement]
    minutes: tuple[float, float]
    earlier: str | tuple[str, ...] | None = None
    deviation: str = ""
    budget: tuple[tuple[str, float], ...] = ()

    @property
    def rule(self) -> str:
        """A digest of the rule: a record that carries it was judged by a rule that stood before its data."""
        told = inspect.getsource(self.judge) + repr((self.claim, self.budget))
        return hashlib.sha256(told.encode()).hexdigest()[:12]

    def judged(self, data: dict[str, Any]) -> Judgement:
        """The judge's verdict, or that the run was below its budget."""
        found = self.judge(data)
        short = [f"{have:g} of {least:g} {name}" for name, have, least in self.spent(data) if have < least]
        if short and found.verdict != "too small to tell":
            why = f"Too small to tell ({', '.join(short)}). {found.why}"
            return Judgement(verdict(False, False, decided=False), why, found.rows)
        return found

    def spent(self, data: dict[str, Any]) -> list[tuple[str, float, float]]:
        """What a run used of everything the budget names: name, used, needed."""
        used = [(name, data.get(name, 0.0), least) for name, least in self.budget]
        return [(name, float(len(have) if isinstance(have, list) else have), least) for name, have, least in used]

    def command(self, setting: Setting) -> str:
        data = "" if setting.data is None else " --data DATA"
        return f"sigprop research reproduce {self.id} --scale {setting.scale} --device {setting.device}{data}"


def reproduce(item: Reproduction, setting: Setting, store: Path = STORE) -> dict[str, Any]:
    """Run a study and store its record."""
    started, rule = time.perf_counter(), item.rule
    data = json.loads(json.dumps(item.run(setting)))
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


def adopt(item: Reproduction, store: Path = STORE) -> dict[str, Any]:
    """A record of the full run that an item left behind earlier; what was not stored then is said to be unknown."""
    assert item.earlier is not None
    names = list(item.earlier) if isinstance(item.earlier, tuple) else item.earlier
    first = _read(names if isinstance(names, str) else names[0])
    record = {
        "id": item.id,
        "scale": "full",
        "command": first["command"],
        "date": first.get("date", "before the records"),
        "hardware": first.get("device", "not stored"),
        "torch": "not stored",
        "seconds": None,
        "data": names,
    }
    return keep(item, record, store)


def captured(work: Callable[[Path], Any], file: str) -> dict[str, Any]:
    """What a study's command writes to `file`, run in a folder that is removed again."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "data").mkdir()
        work(Path(folder))
        return json.loads((Path(folder) / file).read_text(encoding="utf-8"))


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


def mean_and_spread(values: list[float]) -> tuple[float, float]:
    """Mean and standard deviation over seeds."""
    tensor = torch.tensor(values, dtype=torch.float64)
    return tensor.mean().item(), tensor.std().item() if len(values) > 1 else 0.0


def told(values: list[float], digits: int = 3) -> str:
    """`mean ± standard deviation (n seeds)`; how many of them failed."""
    fine = [value for value in values if value < float("inf")]
    if not fine:
        return f"all {len(values)} seeds failed"
    if len(values) == 1:
        return f"{fine[0]:.{digits}f} (1 seed)"
    mean, spread = mean_and_spread(fine)
    failed = f", {len(values) - len(fine)} failed" if len(fine) < len(values) else ""
    return f"{mean:.{digits}f} ± {spread:.{digits}f} ({len(values)} seeds{failed})"
