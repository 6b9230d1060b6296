"""`python -m studies.calibration_page`: what a status promises beside what was measured, as a page."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from studies.calibration import ACCURACY, DEVELOPMENT, OTHER, OUT
from studies.stored import fill, read, table

PAGE = Path("docs/evidence/calibration.md")
ORDER = ("verified", "disputed", "exact", "asymptotic", "quadrature", "sampled", "fitted", "assumed")
HALVES = (DEVELOPMENT, OTHER, ACCURACY)
HEADS = ("status", "numbers", "median error", "median stated", "within the stated error", "within 20 % + 2 s.e.")
WAYS = {"theory": "Theory alone", "default": "As `predict` does it by default"}


def entries_of(stored: dict[str, Any], way: str, half: str | None = None) -> list[dict[str, Any]]:
    found = [item for item in stored["entries"] if item["way"] == way and "numbers" in item]
    return [item for item in found if half is None or item["half"] == half]


def numbers_of(entries: Iterable[dict[str, Any]]) -> dict[str, list[list[Any]]]:
    """By status, [relative error, standard error, stated error, within]."""
    made: dict[str, list[list[Any]]] = {}
    for entry in entries:
        for status, rows in entry["numbers"].items():
            made.setdefault(status, []).extend(rows)
    return made


def by_status(numbers: dict[str, list[list[Any]]]) -> list[str]:
    stated = [row for rows in numbers.values() for row in rows if row[2] is not None]
    rows = [_cells(f"`{status}`", numbers[status]) for status in ORDER if status in numbers]
    total = sum(map(len, numbers.values()))
    told = f"Better than `assumed`: {len(stated)} of {total} numbers ({len(stated) / max(total, 1):.1%})."
    return [*table(HEADS, [*rows, _cells("**all but guesses**", stated)]), "", told]


def _cells(name: str, rows: list[list[Any]]) -> list[Any]:
    if not rows:
        return [name, 0, *[""] * 4]
    stated = [row for row in rows if row[2] is not None]
    within = f"{sum(row[3] for row in stated) / len(stated):.2%}" if stated else "none stated"
    bound = f"{statistics.median(row[2] for row in stated):.1%}" if stated else ""
    near = sum(abs(row[0]) <= 0.2 + 2 * row[1] for row in rows) / len(rows)
    error = statistics.median(abs(row[0]) for row in rows)
    return [name, len(rows), f"{error:.1%}", bound, within, f"{near:.1%}"]


def tables_of(stored: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for way, title in WAYS.items():
        lines += ["", f"## {title}"]
        for half in HALVES:
            if entries := entries_of(stored, way, half):
                kind = "settings" if half == ACCURACY else "classes"
                lines += ["", f"{half.capitalize()}, {len(entries)} {kind}:", "", *by_status(numbers_of(entries))]
    return lines[1:]


def answer_of(stored: dict[str, Any]) -> list[str]:
    """The share of stated errors that hold: of each way, over each kind of models."""
    lines = []
    for way, title in WAYS.items():
        shares = []
        for half in HALVES:
            numbers = [row for rows in numbers_of(entries_of(stored, way, half)).values() for row in rows]
            stated = [row[3] for row in numbers if row[2] is not None]
            shares.append(f"{sum(stated) / max(len(stated), 1):.2%} ({half})")
        lines.append(f"- {title}: {', '.join(shares)}\n  within their stated error; asked: 99 %.")
    told = "- What was off in development was mended or marked; no rule was tried on the other setting."
    return [*lines, told]


def off_of(stored: dict[str, Any]) -> list[str]:
    rows = []
    for way in WAYS:
        for entry in entries_of(stored, way):
            numbers = [row for items in entry["numbers"].values() for row in items if row[2] is not None]
            outside = sum(not row[3] for row in numbers)
            if outside:
                name, column, error, spread, stated, status, reason = entry["outside"][0]
                worst = f"`{name}` {column} {error:+.0%} (s.e. {spread:.0%}, stated {stated:.0%})"
                why = f"{status}: {reason}".rstrip(": ").replace("|", "/")
                rows.append((entry["model"], entry["half"], way, f"{outside} of {len(numbers)}", worst, why))
    return table(("model", "half", "way", "outside", "worst", "status"), rows)


def codes_of(stored: dict[str, Any]) -> str:
    """How many comparisons are of which code."""
    count = Counter(item.get("code", "none") for item in stored["entries"] if "numbers" in item)
    names = {"none": "earlier ones, without a fingerprint"} | stored.get("codes", {})
    said = [(f"`{code}` ({names[code]})" if code in names else f"`{code}`", n) for code, n in count.most_common()]
    return f"Code: {stored['date']}, by fingerprint: " + ", ".join(f"{n} by {name}" for name, n in said) + "."


def tables(stored: dict[str, Any]) -> dict[str, list[str]]:
    """By the name of their marks."""
    found = {"answer": answer_of(stored), "code": [codes_of(stored)]}
    return found | {"tables": tables_of(stored), "off": off_of(stored)}


if __name__ == "__main__":
    fill(PAGE, tables(read(OUT)))
