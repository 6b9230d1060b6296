"""Single channels that hold most of the stream."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding, Prescription

NARROWEST = 16


@check("massive_channel", "signal", "one channel holds most of the stream's second moment")
def massive_channel(subject: Subject) -> Iterator[Finding]:
    """For random weights the largest of n channels holds about 2 ln(n) / n of the second moment."""
    names = {name for stream in subject.streams for name in stream.names}
    wide = {name: item for name, item in subject.activity.items() if name in names and item.channels >= NARROWEST}
    found = {name: item for name, item in wide.items() if item.channel_share > limit("massive_channel")}
    if found:
        worst = max(found, key=lambda name: found[name].channel_share)
        item = found[worst]
        yield Finding(
            "massive_channel",
            "signal",
            "problem",
            f"channel {item.channel} of {worst} holds {item.channel_share:.0%} of the stream",
            "One channel is larger than all others together: a norm divides by it and leaves nothing of them. A bias, "
            "a gain or one row of a matrix was set far too large.",
            "Sun et al. 2024, 'Massive activations'",
            sites=tuple(found),
            depths=subject.depths_of(found),
            evidence=(
                Datum(
                    "share of the largest channel",
                    item.channel_share,
                    "measured",
                    expected=2 * math.log(item.channels) / item.channels,
                ),
            ),
            prescription=Prescription(f"look for a large entry {item.channel} in the biases and gains that feed it"),
        )
