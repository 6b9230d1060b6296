"""One matrix unlike the same matrix of other layers, unlike query, key or value beside it, or of another law."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

from sigprop.checks.draws import Draw
from sigprop.checks.edits import edit, listed
from sigprop.checks.registry import check, say
from sigprop.checks.statistics import clusters, differ, known_factor, majority, spelt
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results import Edit, Init
from sigprop.results.report import Datum, Finding, Prescription

Group = list[Draw]
MOST_GROUPS = 2


@check("odd_sibling", "draw", "the same matrix at two scales in different layers")
def odd_sibling(subject: Subject) -> Iterator[Finding]:
    """The standard error of log std is sqrt((kurtosis - 1) / 4 n). Two groups are told with the rule that each follows;
    scales that follow depth form more groups and are left alone, unless one matrix stands out of a majority."""
    if subject.trained:
        return
    families = [rows for rows in subject.draws.families().values() if len(rows) > 2 and rows[0].is_matrix]
    tests = sum(map(len, families))
    found = [pair for rows in families if (pair := _split(rows, tests)) is not None]
    if not found:
        return
    worst = max(found, key=lambda pair: abs(math.log(pair[0][0].std / pair[1][0].std)))
    odd, usual = _ordered(subject, *worst)
    ratio = odd[0].std / usual[0].std
    changes = [change for pair in found for change in _edits(subject, *_ordered(subject, *pair))]
    rows = [row for pair in found for row in _ordered(subject, *pair)[0]]
    yield say(
        "problem" if max(ratio, 1 / ratio) >= limit("odd_factor") else "warning",
        f"{odd[0].family} has two scales: {_told(subject, odd)}; {_told(subject, usual)}",
        f"Layers of one kind share a scale, or follow a rule that changes smoothly with depth. The first group has "
        f"{spelt(ratio, known_factor(ratio, subject.layers, odd[0].fan_in, odd[0].fan_out))} the std of the second."
        + ("" if changes else " Neither follows a known rule: make them one, whichever is meant."),
        parameters=tuple(row.name for row in rows),
        evidence=(
            Datum(f"std of {odd[0].name}", odd[0].std, "weights", odd[0].std * odd[0].log_std_error, usual[0].std),
            Datum("matrices of the first group", len(odd), "weights"),
            Datum("matrices of the second group", len(usual), "weights"),
        ),
        edits=_merged(changes),
    )


def _split(members: Group, tests: int) -> tuple[Group, Group] | None:
    """Two groups that differ beyond sampling: all members in two clusters, or a few of them against a majority."""
    usable = [row for row in members if row.is_random and not row.non_finite and row.largest < 100]
    groups = clusters(usable) if len(usable) > 2 else []
    largest = max(groups, key=len, default=[])
    if len(groups) == MOST_GROUPS:
        first, second = groups
    elif len(largest) >= limit("draw_majority") * len(usable) and len(groups) > 1:
        first, second = [row for row in usable if row not in largest], largest
        first = [row for row in first if differ(row, second[0], tests)]
    else:
        return None
    return (first, second) if first and differ(first[0], second[0], tests) else None


def _ordered(subject: Subject, first: Group, second: Group) -> tuple[Group, Group]:
    """What is to be changed, and what it should be: a group that follows a named rule stays, else the larger one."""
    rules = [bool(_rule(subject, group)) for group in (first, second)]
    if rules[0] != rules[1]:
        return (second, first) if rules[0] else (first, second)
    return (first, second) if len(first) <= len(second) else (second, first)


def _rule(subject: Subject, group: Group) -> str:
    """The depth scaling of branch outputs, by the std that most other matrices of blocks have."""
    row = group[0]
    if row.name not in subject.branch_ends:
        return ""
    others = [
        item.std
        for item in subject.draws.matrices
        if item.name in subject.block_matrices and item.name not in subject.branch_ends
    ]
    for name, count in (("sqrt(2 L)", 2 * subject.layers), ("sqrt(L)", subject.layers)):
        close = [std for std in others if abs(math.log(row.std * count**0.5 / std)) < math.log(limit("draw_factor"))]
        if others and len(close) >= 0.5 * len(others) and count > 1:
            return f"{close[0]:.2g} / {name}, the depth scaling"
    return ""


def _told(subject: Subject, group: Group) -> str:
    rule = _rule(subject, group)
    return f"{listed([row.name for row in group])} std {group[0].std:.3g}" + (f" = {rule}" if rule else "")


def _edits(subject: Subject, odd: Group, usual: Group) -> list[Edit]:
    """Only where one of the groups is known to be the one that is meant."""
    total = len(odd) + len(usual)
    if not _rule(subject, usual) and len(usual) < limit("draw_majority") * total:
        return []
    inits = {row.name: Init("keep", value=usual[0].std / row.std) for row in odd}
    return [edit(f"give {listed(list(inits))} the std of the others, {usual[0].std:.3g}", inits)]


def _merged(changes: list[Edit]) -> tuple[Edit, ...]:
    inits = {name: init for change in changes for name, init in change.inits.items()}
    return (edit("; ".join(change.what for change in changes), inits),) if inits else ()


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
        yield say(
            _severity(worst, ratio),
            f"the std of {worst.name} is {spelt(ratio, named)} that of {usual.name}",
            "These matrices play the same part (queries and keys enter as a product, experts replace one another), so "
            "one std serves them all; another one comes from a rule that saw the fused shape, or missed one of them.",
            parameters=tuple(row.name for _, row, _ in bad),
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


ENOUGH = 1024
EXPECTED = {"normal": 3.0, "truncated normal": 2.37, "uniform": 1.8}


@check("odd_law", "draw", "uniform where the siblings are normal, or normal where they are uniform")
def odd_law(subject: Subject) -> Iterator[Finding]:
    """The kurtosis is 3 for a normal and 1.8 for a uniform law, with a standard error of sqrt(24 / n)."""
    if subject.trained:
        return
    bad: list[tuple[Draw, str]] = []
    for members in subject.draws.families().values():
        rows = [row for row in members if row.is_matrix and row.is_random and row.total >= ENOUGH]
        if len(rows) < 3:
            continue
        law, count = Counter(row.law for row in rows).most_common(1)[0]
        if law in EXPECTED and count >= limit("draw_majority") * len(rows):
            bad += [(row, law) for row in rows if {row.law, law} in ({"uniform", "normal"},)]
    if bad:
        worst, law = bad[0]
        yield say(
            "warning",
            f"{worst.name} is {worst.law} where the same matrix of other layers is {law}",
            "Another initialization reached this layer than the others: a module that an `apply` or a name pattern "
            "missed, or a layer that was replaced later.",
            parameters=tuple(row.name for row, _ in bad),
            evidence=(Datum(f"kurtosis of {worst.name}", worst.kurtosis, "weights", expected=EXPECTED[law]),),
            prescription=Prescription("initialize it like its siblings"),
        )
