"""How often `check` reports a problem or a warning in fifteen healthy models, over 20 initializations each.

    python -m studies.check_false_alarms [seeds]        # writes docs/data/check_false_alarms.json, row by row
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import date
from pathlib import Path

import torch

from sigprop.check import check
from studies.check_models import HEALTHY

STORED = Path("docs/data/check_false_alarms.json")
SEEDS = 20


def study(seeds: int = SEEDS) -> dict:
    """Counts per model; what is stored already is not run again."""
    logging.disable(logging.WARNING)
    found = json.loads(STORED.read_text()) if STORED.exists() else {"models": {}}
    found |= {"command": f"python -m studies.check_false_alarms {seeds}", "date": str(date.today())}
    for seed in range(seeds):
        for name, make in HEALTHY.items():
            row = found["models"].setdefault(name, {"checked": [], "alarms": []})
            if seed in row["checked"]:
                continue
            torch.manual_seed(seed)
            report = check(make(), prescription=False, tokens=64)
            row["checked"].append(seed)
            row["alarms"] += [[seed, item.severity, item.name, item.title] for item in report.problems + report.warnings]
            STORED.write_text(json.dumps(found, indent=1) + "\n")
    return found


if __name__ == "__main__":
    made = study(int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS)
    checks = sum(len(row["checked"]) for row in made["models"].values())
    alarms = [alarm for row in made["models"].values() for alarm in row["alarms"]]
    print(f"{checks} checks of {len(made['models'])} healthy models: {len(alarms)} false alarms")
