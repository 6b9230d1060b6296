"""The scaling of branch outputs by depth, applied to none, to some, or to the wrong matrices."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.draws import Draw
from sigprop.checks.registry import check, say
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding, Prescription

PUBLISHED = ("gpt2", "gpt_bigcode", "imagegpt", "decision_transformer")
"""Model types whose published code scales the last matrices of branches by 1 / sqrt(2 L)."""
PAPER = "Radford et al. 2019, section 2.3"
FEWEST_LAYERS = 4


@check("depth_scaling", "draw", "1/sqrt(2 L) on none, on some, or on the wrong matrices")
def depth_scaling(subject: Subject) -> Iterator[Finding]:
    """A family is scaled when its std is that of the other families divided by sqrt(2 L), or sqrt(L)."""
    layers = subject.layers
    if subject.trained or layers < FEWEST_LAYERS:
        return
    outputs = subject.branch_ends
    families = {row.family: row for row in subject.draws.matrices if row.name in subject.block_matrices}
    usual = _reference([row for row in families.values() if row.name not in outputs])
    if usual is None:
        return
    ends = {name: row for name, row in families.items() if row.name in outputs}
    inner = {name: row for name, row in families.items() if row.name not in outputs}
    scaled_ends = [row for row in ends.values() if _scaled(row, usual, layers)]
    plain_ends = [row for row in ends.values() if _same(row, usual.std)]
    scaled_inner = [row for row in inner.values() if _scaled(row, usual, layers)]
    factor = 1.0 / math.sqrt(2 * layers)
    if scaled_inner and not scaled_ends and plain_ends:
        yield _finding(
            f"{scaled_inner[0].name} carries the depth scaling, not the branch output {plain_ends[0].name}",
            "The factor 1/sqrt(2 L) holds the stream only on the last matrix of a branch; before a norm, or beside "
            "another matrix, it does something else.",
            scaled_inner,
            usual.std,
            factor,
        )
    elif scaled_ends and plain_ends:
        yield _finding(
            f"{plain_ends[0].name} lacks the depth scaling that {scaled_ends[0].name} has",
            "Every branch adds to the same stream: scaled alone, one kind of branch leaves the growth to the other.",
            plain_ends,
            usual.std,
            factor,
        )
    elif plain_ends and not scaled_ends and subject.model_type in PUBLISHED:
        yield _finding(
            f"{plain_ends[0].name} is not scaled by 1/sqrt(2 L), which {subject.model_type} publishes",
            "The published initialization divides the last matrix of every branch by sqrt(2 L), so that the stream "
            "keeps its variance over L layers; here nothing of it reached the weights.",
            plain_ends,
            usual.std,
            factor,
        )


def _finding(title: str, cause: str, rows: list[Draw], usual: float, factor: float) -> Finding:
    first = rows[0]
    return say(
        "warning",
        title,
        cause,
        PAPER,
        parameters=tuple(row.family for row in rows),
        evidence=(
            Datum(f"std of {first.name}", first.std, "weights", first.std * first.log_std_error),
            Datum("std of the other matrices", usual, "weights"),
            Datum("1 / sqrt(2 L)", factor, "theory"),
        ),
        prescription=Prescription("initialize all branch outputs, and only them, with std / sqrt(2 L)"),
    )


def _reference(rows: list[Draw]) -> Draw | None:
    """One of the inner families whose std most of them share; None where it goes by fans."""
    usual: list[Draw] = []
    for row in rows:
        alike = [other for other in rows if _same(other, row.std)]
        usual = max(usual, alike, key=len)
    return usual[0] if usual and len(usual) >= limit("draw_majority") * len(rows) else None


def _same(row: Draw, std: float) -> bool:
    error = 0.0 if row.recorded else 5.0 * row.log_std_error
    return abs(math.log(row.std / std)) < math.log(limit("draw_alike")) + error


def _scaled(row: Draw, usual: Draw, layers: int) -> bool:
    """By the square root of the depth, and not by that of its own fan-in."""
    if (
        row.fan_in != usual.fan_in
        and row.fan_in
        and usual.fan_in
        and _same(row, usual.std * math.sqrt(usual.fan_in / row.fan_in))
    ):
        return False
    return any(_same(row, usual.std / math.sqrt(count)) for count in (2 * layers, layers))
