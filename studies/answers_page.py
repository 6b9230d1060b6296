"""Tables of the pages about what `check` answers: planted bugs, public threads, stock models.

python -m studies.answers_page      # fills those of docs/evidence/planted-bugs.md, threads.md and stock.md
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from studies.stored import fill, read, table

DATA, PAGES = Path("docs/data"), Path("docs/evidence")
SETS = {
    "sixth": (24, "Sixth held-out set of 24, looked at once"),
    "fifth": (24, "Fifth held-out set of 24; spent since"),
    "fourth": (24, "Fourth held-out set of 24; spent since"),
    "third": (24, "Third held-out set of 24; spent since"),
    "fresh": (24, "Second held-out set of 24; spent since: rules were mended on it after it was looked at"),
    "held_out": (48, "First held-out half; spent since"),
    "open": (48, "Open: rules may be mended on these"),
}
"""How many bugs each has, and its title."""


def bugs(stored: dict[str, Any]) -> dict[str, list[str]]:
    """How many of each set are found, understood and mended, and its table."""
    told, lines = [], []
    for name, (count, title) in SETS.items():
        if name not in stored:
            continue
        rows, said = stored[name]["rows"], stored[name].get("read", {})
        marks = ", ".join(f"{key} {sum(bool(row[key]) for row in rows)}" for key in ("found", "cause", "fix"))
        share = f"{len(rows)} of {count} judged: {marks}"
        if name not in ("open", "held_out"):
            told.append(f"- {title}: {share}.")
        ran = [row["works"] for row in rows if row["works"] is not None]
        lines += ["", f"## {title}", ""]
        lines += [f"{share}, {stored[name]['date']}; printed code works {sum(ran)} of {len(ran)}.", ""]
        heads = ("#", "bug", "found", "cause", "fix", "works", "first finding")
        lines += table(heads, (_bug(row) for row in sorted(rows, key=lambda item: item["number"])))
        if said:
            lines += ["", "Read besides, where the words hold and the sentence is not right:", ""]
            lines += [f"- {number}: {text}." for number, text in said.items()]
    return {"shares": told, "sets": lines[1:]}


def _bug(row: dict[str, Any]) -> list[Any]:
    marks = [mark(row[name]) for name in ("found", "cause", "fix", "works")]
    return [row["number"], row["title"], *marks, clean((row["findings"] or [row["stopped"] or "nothing"])[0])]


def threads(stored: dict[str, Any]) -> dict[str, list[str]]:
    rows = stored["rows"]
    right = [not row["missing"] and not row["wrong"] for row in rows]
    asked = [row["works"] for row in rows if row["works"] is not None]
    share = (
        f"- {len(rows)} of 44 asked; right {sum(right)}; wrong sentences in {sum(bool(row['wrong']) for row in rows)}; "
    )
    share += f"a printed fix works in {sum(asked)} of {len(asked)} where one is asked for."
    heads = ("row", "thread", "question", "right", "not said", "wrong", "fix works")
    cells = (
        (row["row"], row["thread"], row["question"], mark(good),
         *(clean("; ".join(row[name])) for name in ("missing", "wrong")), mark(row["works"]))
        for row, good in zip(rows, right, strict=True)
    )  # fmt: skip
    return {"share": [share], "rows": table(heads, cells)}


def stock(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """What an alarm rests on stands on the page."""
    alarmed, refused = (sum(bool(row.get(key)) for row in rows) for key in ("alarms", "reason"))
    silent = len(rows) - alarmed - refused
    counts = f"- {len(rows)} models: {silent} without a problem or warning, {alarmed} with, {refused} refused."
    return {
        "counts": [counts],
        "models": table(("model", "class", "date", "processor seconds", "alarms"), map(_model, rows)),
    }


def _model(row: dict[str, Any]) -> list[Any]:
    told = "; ".join(f"{severity} {name}: {title}" for severity, name, title in row.get("alarms", []))
    date = row.get("date", "2026-11-18")
    return [row["model"], row["class"], date, row["seconds"], clean(told or row.get("reason", "none"))]


def mark(value: Any) -> str:
    return "" if value is None else "yes" if value else "no"


def clean(text: str) -> str:
    """Fit for a cell of a table."""
    return text.replace("|", "/").replace("\n", " ")[:160]


def main() -> None:
    fill(PAGES / "planted-bugs.md", bugs(read(DATA / "planted_bugs.json")))
    fill(PAGES / "threads.md", threads(read(DATA / "threads.json")))
    fill(PAGES / "stock.md", stock(read(DATA / "stock_models.json")))


if __name__ == "__main__":
    main()
