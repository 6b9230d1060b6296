"""Numbers of the batch that enter a matrix as they are, and are large."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.edits import edit
from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results import Init
from sigprop.results.report import Datum, Finding, Prescription


@check("input_scale", "signal", "inputs that are large and enter without being normalized")
def input_scale(subject: Subject) -> Iterator[Finding]:
    """Root mean square of the numbers, and of what the first matrix makes of them; a norm behind it forgives both."""
    bad = {name: sizes for name, sizes in subject.observed.inputs.items() if min(sizes) > limit("large_input")}
    if not bad:
        return
    worst = max(bad, key=lambda name: bad[name][0])
    size = bad[worst][0]
    inits = {
        f"{name}.weight": Init("keep", value=1 / bad[name][0]) for name in bad if f"{name}.weight" in subject.draws.rows
    }
    because = f"The input of {worst} has root mean square {size:.3g}: it enters as it is, and nothing normalizes it."
    yield Finding(
        "input_scale",
        "signal",
        "problem" if size > 10 * limit("large_input") else "warning",
        f"the batch enters {worst} with root mean square {size:.3g} and leaves it with {bad[worst][1]:.3g}",
        f"{because} It drowns biases, positions and all that is added to it, and its gradient is as much too large.",
        "LeCun et al. 1998, 'Efficient BackProp', section 4.3",
        sites=tuple(bad),
        evidence=(Datum(f"root mean square of the input of {worst}", size, "measured", expected=1.0),),
        prescription=Prescription(f"normalize the input: subtract its mean and divide it by its std, {size:.3g}"),
        edits=(edit(f"divide the input by {size:.3g}, or, which is the same, {worst}.weight", inits),) if inits else (),
    )
