"""The atlas: `check` over every class of transformers that builds, with the draws that it publishes.

    python -m studies.check_atlas --workers 16      # writes docs/data/check_atlas.json; run again to go on
    python -m studies.check_atlas Bert --again      # only classes whose names begin so
    python -m studies.check_atlas --page            # writes docs/evidence/atlas.md from it

A class is built from its default config as it is, where that has at most 150 million parameters. Else it gets two
layers (or one of each kind) and at most 1,024 words, and is narrower where that has more than 40 million parameters.
The weights are drawn and looked at, and one forward and backward pass is measured. A problem counts as confirmed when
two other initializations, measured again, have it too.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch.nn.modules.batchnorm import _BatchNorm

from sigprop.checks import checks
from sigprop.checks.evaluation import Experiment
from sigprop.checks.subject import Subject
from sigprop.distributions import build
from sigprop.errors import SigpropError
from sigprop.results import Finding
from studies.coverage_check import batch_of, reasons_of
from studies.coverage_configs import KINDS, checkable, class_of, classes, default_config, places
from studies.predict_coverage import Late, limited, quiet, reason_of
from studies.stored import fill, in_processes, read, table, write

STORED, PAGE = Path("docs/data/check_atlas.json"), Path("docs/evidence/atlas.md")
AS_IT_IS, MOST_COUNTED, IMAGES = 150_000_000, 10, 4
AGAIN = (1, 2)
"""Seeds of the initializations that confirm a problem."""


def attempt(kind: str, number: int, seconds: int) -> dict[str, Any]:
    """One class: what was found, and whether problems are found again."""
    config_class, model_class = class_of(kind, number)
    row: dict[str, Any] = {
        "model": model_class.__name__,
        "kind": kind,
        "made": datetime.now().isoformat(" ", "minutes"),
    }
    start = time.perf_counter()
    try:
        with limited(seconds):
            make, row["parameters"], row["size"] = _buildable(kind, config_class, model_class)
            found = examined(make, 0)
        told = [item for item in found if item.severity != "note"]
        row["findings"] = [[item.severity, item.name, item.title] for item in told]
        row["notes"] = sorted({item.name for item in found if item.severity == "note"})
        if problems := {item.name for item in told if item.severity == "problem"}:
            row["confirmed"] = sorted(problems & _problems(make, seconds))
    except (Exception, Late) as error:
        row["reason"] = reason_of(error)
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def _buildable(kind: str, config_class: Any, model_class: Any) -> tuple[Callable[[], Any], int, str]:
    """How to build a class, how many parameters that has, and whether it is the default config or a small one."""
    decoder = kind == "causal LM"

    def make() -> Any:
        config = default_config(config_class, decoder)
        config.dtype, config.use_cache = torch.float32, False
        return model_class(config).eval()

    try:
        with torch.device("meta"):
            size = sum(parameter.numel() for parameter in make().parameters())
        if size <= AS_IT_IS:
            return make, size, "default"
    except Exception:  # what the default config does not build, the small one may
        pass
    return *checkable(config_class, model_class, decoder), "small"


def examined(make: Callable[[], Any], seed: int) -> list[Finding]:
    """All findings, by the weights and by one measurement."""
    torch.manual_seed(seed)
    model = make()
    batch = batch_of(model)
    normalized = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if normalized and "pixel_values" in batch:
        batch = _several(batch)
    for module in normalized:  # in evaluation, batch norms that have seen no batch normalize nothing
        module.train()
    subject = Subject(model, batch, skeleton=build(make))
    try:
        subject.measured = Experiment(model, batch).measured()
    except SigpropError:
        subject.batch = {key: value for key, value in batch.items() if key != "labels"}
        subject.measured = Experiment(model, subject.batch).measured()
    return [item for kind in checks().values() for item in kind(subject)]


def _several(batch: dict[str, Any]) -> dict[str, Any]:
    """Four images, so that a batch norm has something to normalize by."""
    pixels, labels = batch["pixel_values"], batch.get("labels")
    drawn = torch.randn((IMAGES, *pixels.shape[1:]), generator=torch.Generator().manual_seed(0))
    return batch | {"pixel_values": drawn} | ({} if labels is None else {"labels": labels.expand(IMAGES).clone()})


def _problems(make: Callable[[], Any], seconds: int) -> set[str]:
    """Problems that every other initialization has."""
    found: list[set[str]] = []
    for seed in AGAIN:
        with limited(seconds):
            found.append({item.name for item in examined(make, seed) if item.severity == "problem"})
    return set.intersection(*found)


def study(wanted: list[tuple[str, int]], workers: int, seconds: int, gigabytes: int, out: Path) -> None:
    """The classes asked for, in processes of their own; the file is written after each."""
    rows = {(row["kind"], row["model"]): row for row in read(out, [])}
    for row in in_processes(attempt, [(kind, number, seconds) for kind, number in wanted], workers, quiet, gigabytes):
        print(row["model"], row["seconds"], row.get("reason", row.get("findings")), flush=True)
        rows[row["kind"], row["model"]] = row
        write(out, [rows[place] for place in {**places(), **rows} if place in rows])


def tables(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """What stands between the marks of the page."""
    checked = [row for row in rows if "findings" in row]
    verdicts, sizes = Counter(map(_verdict, checked)), Counter(row["size"] for row in checked)
    problems = [row for row in checked if _verdict(row) == "problem"]
    kinds = Counter(name for row in checked for name in {item[1] for item in row["findings"]})
    answer = [
        f"- Of {len(checked)} classes of transformers, with the initialization that they publish,",
        f"  {verdicts['healthy']} are healthy, {verdicts['warning']} have warnings, {verdicts['problem']} a problem.",
        f"- Of the {len(problems)} with a problem {sum(map(_confirmed, problems))} have it again in two more",
        "  initializations.",
        f"- {len(rows) - len(checked)} classes were not built, or did not run on a synthetic batch (last table).",
        f"- {sizes['default']} are checked in their default config as it is; {sizes['small']} are too large for that",
        "  here (over 150 million parameters) and have two layers: what needs depth is not seen in those.",
    ]
    ordered = sorted(checked, key=lambda row: (_order(row), row["kind"], row["model"]))
    return {
        "answer": answer,
        "findings": table(("finding", "classes"), [(f"`{name}`", count) for name, count in kinds.most_common()]),
        "classes": table(("model", "kind", "size", "verdict", "findings"), map(_cells, ordered)),
        "not checked": [
            *_unreached(rows),
            *table(("model", "kind", "reason"), [reasons_of(row) for row in rows if "reason" in row]),
        ],
    }


def _unreached(rows: list[dict[str, Any]]) -> list[str]:
    """How many classes of each kind were not come to."""
    done = Counter(row["kind"] for row in rows)
    left = {kind: len({model.__name__ for _, model in classes(kind)}) - done[kind] for kind in KINDS}
    told = ", ".join(f"{count} for {kind}" for kind, count in left.items() if count > 0)
    return [f"Not come to: {told}.", ""] if told else []


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    told = "; ".join(f"`{name}`: {title.replace('|', '/')}" for _, name, title in row["findings"][:MOST_COUNTED])
    verdict = _verdict(row)
    if verdict == "problem":
        verdict += ", confirmed" if _confirmed(row) else ", not in every initialization"
    size = f"{row['size']}, {row['parameters'] / 1e6:.3g} M"
    return row["model"], row["kind"], size, verdict, told


def _verdict(row: dict[str, Any]) -> str:
    found = {severity for severity, _, _ in row["findings"]}
    return "problem" if "problem" in found else "warning" if found else "healthy"


def _confirmed(row: dict[str, Any]) -> bool:
    return {name for severity, name, _ in row["findings"] if severity == "problem"} <= set(row.get("confirmed", []))


def _order(row: dict[str, Any]) -> int:
    return ("problem", "warning", "healthy").index(_verdict(row))


def main(
    begins: Annotated[
        list[str] | None, typer.Argument(help="Only classes whose names begin so; all by default.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Classes that are stored already, too, after the others.")
    ] = False,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    seconds: Annotated[int, typer.Option(help="For one initialization of a class.")] = 90,
    gigabytes: Annotated[int, typer.Option(help="Memory of a process.")] = 16,
    out: Annotated[Path, typer.Option(help="JSON file, which is added to.")] = STORED,
    page: Annotated[bool, typer.Option("--page", help="Write the page from the file instead.")] = False,
) -> None:
    """Check every class of transformers."""
    if page:
        fill(PAGE, tables(read(out)))
        return
    stored = {(row["kind"], row["model"]): row for row in read(out, [])}
    named = {(kind, name): (kind, number) for (kind, name), number in places().items()}
    chosen = {key: place for key, place in named.items() if not begins or key[1].startswith(tuple(begins))}
    wanted = sorted(
        (key for key in chosen if again or key not in stored), key=lambda key: "findings" in stored.get(key, {})
    )
    study([chosen[key] for key in wanted], workers, seconds, gigabytes, out)


if __name__ == "__main__":
    typer.run(main)
