"""How often `check` reports a problem or a warning in fifteen healthy models, over 20 initializations each.

    python -m studies.check_false_alarms [seeds]        # writes docs/data/check_false_alarms.json, row by row

Findings go by the weights and by the measurement where there are weights, so the prediction is left out here: it only
adds evidence, and the note that theory and measurement disagree.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import torch

from sigprop.checks import checks
from sigprop.checks.evaluation import Experiment
from sigprop.checks.subject import Subject
from sigprop.inputs import made_up_batch
from sigprop.results import Finding
from studies.check_models import HEALTHY, TOKENS
from studies.stored import read, stamp, write

STORED = Path("docs/data/check_false_alarms.json")
SEEDS = 20


def study(seeds: int = SEEDS) -> dict:
    """Counts per model; what is stored already is not run again."""
    logging.disable(logging.WARNING)
    found = read(STORED, {"models": {}}) | stamp(f"check_false_alarms {seeds}")
    for seed in range(seeds):
        for name, make in HEALTHY.items():
            row = found["models"].setdefault(name, {"checked": [], "alarms": []})
            if seed in row["checked"]:
                continue
            torch.manual_seed(seed)
            row["checked"].append(seed)
            row["alarms"] += [[seed, item.severity, item.name, item.title] for item in alarms(make(), seed)]
            write(STORED, found)
    return found


def alarms(model: torch.nn.Module, seed: int) -> list[Finding]:
    """Problems and warnings of one model on one batch."""
    batch = made_up_batch(model, TOKENS, seed)
    subject = Subject(model, batch)
    subject.evaluation = Experiment(model, batch)
    subject.measured = subject.evaluation.measured()
    return [item for kind in checks().values() for item in kind(subject) if item.severity != "note"]


if __name__ == "__main__":
    made = study(int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS)
    count = sum(len(row["checked"]) for row in made["models"].values())
    false = [alarm for row in made["models"].values() for alarm in row["alarms"]]
    print(f"{count} checks of {len(made['models'])} healthy models: {len(false)} false alarms")
