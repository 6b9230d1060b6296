"""One layer's matrix drawn at another scale than those of the other layers."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.draws import Draw
from sigprop.checks.registry import check
from sigprop.checks.statistics import differ, known_factor, majority, spelt
from sigprop.checks.subject import Subject
from sigprop.results import Init
from sigprop.results.report import Datum, Finding, Prescription


@check("odd_sibling", "draw", "a standard deviation off by a factor against the same matrix of other layers")
def odd_sibling(subject: Subject) -> Iterator[Finding]:
    """The standard error of log std is sqrt((kurtosis - 1) / 4 n); scales that follow depth have no majority."""
    if subject.trained:
        return
    families = [rows for rows in subject.draws.families().values() if len(rows) > 2 and rows[0].is_matrix]
    tests = sum(map(len, families))
    bad: list[tuple[float, Draw, Draw]] = []
    for members in families:
        usable = [row for row in members if row.is_random and not row.non_finite and row.largest < 100]
        usual = majority(usable) if len(usable) > 2 else []
        rest = [row for row in usable if row not in usual]
        bad += [(row.std / usual[0].std, row, usual[0]) for row in rest if usual and differ(row, usual[0], tests)]
    if not bad:
        return
    ratio, worst, usual = max(bad, key=lambda item: max(item[0], 1 / item[0]))
    named = known_factor(ratio, subject.layers, worst.fan_in, worst.fan_out)
    severe = max(ratio, 1 / ratio) >= 2.0
    yield Finding(
        "odd_sibling",
        "draw",
        "problem" if severe else "warning",
        f"{worst.name} is drawn {spelt(ratio, named)} as wide as the same matrix of other layers",
        "Layers that are alike are drawn alike, or by a rule that changes smoothly with depth; this one fits neither."
        + (" The factor is that of a depth scaling applied to some layers only." if " L)" in named else ""),
        parameters=tuple(row.name for _, row, _ in bad),
        depths=subject.depths_of([row.name for _, row, _ in bad]),
        evidence=(Datum(f"std of {worst.name}", worst.std, "weights", worst.std * worst.log_std_error, usual.std),),
        prescription=Prescription(
            f"multiply it by {1 / ratio:.4g}", "std over that of its siblings", ratio, 1.0, "weights"
        ),
        repairs={row.name: Init("keep", value=1 / factor) for factor, row, _ in bad},
    )
