"""Rules of width and depth, seen in two sizes of one architecture."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.draws import Draw, read_draws
from sigprop.checks.registry import check, say
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding, Prescription


@check("size_rules", "sizes", "the width or depth rule is violated between a base model and this one")
def size_rules(subject: Subject) -> Iterator[Finding]:
    """Between sizes, std goes as fan_in^-1/2 for a matrix, and as layers^-1/2 for the end of a branch in depth."""
    if subject.base is None:
        return
    small = {row.family: row for row in read_draws(subject.base).matrices}
    pairs = [(row, small[row.family]) for row in _one_per_family(subject) if row.family in small]
    wider = [(row, base) for row, base in pairs if base.fan_in and row.fan_in and row.fan_in != base.fan_in]
    slopes = [(_exponent(row, base), row) for row, base in wider if row.name not in _readouts(subject)]
    bad = [(slope, row) for slope, row in slopes if abs(slope + 0.5) > limit("width_exponent")]
    if bad:
        worst, row = max(bad, key=lambda item: abs(item[0] + 0.5))
        yield _finding("width", worst, row, [item for _, item in bad], "fan_in^-1/2", "abc; Yang and Hu 2021")
    layers = max((len(rows) for rows in read_draws(subject.base).families().values()), default=0)
    own = max((len(rows) for rows in subject.draws.families().values()), default=0)
    ends = [(row, base) for row, base in pairs if row.name in subject.branch_ends and row.shape == base.shape]
    if layers > 1 and own > 1 and own != layers and ends:
        slopes = [(math.log(row.std / base.std) / math.log(own / layers), row) for row, base in ends]
        flat = [(slope, row) for slope, row in slopes if abs(slope + 0.5) > limit("width_exponent")]
        if flat:
            worst, row = flat[0]
            yield _finding("depth", worst, row, [item for _, item in flat], "layers^-1/2", "dslm, section 5.6")


def _finding(size: str, slope: float, row: Draw, rows: list[Draw], rule: str, paper: str) -> Finding:
    return say(
        "warning",
        f"{row.family} has std ~ {size}^{slope:.2g} between the two sizes, where {rule} keeps the signal",
        f"A std that does not follow {size} lets signals and gradients grow with it, so that a learning rate tuned on "
        "the small model is not that of the large one.",
        paper,
        parameters=tuple(item.name for item in rows),
        evidence=(Datum(f"{size} exponent of the std", slope, "weights", expected=-0.5),),
        prescription=Prescription("initialize both sizes by one rule: sp.plan(model, 'unit', width='mup')"),
    )


def _one_per_family(subject: Subject) -> list[Draw]:
    return list({row.family: row for row in reversed(subject.draws.matrices)}.values())


def _readouts(subject: Subject) -> set[str]:
    structure = subject.structure
    return set() if structure is None else {item.name for item in structure if item.role in ("readout", "embedding")}


def _exponent(row: Draw, base: Draw) -> float:
    return math.log(row.std / base.std) / math.log(row.fan_in / base.fan_in)
