"""`python -m studies.corpus.page`: the page about the corpus, and the calibration of statuses, from stored data."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from studies.corpus.judging import MISSING, confident_and_wrong, errors_of, is_right
from studies.corpus.models import all_cases
from studies.corpus.run import OUT
from studies.stored import read

COLUMNS = ("variance", "grad_variance")
FRESH = """## The sixth set: theory alone beside the default call

{count} models, listed (commit 49fada1) before any was predicted: 57 of our own in the manner of public repositories and
43 families of transformers at two layers. Each was predicted once, at commit d340d86, by theory alone and as called by
default (`python -m studies.corpus.fresh`); the witness draws 16 initializations of its own. *Right*: the median row
within 10 % and the worst within 20 %, both less two standard errors, in variance, gradient and weight gradient, marked
rows included. *Stated errors missed*: further off than stated by four standard errors of the witness. Models whose
numbers were simulated count among the numbers of the default call only.

Theory alone has 39 rows wrong and unmarked in 12 models: BitNet, Mamba and Falcon-Mamba, SqueezeBERT, MiniMax, a mobile
network, routed experts of 24 tokens, RepVGG, and one row each in four others. Their causes have not been established,
but for Mamba, which had the same rows wrong in the release before. By default these models are also run, and no wrong
row was left unmarked.
Models too large to be run by default have not been judged on this set.

{totals}

{rows}
"""
NAMED_WAYS = {"theory": "theory alone", "default": "by default"}
NAMES = {"variance": "variance", "grad_variance": "gradient", "grad_second_moment": "weight gradient"}
HALVES = ("development", *(f"held out of set {number}" for number in (2, 3, 4, 5)))
EARLIER = "before fingerprints"
STATUSES = ("verified", "disputed", "exact", "asymptotic", "quadrature", "sampled", "fitted", "assumed", MISSING)
PAGE = """# Anybody's model

{fresh}
## Five earlier sets

Of older code; what changed since is told by the fingerprints. Where theory alone and a default call stand side by side,
the sixth set above is what counts.

Written by `python -m studies.corpus.page` from `docs/data/corpus.json.gz` ({date}). {count} models that are not classes
of transformers: {packages} from packages on PyPI (versions in `studies/corpus/requirements.txt`) and {constructs}
constructs of our own, small, of every kind that had been wrong. They came in five sets. The first ({first} models) had
been looked at and is for development. Of the second ({second}) and of the third ({third}) a hash of the name puts half
into development; the other half was *held out*: predicted once, with the code as it was, after the last change that any
other model had caused. What these halves showed has been mended since, so that they are evidence no longer and their
rows below only say that nothing broke. The fourth set ({fourth}), of other families and packages and of constructs
written anew, is held out as a whole: it was written before one of its models was predicted, and predicted once. So is
the fifth ({fifth}): whole networks that nobody had tried here, as people write them themselves.

Which code ran a model is told by a fingerprint of the engine's sources (`studies/engine_code.py`); {codes}.

`predict` is called with its defaults on the function that builds the model, or, for a third of them, on a module with
its weights. The witness has hooks and autograd of its own and draws 32 initializations from seed 50000 on
(`docs/data/corpus_witness.json.gz`). All rows that both have are compared: module outputs (variance, gradient) and
parameters (second moment of the gradient). *Right* is a model whose median row is within 10 % and whose worst is within
20 %, both less two standard errors, in variance and in gradient. *Confident and wrong* is a row with any status but
`assumed` that is off by more than 20 % and five standard errors of witness and prediction together; the last column
counts those that are off by five standard errors of the witness alone, which leaves out what the prediction says of its
own.

{totals}

{wrong}

{notes}

## Calibration: what a status promises, and what was measured

Rows of the corpus by the status that `predict` gave them:

{calibration}

## Every model

Median and worst error of the rows in percent (worst: less two standard errors), how the numbers were found, processor
seconds, and rows that are confident and wrong.

{rows}

    python -m pip install --no-deps -r studies/corpus/requirements.txt
    python -m studies.corpus.measured
    {command}
    python -m studies.corpus.page
"""


def fresh(data: Path = Path("docs/data/corpus_fresh.json")) -> str:
    """The sixth set: theory alone beside the default call, and every model."""
    models = json.loads(data.read_text())["models"]
    heads = ["", "models", "by theory", "simulated", "refused", "right", "stated errors missed", "confident and wrong"]
    totals = [_line(heads), _line(["---"] * len(heads)), *(_total(models, way) for way in NAMED_WAYS)]
    heads = ["model", *(head for way in NAMED_WAYS for head in (NAMED_WAYS[way], "right", "missed", "wrong"))]
    rows = [_line(heads), _line(["---"] * len(heads))]
    for name, row in models.items():
        rows.append(_line([name, *(cell for way in NAMED_WAYS for cell in _of_way(row.get(way, {"way": "not run"})))]))
    return FRESH.format(totals="\n".join(totals), rows="\n".join(rows), count=len(models))


def _total(models: dict[str, Any], way: str) -> str:
    """One way to call `predict`, over all models; simulated numbers are none of theory alone."""
    rows = [row[way] for row in models.values() if way in row]
    ways = Counter(row["way"] for row in rows)
    judged = [row for row in rows if row["way"] == "theory" or (way == "default" and "rows" in row)]
    right, stated, missed, wrong, confident = (
        sum(row[key] for row in judged) for key in ("right", "stated", "missed", "wrong", "confident")
    )
    cells: list[Any] = [NAMED_WAYS[way], len(rows), ways["theory"], ways["simulated"], ways["refused"] + ways["fault"]]
    cells += [f"{right} ({_part(right, len(rows))})", f"{missed} of {stated} ({_part(missed, stated, 1)})"]
    return _line([*cells, f"{wrong} of {confident}"])


def _of_way(item: dict[str, Any]) -> list[Any]:
    if "rows" not in item:
        return [item["way"], "", "", ""]
    return [item["way"], "yes" if item["right"] else "no", item["missed"], item["wrong"]]


def _part(part: int, whole: int, digits: int = 0) -> str:
    return f"{100 * part / max(whole, 1):.{digits}f} %"


def totals(models: Sequence[dict[str, Any]]) -> str:
    headings = ["", "models", "predicted", "by theory / simulated", "variance right", "gradient right", "both"]
    headings += ["confident and wrong rows", "by the witness's error alone"]
    lines = [_line(headings), "|---" * len(headings) + "|"]
    for name, chosen in _groups(models):
        n = max(len(chosen), 1)
        found = [row for row in chosen if "rows" in row]
        ways = [row["way"] for row in found]
        right = {column: [is_right(row, column) for row in chosen] for column in COLUMNS}
        both = sum(map(all, zip(*right.values(), strict=True)))
        wrong = sum(len(confident_and_wrong(row)) for row in chosen)
        every = sum(len(row.get("rows", [])) for row in chosen)
        cells = [name, len(chosen), _share(len(found), n), f"{ways.count('theory')} / {ways.count('simulation')}"]
        cells += [_share(sum(right[column]), n) for column in COLUMNS] + [_share(both, n), f"{wrong} of {every}"]
        cells.append(sum(len(confident_and_wrong(row, of_witness_alone=True)) for row in chosen))
        lines.append(_line(cells))
    return "\n".join(lines)


def _groups(models: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Models by half and by the code that ran them, whose fingerprint a row has; earlier rows have none."""
    codes = Counter(row.get("code", EARLIER) for row in models)
    found = []
    for code in sorted(codes, key=lambda name: (name == EARLIER, -codes[name])):
        for half in HALVES:
            chosen = [row for row in models if row["half"] == half and row.get("code", EARLIER) == code]
            found += [(f"{half}, code {code}", chosen)] if chosen else []
    return found


def _line(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.0f} %)"


def wrong_rows(models: Sequence[dict[str, Any]]) -> str:
    lines = []
    for row in models:
        for name, column, error, spread, status, _ in confident_and_wrong(row):
            size = "no number" if error is None else f"{100 * error:+.0f} % (s.e. {100 * spread:.0f} %)"
            lines.append(_line([row["model"], row["half"], row["given"], f"`{name}` {NAMES[column]}", size, status]))
    if not lines:
        return "No row is confident and wrong."
    return "\n".join(
        [
            "Rows that are confident and wrong:",
            "",
            "| model | half | given | row | error | status |",
            "|---|---|---|---|---|---|",
            *lines,
        ]
    )


def calibration(rows: Sequence[tuple[float | None, float, str]]) -> str:
    """For each status how many numbers, their median error, and the shares within limits, noise allowed for."""
    headings = ["status", "numbers", "median error", "within 5 % + 2 s.e.", "within 20 % + 2 s.e."]
    lines = [_line([*headings, "off by 20 % and 5 s.e."]), "|---" * (len(headings) + 1) + "|"]
    for status in [name for name in STATUSES if any(item[2] == name for item in rows)]:
        found = [(math.inf if e is None else abs(e), spread or 0.0) for e, spread, kind in rows if kind == status]
        off = sum(error > 0.2 and error > 5 * spread for error, spread in found)
        median = statistics.median(error for error, _ in found)
        shares = [_within(found, 0.05), _within(found, 0.20)]
        lines.append(_line([f"`{status}`", len(found), f"{100 * median:.1f} %", *shares, off]))
    return "\n".join(lines)


def _within(found: Sequence[tuple[float, float]], limit: float) -> str:
    return f"{100 * sum(error <= limit + 2 * spread for error, spread in found) / len(found):.1f} %"


def table(models: Sequence[dict[str, Any]]) -> str:
    headings = ["model", "half", "kind", *NAMES.values(), "how", "seconds", "wrong"]
    lines = [_line(headings), "|---" * len(headings) + "|"]
    for row in models:
        start = [row["model"], row["half"], row["kind"]]
        if "rows" not in row:
            reason = row["reason"].replace("|", "/")
            lines.append(_line([*start, "", "", "", f"not predicted: {reason}", "", ""]))
            continue
        cells = [_cell(*errors_of(row, column)) for column in NAMES]
        how = f"{row['way']}{', module' if row['given'] == 'module' else ''}, {row.get('code', 'earlier')}"
        lines.append(_line([*start, *cells, how, row["seconds"], len(confident_and_wrong(row)) or ""]))
    return "\n".join(lines)


def _cell(median: float, worst: float) -> str:
    return "" if math.isnan(median) else f"{100 * median:.0f} / {100 * worst:.0f}"


def main(
    data: Annotated[Path, typer.Option()] = OUT,
    page: Annotated[Path, typer.Option()] = Path("docs/evidence/corpus.md"),
) -> None:
    """Write the page."""
    stored = read(data)
    models = stored["models"]
    shown = [(item[2], item[3], item[4]) for row in models for item in row.get("rows", [])]
    sets = Counter(case.added for case in all_cases())
    constructs = sum(row["model"].startswith("construct/") for row in models)
    page.write_text(
        PAGE.format(
            fresh=fresh(),
            date=stored["date"],
            first=sets[1],
            second=sets[2],
            third=sets[3],
            fourth=sets[4],
            fifth=sets[5],
            codes="; ".join(f"`{code}` is commit {name}" for code, name in stored.get("codes", {}).items()),
            command=stored["command"],
            count=len(models),
            constructs=constructs,
            packages=len(models) - constructs,
            totals=totals(models),
            wrong=wrong_rows(models),
            notes="\n".join(f"- {note}" for note in stored.get("notes", [])),
            calibration=calibration(shown),
            rows=table(models),
        )
    )


if __name__ == "__main__":
    typer.run(main)
