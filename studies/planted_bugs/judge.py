"""Whether `check` finds the planted bugs, names their cause and prints a fix that works.

    python -m studies.planted_bugs.judge bugs          # does each bug hurt, and does its right fix help? (training)
    python -m studies.planted_bugs.judge open          # the odd half
    python -m studies.planted_bugs.judge held_out      # the even half: once
    python -m studies.planted_bugs.judge fresh         # the second held-out set: once
    python -m studies.planted_bugs.judge third         # the third held-out set: once
    python -m studies.planted_bugs.judge fourth        # the fourth held-out set: once
    python -m studies.planted_bugs.judge fifth         # the fifth held-out set: once
    python -m studies.planted_bugs.judge sixth         # the sixth held-out set: once
    python -m studies.planted_bugs.judge twins         # what is said of the correct models, e.g. twins 169 170

*Found*: a problem or warning holds the name it must hold. *Cause*: that finding says the cause. *Fix*: one of those
says the fix. *Works*: after the printed code is run on the buggy model, the loss that the bug makes worse (the last one
of a short training; the first one where one memorized batch hides it) is within a quarter of the way from the correct
twin's to the buggy one's. Words are judged by regular expressions and read besides.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import math
import re
import time
import warnings
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import sigprop as sp
from sigprop.losses import objective
from studies.planted_bugs import BUGS, FIFTH_SET, FIRST_SET, FOURTH_SET, SECOND_SET, THIRD_SET, Bug
from studies.planted_bugs.case import Setting

STORED = Path("docs/data/planted_bugs.json")
STEPS, RATE, REST = 40, 1e-3, 0.25
HALVES = {
    "open": lambda number: number <= FIRST_SET and number % 2 == 1,
    "held_out": lambda number: number <= FIRST_SET and number % 2 == 0,
    "fresh": lambda number: FIRST_SET < number <= SECOND_SET,
    "third": lambda number: SECOND_SET < number <= THIRD_SET,
    "fourth": lambda number: THIRD_SET < number <= FOURTH_SET,
    "fifth": lambda number: FOURTH_SET < number <= FIFTH_SET,
    "sixth": lambda number: number > FIFTH_SET,
}


class Ends(NamedTuple):
    """The first loss and the mean of the last five; infinite where not finite or nothing can be trained."""

    first: float
    last: float


def trained(setting: Setting, steps: int = STEPS) -> Ends:
    """Adam on one batch."""
    model, batch = setting.model, setting.batch
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    losses: list[float] = []
    if not weights:
        return Ends(math.inf, math.inf)
    optimizer = torch.optim.Adam(weights, lr=RATE)
    torch.manual_seed(2)
    for _ in range(steps):
        output = model(**batch) if isinstance(batch, dict) else model(batch)
        loss = objective(output, batch, setting.loss).tensor
        losses.append(loss.item())
        if not math.isfinite(losses[-1]) or not loss.requires_grad:
            return Ends(losses[0] if math.isfinite(losses[0]) else math.inf, math.inf)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
    return Ends(losses[0], sum(losses[-5:]) / 5)


def measured(bug: Bug) -> dict[str, Ends]:
    """Correct, with the bug, with the right fix."""
    return {
        "twin": trained(bug.setting(False)),
        "buggy": trained(bug.setting(True)),
        "mended": trained(bug.setting(True, mended=True)),
    }


def works(ends: dict[str, Ends], fixed: Ends) -> bool:
    """Whether the loss that the bug makes worse is mended."""
    twin, buggy = ends["twin"], ends["buggy"]
    place = 1 if buggy.last > twin.last + 0.02 * abs(twin.last) else 0
    worst = min(buggy[place], 10 * abs(twin[place]) + 10)
    return math.isfinite(fixed.last) and fixed[place] <= twin[place] + REST * abs(worst - twin[place])


def words(finding: Any) -> str:
    """All that a finding says, its fix aside."""
    evidence = " ".join(map(str, finding.evidence))
    return " ".join([finding.name, finding.title, finding.cause, evidence, *finding.parameters, *finding.sites])


def advice(finding: Any) -> str:
    given = finding.prescription
    return "" if given is None else f"{given.text} {code_of(finding)}"


def code_of(finding: Any) -> str:
    return getattr(finding.prescription, "code", "") or ""


def holds(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE) is not None


def told(setting: Setting) -> tuple[list[Any], str]:
    """Problems and warnings of one check, and what stopped it."""
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            report = sp.check(setting.model, setting.batch, loss=setting.loss)
    except Exception as error:
        return [], f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    return [item for item in report.findings if item.severity != "note"], ""


def fixed(bug: Bug, findings: list[Any]) -> tuple[Ends, str]:
    """Training with the printed code of the first right finding that has one, and that code."""
    for finding in findings:
        code = code_of(finding)
        if not code:
            continue
        setting = bug.setting(True)
        names = {"model": setting.model, "torch": torch, "nn": nn, "init": nn.init, "math": math, "sp": sp}
        try:
            with torch.no_grad():
                exec(code, names)
        except Exception as error:
            return Ends(math.nan, math.nan), f"{code} -> {type(error).__name__}: {error}"
        return trained(setting), code
    return Ends(math.nan, math.nan), ""


def judged(number: int, bug: Bug) -> dict[str, Any]:
    """What one check says of one bug."""
    started = time.process_time()
    findings, stopped = told(bug.setting(True))
    seconds = time.process_time() - started
    refused = holds(bug.at, stopped) and holds(bug.cause, stopped)
    places = [item for item in findings if holds(bug.at, words(item))]
    causes = [item for item in places if holds(bug.cause, words(item))]
    fixes = [item for item in causes if holds(bug.fix, advice(item))]
    after, code = fixed(bug, causes)
    ends = measured(bug) if code else {}
    return {
        "number": number, "title": bug.title, "kind": bug.kind, "found": bool(places) or refused,
        "cause": bool(causes) or refused, "fix": bool(fixes), "code": code,
        "works": works(ends, after) if code else None,
        "losses": {name: [*map(figure, item)] for name, item in (ends | {"fixed": after}).items()} if code else {},
        "findings": [f"{item.severity} {item.name}: {item.title}" for item in findings], "stopped": stopped,
        "seconds": round(seconds, 1),
    }  # fmt: skip


def figure(value: float) -> float | None:
    return float(f"{value:.3g}") if math.isfinite(value) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("bugs", "twins", *HALVES), help="what is asked, or the set that is judged")
    parser.add_argument("numbers", nargs="*", help="of single bugs: nothing is stored")
    given = parser.parse_args()
    what, numbers = given.what, given.numbers
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    chosen = [(n, bug) for n, bug in enumerate(BUGS, 1) if not numbers or str(n) in numbers]
    if what == "bugs":
        for number, bug in chosen:
            ends = measured(bug)
            print(number, bug.title, {name: [*map(figure, item)] for name, item in ends.items()}, flush=True)
    elif what == "twins":
        for number, bug in chosen:
            findings, stopped = told(bug.setting(False))
            print(
                number,
                bug.title,
                stopped,
                [f"{item.severity} {item.name}: {item.title}" for item in findings],
                flush=True,
            )
    else:
        rows = []
        for number, bug in chosen:
            if HALVES[what](number):
                rows.append(judged(number, bug))
                print(json.dumps(rows[-1]), flush=True)
        share = {name: f"{sum(bool(row[name]) for row in rows)} of {len(rows)}" for name in ("found", "cause", "fix")}
        ran = [row["works"] for row in rows if row["works"] is not None]
        print(share, f"printed code works: {sum(ran)} of {len(ran)}")
        if not numbers:
            stored = json.loads(STORED.read_text()) if STORED.exists() else {}
            STORED.write_text(json.dumps(stored | {what: {"date": str(date.today()), "rows": rows}}) + "\n")


if __name__ == "__main__":
    main()
