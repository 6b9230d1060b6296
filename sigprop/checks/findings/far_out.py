"""Numbers that lie far out: of the batch, in an exponential, in one channel."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.edits import edit
from sigprop.checks.registry import check, say
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results import Init
from sigprop.results.report import Datum, Finding, Prescription


@check("input_scale", "signal", "inputs that are large, or next to nothing, and enter without being normalized")
def input_scale(subject: Subject) -> Iterator[Finding]:
    """Root mean square of the numbers, and of what the first matrix makes of them; a norm behind it forgives both."""
    seen = subject.observed.inputs
    bad = {name: sizes for name, sizes in seen.items() if min(sizes[:2]) > limit("large_input")}
    small = not bad
    bad = bad or {name: sizes for name, sizes in seen.items() if 0 < sizes[0] < limit("small_input")}
    if not bad:
        return
    worst = max(bad, key=lambda name: bad[name][0])
    size, _, spread = bad[worst]
    inits = {
        f"{name}.weight": Init("keep", value=1 / bad[name][0])
        for name in bad
        if f"{name}.weight" in subject.draws.rows and bad[name][2] > 0.5 * bad[name][0]
    }
    because = f"The input of {worst} has root mean square {size:.3g}: it enters as it is, and nothing normalizes it."
    because += "" if inits else f" Nearly all of that is its mean; its std is {spread:.3g}."
    yield say(
        "problem" if size > 10 * limit("large_input") else "warning",
        f"the batch enters {worst} with root mean square {size:.3g} and leaves it with {bad[worst][1]:.3g}",
        f"{because} "
        + (
            "Biases and all that is added drown it"
            if small
            else "It drowns biases, positions and all that is added to it"
        )
        + f", and its gradient is as much too {'small' if small else 'large'}.",
        "LeCun et al. 1998, 'Efficient BackProp', section 4.3",
        sites=tuple(bad),
        evidence=(Datum(f"root mean square of the input of {worst}", size, "measured", expected=1.0),),
        prescription=Prescription(f"normalize the input: subtract its mean and divide it by its std, {spread:.3g}"),
        edits=(edit(f"divide the input by {size:.3g}, or, which is the same, {worst}.weight", inits),) if inits else (),
    )


MASKED = -50.0


@check("exponent", "signal", "exponentials of numbers that lie far out")
def exponent(subject: Subject) -> Iterator[Finding]:
    """The median of what is read; what is masked (below -50) is meant to vanish."""
    bad = {
        name: value
        for name, value in subject.observed.exponents.items()
        if abs(value) > limit("exponent") and value > MASKED
    }
    if not bad:
        return
    worst = max(bad, key=lambda name: abs(bad[name]))
    yield say(
        "problem",
        f"the exponential in {worst} reads {bad[worst]:.3g}: it makes {2.718281828 ** bad[worst]:.3g}",
        "A logarithm of a scale (a std, a temperature, a step size) starts so far out that what it scales drowns all "
        "else, or vanishes.",
        sites=tuple(bad),
        evidence=(Datum(f"median of what the exponential in {worst} reads", bad[worst], "measured", expected=0.0),),
        prescription=Prescription("start the logarithm near 0"),
    )


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
        yield say(
            "problem",
            f"channel {item.channel} of {worst} holds {item.channel_share:.0%} of the stream",
            "One channel is larger than all others together: a norm divides by it and leaves nothing of them. A bias, "
            "a gain or one row of a matrix was set far too large.",
            "Sun et al. 2024, 'Massive activations'",
            sites=tuple(found),
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
