"""A plan saved beside the checkpoint of the model it was applied to, and found again on resume."""

from __future__ import annotations

from pathlib import Path

from sigprop.plans import Plan

FILE = "sigprop_plan.json"


def save_plan(plan: Plan, folder: str | Path) -> Path:
    """Write the plan into a checkpoint's folder."""
    path = Path(folder) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    plan.to_json(path)
    return path


def find_plan(checkpoint: str | Path) -> Plan | None:
    """The plan of a checkpoint (a folder or a file in it), or of the run that it is part of; else None."""
    place = Path(checkpoint)
    for folder in (place, *list(place.resolve().parents)[:2]):
        if (folder / FILE).is_file():
            return Plan.from_json(folder / FILE)
    return None
