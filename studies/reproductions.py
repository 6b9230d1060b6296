"""All reproductions by id, and their pages: `python -m studies.reproductions`.

`docs/papers/reproductions.md` has every item in full; each paper's page and `docs/papers/story.md` get tables between
two marks. `--judge` takes all verdicts again from the stored numbers first; `--figures` draws what is stored.
Claims whose studies are history stand in `docs/data/reproductions_history.json`, each with the commit that has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from sigprop.errors import InputError, UnknownNameError
from studies import abc, apjn_start, component_accuracy, dslm_start, effective, others, preln, stack_accuracy
from studies.reproduction import DOCS, VERDICTS, Claim, Reproduction, data_of, keep, records, told_rule
from studies.stored import read, replaced, table

MODULES = (component_accuracy, stack_accuracy, dslm_start, apjn_start, preln, effective, abc, others)
HISTORY = DOCS / "data" / "reproductions_history.json"
PAPERS = {
    "dslm": "Transformers get stable",
    "apjn": "Partial Jacobians",
    "preln": "On layer normalization",
    "effective": "Effective theory",
    "abc": "Scale-invariant parameterizations",
    "others": "Other claims",
}
HEAD = """# The papers' claims, run again

{answer}

Written by `python -m studies.reproductions` from the records in `docs/data/reproductions`. In a checkout,
`sigprop research reproduce list` shows the items and `sigprop research reproduce ID` runs one: `--scale small` fits two
CPU cores in minutes, `--scale full` one large GPU. Studies of trainings are history: a command with the commit that has
it stands with each. A verdict follows from the stored numbers by the rule that stands with each item. A run below its
budget is too small to tell whatever its numbers are. Where *small* stands under *run*, the full size has not been run;
such a verdict is about the small size alone. *Rule before data* is *yes* where claim, protocol and rule were committed
before the run; its seeds (from 7000 on) are those of no earlier run, though what earlier runs had shown was known.
*small: ...* is the verdict of such a run beside an older, larger one.
"""


def reproductions() -> dict[str, Reproduction]:
    """Every item that has its study here, by its id."""
    return {item.id: item for module in MODULES for item in module.ITEMS}


def history() -> dict[str, Claim]:
    """Every item whose study is history."""
    return {row["id"]: Claim(**{name: _frozen(value) for name, value in row.items()}) for row in read(HISTORY)}


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _frozen(item) for name, item in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def every_claim() -> dict[str, Claim]:
    """Paper by paper."""
    found = [*reproductions().values(), *history().values()]
    return {item.id: item for paper in PAPERS for item in found if item.paper == paper}


def reproduction(name: str) -> Reproduction:
    """One item; an unknown id is named with its nearest, one of history with its commit."""
    item = every_claim().get(name)
    if item is None:
        raise UnknownNameError("reproduction", name, every_claim(), "See `sigprop research reproduce list`.")
    if not isinstance(item, Reproduction):
        raise InputError(f"the study of {name} is history: {_command(item)}")
    return item


def _command(item: Claim) -> str:
    """How a study that is history is run."""
    return (
        f"git worktree add ../history {item.commit} && cd ../history && python -m sigprop research reproduce {item.id}"
    )


Stored = dict[tuple[str, str], dict[str, Any]]


def page(items: dict[str, Claim], stored: Stored) -> str:
    """All items, paper by paper."""
    parts = [HEAD.format(answer=answer(items, stored)), *summary(items.values(), stored), ""]
    for paper, title in PAPERS.items():
        parts += [f"## {title}", "", *(_section(item, stored) for item in items.values() if item.paper == paper)]
    return "\n".join(parts).rstrip() + "\n"


def answer(items: dict[str, Claim], stored: Stored) -> str:
    """Five lines: how many, which hold, which do not, what is open, what was registered."""
    found = {name: best(item, stored) for name, item in items.items()}
    verdicts = {name: record["judgement"]["verdict"] for name, record in found.items() if record}
    count = Counter(verdicts.values())
    first = [runs[0]["judgement"]["verdict"] for item in items.values() if (runs := registered(item, stored))]
    told = ", ".join(f"{number} {verdict}" for verdict in VERDICTS if (number := first.count(verdict)))
    failed = ", ".join(f"[{name}](#{name})" for name, verdict in verdicts.items() if verdict == VERDICTS[2])
    lines = (
        f"{len(items)} claims: {', '.join(f'{count[verdict]} {verdict}' for verdict in VERDICTS)}, "
        f"{len(items) - len(verdicts)} not run yet. Not reproduced: {failed or 'none'}.",
        "What holds is what can be measured at initialization: closed forms of components and of whole stacks, phase "
        "diagrams, exponents of width.",
        "What is too small to tell, or not run, is nearly all about training: no run had the papers' length.",
        "So it is undecided here whether DeepScale trains deep, thin Transformers better, and whether Post-LN needs "
        "a warm-up; protocols and rules that would decide stand with the items, one command each.",
        f"{len(first)} items have a run whose rule was committed before it ({told}); the rules of all other runs came, "
        "or were changed, after them.",
    )
    return "\n".join(f"- {line}" for line in lines)


def best(item: Claim, stored: Stored) -> dict[str, Any] | None:
    """The full record of an item, or else the small one."""
    return stored.get((item.id, "full")) or stored.get((item.id, "small"))


def registered(item: Claim, stored: Stored) -> list[dict[str, Any]]:
    """The records that were made after the item's rule."""
    if not isinstance(item, Reproduction):
        return []
    found = [stored[item.id, scale] for scale in ("full", "small") if (item.id, scale) in stored]
    return [record for record in found if record.get("rule") == item.rule(record["scale"])]


def summary(items: Iterable[Claim], stored: Stored, link: str = "") -> list[str]:
    """One line for each item: where, what was found, how large it was run."""
    rows = []
    for item in items:
        record, first = best(item, stored), registered(item, stored)
        name, found, size, flag = f"[{item.id}]({link}#{item.id})", "not run yet", "", ""
        if record:
            found, size, flag = f"**{record['judgement']['verdict']}**", record["scale"], "no"
        if first:
            flag = "yes" if first[0] is record else f"small: {first[0]['judgement']['verdict']}"
        rows.append((name, item.place, found, size, flag))
    return table(("item", "in the paper", "verdict", "run", "rule before data"), rows)


def _section(item: Claim, stored: Stored) -> str:
    runs = [stored[item.id, scale] for scale in ("full", "small") if (item.id, scale) in stored]
    lines = [f"### {item.id}", "", f"*{item.place}.* {item.claim}", ""]
    lines += [part for record in runs for part in _run(item, record, record in registered(item, stored))]
    lines += ["**Not run yet.**", ""] if not runs else []
    rule = f"Reproduced where {told_rule(item.reproduced)}; in order where {told_rule(item.in_order)}"
    rule += f"; decided only where {told_rule(item.decided)}" if item.decided != "True" else ""
    lines += [f"*Rule.* {rule}.", "", f"*Protocol, full.* {_told(item.full)}.", ""]
    lines += [f"*Other than in the paper.* {item.deviation}", ""] if item.deviation else []
    lines += [f"*Run it.* `{_command(item)}`", ""] if item.commit else []
    return "\n".join(lines)


def _run(item: Claim, record: dict[str, Any], first: bool) -> list[str]:
    judgement = record["judgement"]
    lines = [f"**{judgement['verdict'].capitalize()}** ({record['scale']}). {judgement['why']}", ""]
    rows = [(row["what"], row["paper"], row["ours"]) for row in judgement["rows"]]
    lines += [*table(("what", "paper", "ours"), rows), ""]
    seconds = "" if record["seconds"] is None else f", {record['seconds']:.0f} s"
    told = f"`{record['command']}`; {record['date']}, {record['hardware']}{seconds}. "
    told += (
        "Rule before data."
        if first
        else "The rule or the protocol that stands here came, or was changed, after this run."
    )
    spent = ", ".join(f"{name} {have:g} of at least {least:g}" for name, have, least in item.spent(data_of(record)))
    return [*lines, *([f"*Budget.* {spent}.", ""] if spent else []), told, ""]


def _told(settings: Any) -> str:
    return ", ".join(f"{key.replace('_', ' ')} {_short(value)}" for key, value in settings.items()) or "no settings"


def _short(value: Any) -> str:
    if isinstance(value, tuple) and value and all(isinstance(each, (str, int, float)) for each in value):
        return "/".join(map(str, value))
    return str(value)


def pages(docs: Path = DOCS) -> dict[Path, str]:
    """What every page is to hold."""
    items, stored = every_claim(), records(docs / "data" / "reproductions")
    found = {docs / "papers" / "reproductions.md": page(items, stored)}
    for paper in PAPERS:
        path = docs / "papers" / f"{paper}.md"
        if path.is_file():
            rows = summary([item for item in items.values() if item.paper == paper], stored, "reproductions.md")
            found[path] = replaced(path.read_text(encoding="utf-8"), "reproductions", ["", *rows, ""])
    story = docs / "papers" / "story.md"
    text = replaced(story.read_text(encoding="utf-8"), "counts", ["", *counts(items, stored), ""])
    found[story] = replaced(text, "claims", ["", *claims(items, stored), ""])
    return found


def claims(items: dict[str, Claim], stored: Stored) -> list[str]:
    """What is claimed and what was found, to be cited."""
    rows = []
    for item in items.values():
        record, first = best(item, stored), registered(item, stored)
        run = f"{record['scale']}, {record['date']}{', rule before data' * (record in first)}" if record else ""
        found = f"**{record['judgement']['verdict']}**" if record else "not run yet"
        rows.append((f"[{item.id}](reproductions.md#{item.id})", item.place, item.claim, found, run))
    return table(("item", "where", "claimed", "found", "run"), rows)


def counts(items: dict[str, Claim], stored: Stored) -> list[str]:
    """Verdicts by paper."""
    rows = []
    for paper, title in PAPERS.items():
        mine = [item for item in items.values() if item.paper == paper]
        found = [record for item in mine if (record := best(item, stored))]
        count = Counter(record["judgement"]["verdict"] for record in found)
        first = sum(bool(registered(item, stored)) for item in mine)
        row = [
            title,
            str(len(mine)),
            *(str(count[verdict]) for verdict in VERDICTS),
            str(len(mine) - len(found)),
            str(first),
        ]
        rows.append(row)
    rows.append(["all", *(str(sum(int(row[place]) for row in rows)) for place in range(1, len(rows[0])))])
    return table(("paper", "claims", *VERDICTS, "not run", "rule before data"), rows)


def main(
    judge: Annotated[bool, typer.Option("--judge", help="Take all verdicts again.")] = False,
    figures: Annotated[bool, typer.Option("--figures", help="Draw the stored figures again.")] = False,
) -> None:
    """Write the pages."""
    items, stored = reproductions(), records()
    for (name, scale), record in stored.items():
        if judge and name in items:
            keep(items[name], record)
        draw = items[name].draw if name in items else None
        if figures and draw is not None and scale == "full":
            draw(data_of(record), DOCS / "figures" / f"{name.replace('-', '_')}.png")
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
