"""The first sample is not what theory expects of a fresh model."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.monitoring.findings.base import RunContext, finding, warning
from sigprop.monitoring.history import History
from sigprop.results.report import Datum, Finding

BAND = {"exact": 1.5, "asymptotic": 1.5, "quadrature": 1.5, "sampled": 2.0, "fitted": 2.0, "assumed": 4.0}
"""Factor by which one initialization may differ from its expectation, by the status of the prediction."""


@finding("off_prediction", "signal")
def off_prediction(history: History, context: RunContext) -> Iterator[Finding]:
    predicted = context.predicted
    if predicted is None or not context.fresh or len(history) != 1:
        return
    sample = history.samples[0]
    for row in predicted:
        measured = sample.sites.get(row.name, {}).get("variance", math.nan)
        if not (row.variance > 0.0 and measured > 0.0):
            continue
        if abs(math.log(measured / row.variance)) > math.log(BAND.get(row.status, 4.0)):
            yield warning(
                title=f"step {sample.step}: variance at {row.name} is {measured / row.variance:.2g} of the predicted",
                cause="It is the first place to leave the predicted band: the weights are not initialized as the "
                "prediction assumes, or they are trained already. `sigprop check` tells which.",
                sites=(row.name,),
                evidence=(Datum("variance", measured, "measured", expected=row.variance),),
            )
            return
