"""Models that are too large to be run: the same blocks at fewer layers and a smaller width are verified instead.

Theory and the real small model are compared row by row. What is disputed there is not to be trusted at full size: rows
of the same place, whatever the number of their layer, become `assumed` and show both small numbers. What agrees says so
in its reason and keeps theory's status, since only the small model was run.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from torch import nn

from sigprop.capture import predict as predict_by_theory
from sigprop.distributions import build
from sigprop.inputs import made_up_batch
from sigprop.inputs.smaller import smaller
from sigprop.losses import LossChoice
from sigprop.results import Profile
from sigprop.verification import Simulation, verified

TOKENS = 32
NUMBER = re.compile(r"\.\d+(?=\.|$)")
WORSE = {"disputed": 2, "simulated": 1, "verified": 0}


def verified_at_reduced_size(found: Profile, model: nn.Module, loss: LossChoice, seed: int, most: int) -> Profile:
    """The profile of a large model with what a small one of the same code says of its rows."""
    made = smaller(model)
    small = build(made.build)
    batch = made_up_batch(small, TOKENS)
    judged = verified(predict_by_theory(small, batch, loss=loss, seed=seed), Simulation(small, batch, loss, seed), most)
    note = judged.meta["verification"]
    for rows, judgements in ((found.sites, judged.sites), (found.parameters, judged.parameters)):
        _carry(rows, _by_place(judgements), made.what)
    found.meta["verification"] = {"reduced size": made.what, "batch": f"random, {TOKENS} tokens", **_mapping(note)}
    return found


def _mapping(note: Any) -> dict[str, Any]:
    return note if isinstance(note, dict) else {"note": note}


def _by_place(rows: list[Any]) -> dict[str, list[Any]]:
    found = defaultdict(list)
    for row in rows:
        found[NUMBER.sub(".*", row.name)].append(row)
    return found


def _carry(rows: list[Any], judgements: dict[str, list[Any]], what: str) -> None:
    for row in rows:
        judged = judgements.get(NUMBER.sub(".*", row.name), [])
        if not judged:
            continue
        worst = max(judged, key=lambda item: WORSE.get(item.status, -1))
        if worst.status == "disputed":
            row.status, row.reason = "assumed", f"disputed at reduced size ({what}): {worst.name}: {worst.reason}"
            row.stated_errors.clear()
        elif all(item.status == "verified" for item in judged):
            row.reason = "; ".join(filter(None, (row.reason, "verified at reduced size")))
