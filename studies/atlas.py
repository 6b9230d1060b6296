"""The atlas: `check` over every class of transformers that builds, with the initialization that it publishes.

    python -m studies.atlas --workers 16      # writes docs/data/check_atlas.json; goes on where it stopped
    python -m studies.atlas --page            # writes docs/evidence/atlas.md from it

A class is built from its default config as it is, where that has at most 150 million parameters. Else it gets two
layers (or one of each kind) and at most 1,024 words, and is narrower where that has more than 40 million parameters.
A problem counts as confirmed when two other initializations have it too.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import sigprop as sp
from sigprop.capture import build
from studies.classes import TOKENS, batch_of, checkable, class_of, places
from studies.stored import Late, fill, in_processes, limited, quiet, read, reason_of, table, write

STORED, PAGE = Path("docs/data/check_atlas.json"), Path("docs/evidence/atlas.md")
AS_IT_IS, MOST_TOLD, IMAGES = 150_000_000, 10, 4
AGAIN = (1, 2)
"""Seeds of the initializations that confirm a problem."""


def attempt(kind: str, number: int, seconds: int) -> dict[str, Any]:
    """One class: its problems and warnings, and which problems are found again."""
    config_class, model_class = class_of(kind, number)
    row: dict[str, Any] = {"model": model_class.__name__, "kind": kind, "date": str(date.today())}
    start = time.process_time()
    try:
        with limited(seconds):
            make, row["parameters"], row["size"] = _buildable(config_class, model_class, kind == "causal LM")
            row["findings"] = alarms(make, 0)
        if problems := _problems(row["findings"]):
            with limited(2 * seconds):
                row["confirmed"] = sorted(problems.intersection(*(_problems(alarms(make, seed)) for seed in AGAIN)))
    except (Exception, Late) as error:
        row["reason"] = reason_of(error)
    return row | {"seconds": round(time.process_time() - start, 1)}


def _buildable(config_class: Any, model_class: Any, decoder: bool) -> tuple[Callable[[], Any], int, str]:
    """How to build a class, how many parameters that has, and whether it is the default config or a small one."""

    def make() -> Any:
        config = config_class()
        if decoder and hasattr(config, "is_decoder") and not getattr(config, "is_encoder_decoder", False):
            config.is_decoder = True
        config.dtype, config.use_cache = torch.float32, False
        return model_class(config).eval()

    try:
        size = sum(parameter.numel() for parameter in build(make).parameters())
        if size <= AS_IT_IS:
            return make, size, "default"
    except Exception:  # what the default config does not build, the small one may
        pass
    small = checkable(config_class, model_class, decoder)
    return small, sum(parameter.numel() for parameter in build(small).parameters()), "small"


def alarms(make: Callable[[], Any], seed: int) -> list[list[str]]:
    """Problems and warnings of one initialization; batch norms that have seen no batch are in training mode."""
    torch.manual_seed(seed)
    model = make()
    batch = batch_of(model, TOKENS)
    normalized = [module for module in model.modules() if "BatchNorm" in type(module).__name__]
    for module in normalized:
        module.train()
    if normalized and "pixel_values" in batch:
        shape = (IMAGES, *batch["pixel_values"].shape[1:])
        batch = {"pixel_values": torch.randn(shape, generator=torch.Generator().manual_seed(0))}
    report = sp.check(model, batch, prescription=False)
    return [[item.severity, item.name, item.title] for item in report.findings if item.severity != "note"]


def _problems(found: list[list[str]]) -> set[str]:
    return {name for severity, name, _ in found if severity == "problem"}


def tables(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """What stands between the marks of the page."""
    checked = [row for row in rows if "findings" in row]
    verdicts, sizes = Counter(map(_verdict, checked)), Counter(row["size"] for row in checked)
    problems = [row for row in checked if _verdict(row) == "problem"]
    kinds = Counter(name for row in checked for name in {item[1] for item in row["findings"]})
    ordered = sorted(checked, key=lambda row: (VERDICTS.index(_verdict(row)), row["kind"], row["model"]))
    return {
        "answer": [
            f"- Of {len(checked)} classes of transformers, with the initialization that they publish, "
            f"{verdicts['silent']} have no problem and no warning, {verdicts['warning']} have warnings, "
            f"{len(problems)} have a problem.",
            f"- Of those {len(problems)}, {sum(map(_confirmed, problems))} have it again in two more initializations.",
            f"- {len(rows) - len(checked)} classes were not built, or did not run on a synthetic batch (last table).",
            f"- {sizes['default']} are checked in their default config; {sizes['small']} are too large for that here "
            "(over 150 million parameters) and have two layers: what needs depth is not seen in those.",
        ],
        "findings": table(("finding", "classes"), [(f"`{name}`", count) for name, count in kinds.most_common()]),
        "classes": table(("model", "kind", "size", "verdict", "findings"), map(_cells, ordered)),
        "not checked": table(
            ("model", "kind", "reason"),
            [(row["model"], row["kind"], _cell(row["reason"])) for row in rows if "findings" not in row],
        ),
    }


VERDICTS = ("problem", "warning", "silent")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    told = "; ".join(f"`{name}`: {_cell(title)}" for _, name, title in row["findings"][:MOST_TOLD])
    verdict = _verdict(row)
    if verdict == "problem":
        verdict += ", confirmed" if _confirmed(row) else ", not in every initialization"
    return row["model"], row["kind"], f"{row['size']}, {row['parameters'] / 1e6:.3g} M", verdict, told


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("<", "").replace(">", "")


def _verdict(row: dict[str, Any]) -> str:
    found = {severity for severity, _, _ in row["findings"]}
    return next((verdict for verdict in VERDICTS if verdict in found), "silent")


def _confirmed(row: dict[str, Any]) -> bool:
    return _problems(row["findings"]) <= set(row.get("confirmed", []))


def main(
    begins: Annotated[list[str] | None, typer.Argument(help="Only classes whose names begin so.")] = None,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    seconds: Annotated[int, typer.Option(help="For one initialization of a class.")] = 120,
    gigabytes: Annotated[int, typer.Option(help="Memory of a process.")] = 16,
    out: Annotated[Path, typer.Option(help="JSON file, which is added to.")] = STORED,
    page: Annotated[bool, typer.Option("--page", help="Write the page from the file instead.")] = False,
) -> None:
    """Check every class of transformers."""
    if page:
        fill(PAGE, tables(read(out)))
        return
    rows = {(row["kind"], row["model"]): row for row in read(out, [])}
    order = places()
    wanted = [key for key in order if key not in rows and (not begins or key[1].startswith(tuple(begins)))]
    for row in in_processes(attempt, [(key[0], order[key], seconds) for key in wanted], workers, quiet, gigabytes):
        print(row["model"], row["seconds"], row.get("reason", row.get("findings")), flush=True)
        rows[row["kind"], row["model"]] = row
        write(out, [rows[key] for key in order if key in rows])


if __name__ == "__main__":
    typer.run(main)
