"""Where theory does not describe the model: it was trained, or measures otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.registry import check, say
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding


@check("trained", "theory", "the weights look trained, so their initialization is not judged")
def trained(subject: Subject) -> Iterator[Finding]:
    if subject.trained:
        yield say(
            "note",
            "this model looks trained: its initialization is not judged; theory describes a fresh one of its scales",
            "Gains of norms differ from channel to channel, or matrices have heavier tails than any initialization.",
            evidence=(Datum("share of norms whose gains are not constant", subject.moved_gains, "weights"),),
        )


@check("disagreement", "theory", "prediction and measurement differ beyond one initialization's chance")
def disagreement(subject: Subject) -> Iterator[Finding]:
    """The prediction takes entries as independent draws; what differs from it is trained, structured or unusual."""
    for stream in subject.streams:
        measured = {row.name: row for row in stream.rows(subject.measured)}
        found = []
        for row in stream.rows(subject.predicted):
            other = measured.get(row.name)
            if other is not None and row.variance > 0 and other.variance > 0:
                found.append((abs(math.log(row.variance / other.variance)), row, other))
        off = [item for item in found if item[0] > math.log(limit("disagreement"))]
        if not off or len(off) < limit("disagreement_share") * len(found):
            continue
        _, row, other = max(off, key=lambda item: item[0])
        yield say(
            "note",
            f"measured variance at {row.name} is {other.variance / row.variance:.3g} times the predicted one",
            "The weights are not independent (trained, copied, or structured), or the model does something that "
            "theory does not follow; findings go by the measurement.",
            sites=tuple(item.name for _, item, _ in off),
            depths=(off[0][1].depth, off[-1][1].depth),
            evidence=(
                Datum(f"variance at {row.name}", other.variance, "measured", expected=row.variance),
                Datum("share of blocks that disagree", len(off) / len(found), "measured"),
            ),
        )
