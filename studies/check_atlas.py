"""The atlas: `check` over every class of transformers that builds, with the draws that it publishes.

    python -m studies.check_atlas           # writes docs/data/check_atlas.json, class by class; run again to go on
    python -m studies.check_atlas --page    # writes docs/evidence/atlas.md from it

Each class is built from its default config with two layers (or one of each kind), at most 1,024 words, and narrower
where it would have more than 40 million parameters; then its weights and one measurement of it are examined.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from sigprop.check import checks
from sigprop.check.evaluation import Evaluation
from sigprop.check.subject import Subject
from sigprop.errors import SigpropError
from sigprop.results import Finding
from studies.coverage_check import batch_of
from studies.coverage_configs import KINDS, checkable, classes
from studies.predict_coverage import Late, limited, quiet, reason_of

STORED, PAGE = Path("docs/data/check_atlas.json"), Path("docs/evidence/atlas.md")
SECONDS, GIGABYTES = 90, 16


def attempt(kind: str, config_class: Any, model_class: Any) -> dict[str, Any]:
    """One class: its verdict and what was found."""
    row: dict[str, Any] = {"model": model_class.__name__, "kind": kind}
    start = time.perf_counter()
    try:
        with limited(SECONDS):
            make, row["parameters"] = checkable(
                model_class.config_class or config_class, model_class, kind == "causal LM"
            )
            torch.manual_seed(0)
            found = examined(make())
        told = [item for item in found if item.severity != "note"]
        row["findings"] = [[item.severity, item.name, item.title] for item in told]
        row["notes"] = sorted({item.name for item in found if item.severity == "note"})
    except (Exception, Late) as error:
        row["reason"] = reason_of(error)
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def examined(model: Any) -> list[Finding]:
    """All findings, by the weights and by one measurement."""
    batch = batch_of(model)
    subject = Subject(model, batch)
    try:
        subject.measured = Evaluation(model, batch).measured()
    except SigpropError:
        subject.batch = {key: value for key, value in batch.items() if key != "labels"}
        subject.measured = Evaluation(model, subject.batch).measured()
    return [item for kind in checks().values() for item in kind(subject)]


def study() -> None:
    quiet(GIGABYTES)
    rows = json.loads(STORED.read_text()) if STORED.exists() else []
    done = {(row["kind"], row["model"]) for row in rows}
    for kind in KINDS:
        for config_class, model_class in classes(kind):
            if (kind, model_class.__name__) not in done:
                rows.append(attempt(kind, config_class, model_class))
                STORED.write_text(json.dumps(rows, indent=1) + "\n")


def markdown(rows: list[dict[str, Any]]) -> str:
    checked = [row for row in rows if "findings" in row]
    healthy = [row for row in checked if not row["findings"]]
    severities = Counter(_verdict(row) for row in checked)
    lines = [
        "# The atlas",
        "",
        f"`check` over {len(checked)} classes of transformers with the draws that they publish: {len(healthy)} are",
        f"healthy, {severities['warning']} have warnings and {severities['problem']} have a problem. Made by",
        "`python -m studies.check_atlas` from default configs of two layers (or one of each kind), few words,",
        "and narrower where they would have more than 40 million parameters; so nothing that needs depth is seen here.",
        "Findings are from the weights or measured on them; labels are drawn and have nothing to do with the input.",
        f"{len(rows) - len(checked)} classes were not built, or did not run on a made-up batch.",
        "",
        "## With findings",
        "",
        "| model | kind | verdict | finding | what |",
        "|---|---|---|---|---|",
    ]
    for row in checked:
        for severity, name, title in row["findings"]:
            lines.append(f"| {row['model']} | {row['kind']} | {severity} | `{name}` | {title.replace('|', '/')} |")
    lines += ["", "## Healthy", "", ", ".join(sorted({row["model"] for row in healthy})) + "."]
    lines += ["", "## Not checked", "", "| model | kind | reason |", "|---|---|---|"]
    lines += [
        f"| {row['model']} | {row['kind']} | {row['reason'].replace('|', '/')} |" for row in rows if "reason" in row
    ]
    return "\n".join(lines) + "\n"


def _verdict(row: dict[str, Any]) -> str:
    found = {severity for severity, _, _ in row["findings"]}
    return "problem" if "problem" in found else "warning" if found else "healthy"


if __name__ == "__main__":
    if "--page" in sys.argv:
        PAGE.write_text(markdown(json.loads(STORED.read_text())))
    else:
        study()
