"""One of query, key and value, or one of the experts, unlike the others."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sigprop.checks.draws import Draw
from sigprop.checks.edits import edit, listed
from sigprop.checks.registry import check
from sigprop.checks.statistics import differ, known_factor, majority, spelt
from sigprop.checks.subject import Subject
from sigprop.results import Init
from sigprop.results.report import Datum, Finding, Prescription

PARTS = {
    "query": re.compile(r"q|query|wq|q_lin|q_proj|query_proj", re.IGNORECASE),
    "key": re.compile(r"k|key|wk|k_lin|k_proj|key_proj", re.IGNORECASE),
    "value": re.compile(r"v|value|wv|v_lin|v_proj|value_proj", re.IGNORECASE),
}


@check("odd_part", "draw", "one of q/k/v or of the experts has another std than the others")
def odd_part(subject: Subject) -> Iterator[Finding]:
    """Queries and keys enter the scores as a product, experts take one another's place: each pair has one std."""
    if subject.trained:
        return
    groups = [list(row.parts) for row in subject.draws.matrices if row.parts]
    groups += _projections(subject)
    tests = sum(map(len, groups))
    bad: list[tuple[float, Draw, Draw]] = []
    for members in groups:
        usable = [row for row in members if row.is_random and row.total >= 64]
        if len(usable) < 2:
            continue
        usual = majority(usable) if len(usable) > 2 else usable[1:]
        rest = [row for row in usable if row not in usual]
        bad += [(row.std / usual[0].std, row, usual[0]) for row in rest if usual and differ(row, usual[0], tests)]
    if bad:
        ratio, worst, usual = max(bad, key=lambda item: max(item[0], 1 / item[0]))
        named = known_factor(ratio, subject.layers)
        inits = {row.name: Init("keep", value=1 / factor) for factor, row, _ in bad if "[" not in row.name}
        yield Finding(
            "odd_part",
            "draw",
            _severity(worst, ratio),
            f"the std of {worst.name} is {spelt(ratio, named)} that of {usual.name}",
            "These matrices play the same part (queries and keys enter as a product, experts replace one another), so "
            "one std serves them all; another one comes from a rule that saw the fused shape, or missed one of them.",
            parameters=tuple(row.name for _, row, _ in bad),
            depths=subject.depths_of([row.name for _, row, _ in bad]),
            evidence=(Datum(f"std of {worst.name}", worst.std, "weights", worst.std * worst.log_std_error, usual.std),),
            prescription=Prescription(
                f"multiply it by {1 / ratio:.4g}", "std over that of its siblings", ratio, 1.0, "weights"
            ),
            edits=(edit(f"rescale {listed(list(inits))} to the std of the others", inits),) if inits else (),
        )


def _severity(row: Draw, ratio: float) -> str:
    """Values may be drawn apart on purpose (T-Fixup), and queries narrower, with the scores' 1/sqrt(d) in them (T5)."""
    part = _part_of(row.name)
    if row.name.endswith("[value]") or part == "value":
        return "note"
    if ratio < 1 and (row.name.endswith("[query]") or part == "query"):
        return "note"
    return "problem" if max(ratio, 1 / ratio) >= 4 else "warning"


def _part_of(name: str) -> str:
    words = name.split(".")[-2:]
    return next((part for part, pattern in PARTS.items() if any(map(pattern.fullmatch, words))), "")


def _projections(subject: Subject) -> list[list[Draw]]:
    """Query, key and value of one attention, where they have one shape."""
    found: dict[tuple[str, tuple[int, ...]], dict[str, Draw]] = {}
    for row in subject.draws.matrices:
        part = _part_of(row.name)
        if part:
            owner = row.name.rsplit(".", 2)[0]
            found.setdefault((owner, row.shape), {})[part] = row
    return [list(parts.values()) for parts in found.values() if {"query", "key"} <= set(parts)]
