"""Fan-in and fan-out taken for one another."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from sigprop.checks.draws import Draw
from sigprop.checks.edits import edit, listed
from sigprop.checks.registry import check, say
from sigprop.checks.statistics import majority
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results import Init
from sigprop.results.report import Datum, Finding, Prescription

APART = 1.5
"""Ratio of two fans from which on a rule can be told from a single std."""
GAINS = (1.0, 2**0.5, 3**-0.5)
"""LeCun's, He's and torch's own."""
BLIND: dict[str, Callable[[Draw], float]] = {
    "one std": lambda row: 1.0,
    "Xavier": lambda row: row.fan_in + row.fan_out,
    "orthogonal": lambda row: max(row.fan_in, row.fan_out),
}
"""Rules that do not tell fan-in from fan-out: where one of them fits as well, nothing was swapped."""


@check("fans_swapped", "draw", "a matrix initialized by its fan-out where the others go by their fan-in")
def fans_swapped(subject: Subject) -> Iterator[Finding]:
    """Under one rule std * sqrt(fan) is one number over matrices of all shapes; find who has it with the other fan."""
    if subject.trained:
        return
    rows = [row for row in subject.draws.matrices if row.fan_in and row.fan_out and "Transpose" not in row.kind]
    if len({row.fan_in for row in rows}) < 2 or len(rows) < 4:
        return
    rules = [(mine, _shared_gain(rows, mine)) for mine in ("fan_in", "fan_out")]
    explained = {mine: sum(_has(row, mine, gain) for row in rows) for mine, gain in rules if gain is not None}
    if not explained:
        return
    mine = max(explained, key=explained.__getitem__)
    other = "fan_out" if mine == "fan_in" else "fan_in"
    gain = dict(rules)[mine]
    assert gain is not None
    blind = {name: fan for name, fan in BLIND.items() if name != "one std" or not _is_rule(rows, mine, gain)}
    if any(_explained(rows, fan) >= explained[mine] for fan in blind.values()):
        return
    bad = [row for row in rows if _has(row, other, gain) and not _has(row, mine, gain)]
    if bad:
        yield _finding(bad, mine, other, gain, _explained(rows, BLIND["one std"]) >= explained[mine])


def _finding(bad: list[Draw], mine: str, other: str, gain: float, alone: bool) -> Finding:
    """`alone`: one std explains them all as well, so that nobody need have meant a rule (StarCoder 2: 1/sqrt(3072))."""
    first = bad[0]
    expected = gain / math.sqrt(getattr(first, mine))
    mine_name, other_name = mine.replace("_", "-"), other.replace("_", "-")
    inits = {row.name: Init("keep", value=math.sqrt(getattr(row, other) / getattr(row, mine))) for row in bad}
    severity = "warning" if max(expected / first.std, first.std / expected) < 2 else "problem"
    return say(
        "note" if alone else severity,
        f"{first.name} has the std of its {other_name} where the model goes by {mine_name}",
        f"The other matrices have std = {gain:.3g} / sqrt({mine_name}); this one has it with the other fan, so its "
        "input and output sizes were swapped (a transposed weight, the wrong `mode`), or the model's width was "
        "taken for its own.",
        parameters=tuple(row.name for row in bad),
        evidence=(Datum(f"std of {first.name}", first.std, "weights", first.std * first.log_std_error, expected),),
        prescription=Prescription(
            f"multiply it by {expected / first.std:.4g}",
            f"std over what the {mine_name} asks",
            first.std / expected,
            1.0,
            "weights",
        ),
        edits=(edit(f"rescale {listed([row.name for row in bad])} to {gain:.3g} / sqrt({mine_name})", inits),),
    )


def _shared_gain(rows: list[Draw], fan: str) -> float | None:
    """`std * sqrt(fan)` where most matrices, of at least two sizes, share it; sizes of one tolerance are one size."""
    scaled = [replace(row, std=row.std * math.sqrt(getattr(row, fan))) for row in rows]
    usual = majority(scaled)
    if not usual:
        return None
    sizes, gain = [getattr(row, fan) for row in usual], math.exp(sum(math.log(row.std) for row in usual) / len(usual))
    return gain if max(sizes) >= APART * min(sizes) or _is_rule(rows, fan, gain) else None


def _is_rule(rows: list[Draw], fan: str, gain: float) -> bool:
    """Whether a gain is that of a rule and the std of no one's choice: 0.02 is 1 / sqrt(2500) by chance."""
    near = math.log(limit("known_factor"))
    size = Counter(getattr(row, fan) for row in rows).most_common(1)[0][0]
    std = gain / math.sqrt(size)
    return any(abs(math.log(gain / item)) < near for item in GAINS) and abs(math.log(std / float(f"{std:.1g}"))) > near


def _explained(rows: list[Draw], fan: Callable[[Draw], float]) -> int:
    """How many matrices share `std * sqrt(fan)`."""
    return len(majority([replace(row, std=row.std * math.sqrt(fan(row))) for row in rows]))


def _has(row: Draw, fan: str, gain: float) -> bool:
    allowed = math.log(limit("draw_alike")) + 6.0 * (0.0 if row.recorded else row.log_std_error)
    return abs(math.log(row.std * math.sqrt(getattr(row, fan)) / gain)) < allowed
