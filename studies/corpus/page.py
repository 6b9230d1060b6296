"""`python -m studies.corpus.page`: the page's tables of the sixth to the twelfth set, from what `studies.corpus.fresh`
has stored; the models of the sixth to the eighth are history (docs/log.md)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from studies.corpus.fresh import file_of
from studies.stored import fill, read, table

PAGE = Path("docs/evidence/corpus.md")
SIXTH, AGAIN = Path("docs/data/corpus_fresh.json"), Path("docs/data/corpus_eighth_again.json")
NAMED_WAYS = {"theory": "theory alone", "default": "by default"}


def main() -> None:
    """Write the tables."""
    made = {"": _tables(read(SIXTH)["models"])}
    for which in ("seventh", "eighth", "eleventh", "twelfth"):
        models = read(file_of(which))["models"]
        large = {name: row for name, row in models.items() if name.startswith(f"{which}/large")}
        small = {name: row for name, row in models.items() if name not in large}
        made |= {f"{which} ": _tables(small), f"{which} large ": _tables(large)}
    made |= {f"{which} ": _tables(read(file_of(which))["models"]) for which in ("ninth", "tenth")}
    again = read(AGAIN, {"models": {}})["models"]
    made["eighth again "] = {"models": _models(again)}
    fill(PAGE, {f"{which}{name}": lines for which, found in made.items() for name, lines in found.items()})


def _tables(models: dict[str, Any]) -> dict[str, Any]:
    heads = ["", "models", "by theory", "simulated", "refused", "right", "stated errors missed", "confident and wrong"]
    totals = table(heads, (_total(models, way) for way in NAMED_WAYS))
    return {"totals": totals, "models": _models(models)}


def _models(models: dict[str, Any]) -> list[str]:
    heads = ["model", *(head for way in NAMED_WAYS for head in (NAMED_WAYS[way], "right", "missed", "wrong"))]
    rows = [
        [name, *(cell for way in NAMED_WAYS for cell in _of_way(row.get(way, {"way": "not run"})))]
        for name, row in models.items()
    ]
    return table(heads, rows)


def _total(models: dict[str, Any], way: str) -> list[Any]:
    """One way to call `predict`, over all models; simulated numbers are none of theory alone."""
    rows = [row[way] for row in models.values() if way in row]
    ways = Counter(row["way"] for row in rows)
    judged = [row for row in rows if row["way"] == "theory" or (way == "default" and "rows" in row)]
    right, stated, missed, wrong, confident = (
        sum(row[key] for row in judged) for key in ("right", "stated", "missed", "wrong", "confident")
    )
    cells: list[Any] = [NAMED_WAYS[way], len(rows), ways["theory"], ways["simulated"], ways["refused"] + ways["fault"]]
    cells += [f"{right} ({_part(right, len(rows))})", f"{missed} of {stated} ({_part(missed, stated, 1)})"]
    return [*cells, f"{wrong} of {confident}"]


def _of_way(item: dict[str, Any]) -> list[Any]:
    if "rows" not in item:
        return [item["way"], "", "", ""]
    return [item["way"], "yes" if item["right"] else "no", item["missed"], item["wrong"]]


def _part(part: int, whole: int, digits: int = 0) -> str:
    return f"{100 * part / max(whole, 1):.{digits}f} %"


if __name__ == "__main__":
    main()
