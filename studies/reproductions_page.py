"""The pages of the reproductions, written from the stored records: `python -m studies.reproductions_page`.

`docs/papers/reproductions.md` has every item in full; each paper's page gets the table of its own items, between two
marks. `--judge` draws all verdicts again from the stored numbers first, and takes up runs from before the records.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from studies.reproduction import DOCS, Reproduction, adopt, data_of, keep, record_file, records
from studies.reproductions import reproductions

PAPERS = {
    "dslm": "Transformers get stable",
    "apjn": "Partial Jacobians",
    "preln": "On layer normalization",
    "effective": "Effective theory",
    "abc": "Scale-invariant parameterizations",
    "others": "Other claims",
}
MARKS = ("<!-- reproductions -->", "<!-- end of reproductions -->")
HEAD = """# The papers' claims, run again

Written by `python -m studies.reproductions_page` from the records in `docs/data/reproductions`. Each item is one file
in `studies/`; in a checkout, `sigprop research reproduce list` shows them and `sigprop research reproduce ID` runs
one: `--scale small` fits two CPU cores in minutes, `--scale full` one large GPU. A verdict follows from the stored
numbers by a rule that stands in the item's file: *reproduced*, *in order but not in size*, *not reproduced*, or *too
small to tell*, with the reason. A run below its item's budget is too small to tell whatever its numbers are. Where
*small* stands under *run*, the full size has not been run; such a verdict is about the small size alone. *Rule before
data* says whether the rule that judges a run is the very one that stood when the run began.
"""


def page(items: dict[str, Reproduction], stored: dict[tuple[str, str], Any]) -> str:
    """All items, paper by paper."""
    parts = [HEAD, "\n".join(summary(items, stored))]
    for paper, title in PAPERS.items():
        mine = [item for item in items.values() if item.paper == paper]
        told = [_section(item, record) for item in mine if (record := best(item, stored)) is not None]
        parts += [f"## {title}\n", *told] if told else []
    return "\n".join(parts).rstrip() + "\n"


def best(item: Reproduction, stored: dict[tuple[str, str], Any]) -> dict[str, Any] | None:
    """The full record of an item, or else the small one."""
    return stored.get((item.id, "full")) or stored.get((item.id, "small"))


def summary(items: dict[str, Reproduction], stored: dict[tuple[str, str], Any], link: str = "") -> list[str]:
    """One line for each item: where, what was found, how large it was run."""
    lines = ["| item | in the paper | verdict | run | rule before data |", "|---|---|---|---|---|"]
    for item in items.values():
        record = best(item, stored)
        found = f"**{record['judgement']['verdict']}**" if record else "not run yet"
        name = f"[{item.id}]({link}#{item.id})" if record else f"`{item.id}`"
        size, first = (record["scale"], _registered(item, record)) if record else ("", "")
        lines.append(f"| {name} | {item.place} | {found} | {size} | {first} |")
    return [*lines, ""]


def _registered(item: Reproduction, record: dict[str, Any]) -> str:
    """Whether the rule that judges a record is the one that stood before its data."""
    return "yes" if record.get("rule") == item.rule else "no"


def _section(item: Reproduction, record: dict[str, Any]) -> str:
    judgement = record["judgement"]
    lines = [
        f"### {item.id}",
        "",
        f"*{item.place}.* {item.claim}",
        "",
        f"**{judgement['verdict'].capitalize()}.** {judgement['why']}",
        "",
        "| what | paper | ours |",
        "|---|---|---|",
    ]
    lines += [f"| {row['what']} | {row['paper']} | {row['ours']} |" for row in judgement["rows"]]
    seconds = "" if record["seconds"] is None else f", {record['seconds']:.0f} s"
    if item.deviation:
        lines += ["", f"*Other than in the paper.* {item.deviation}"]
    spent = item.spent(data_of(record))
    if spent:
        told = ", ".join(f"{name} {have:g} of at least {least:g}" for name, have, least in spent)
        lines += ["", f"*Budget.* {told}."]
    lines += ["", f"`{record['command']}`; {record['date']}, {record['hardware']}{seconds}.", ""]
    return "\n".join(lines)


def with_table(text: str, table: list[str]) -> str:
    """A paper's page with its table between the marks."""
    before, _, rest = text.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    return f"{before}{MARKS[0]}\n\n" + "\n".join(table) + f"\n{MARKS[1]}{after}"


def pages(docs: Path = DOCS) -> dict[Path, str]:
    """What every page is to hold."""
    items, stored = reproductions(), records(docs / "data" / "reproductions")
    found = {docs / "papers" / "reproductions.md": page(items, stored)}
    for paper in PAPERS:
        path = docs / "papers" / f"{paper}.md"
        if path.is_file():
            mine = {name: item for name, item in items.items() if item.paper == paper}
            found[path] = with_table(path.read_text(encoding="utf-8"), summary(mine, stored, "reproductions.md"))
    return found


def main(judge: Annotated[bool, typer.Option("--judge", help="Draw all verdicts again.")] = False) -> None:
    """Write the pages."""
    if judge:
        items, stored = reproductions(), records()
        for item in items.values():
            if item.earlier is not None and not record_file(item.id, "full").is_file():
                adopt(item)
        for (name, _), record in stored.items():
            keep(items[name], record)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
