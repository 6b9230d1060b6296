"""Attention that had a choice has none left: entropy collapsed while scores grew."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.monitoring.findings.base import RunContext, finding, problem, seen
from sigprop.monitoring.history import History
from sigprop.results.report import Finding

SHARP = 0.05
"""Share of the largest possible entropy, on average over all heads and queries of one attention."""
OPEN = 0.3
GROWTH = 5.0
SCORE = 30.0


@finding("attention_collapse", "tokens", unless="rate_too_high")
def attention_collapse(history: History, context: RunContext) -> Iterator[Finding]:
    if len(history) < 2:
        return
    now, names = history.samples[-1], []
    for name, row in now.sites.items():
        if not name.endswith("scores") or row.get("uniform_entropy", 0.0) <= 0.0:
            continue
        share = [
            e / u
            for e, u in zip(*(history.series("sites", name, k) for k in ("entropy", "uniform_entropy")), strict=True)
        ]
        scores = history.series("sites", name, "largest_score")
        grown = scores[-1] > SCORE and scores[-1] > GROWTH * abs(scores[0])
        if share[-1] < SHARP and share[0] > OPEN and grown:
            names.append(name)
    if names:
        row = now.sites[names[0]]
        yield problem(
            title=f"step {now.step}: attention looks at one token only at {len(names)} "
            f"place{'s' * (len(names) > 1)}, first {names[0]}",
            cause="Scores have grown until the softmax is a choice without gradient (Zhai et al. 2023): "
            "normalize queries and keys, or lower their learning rate.",
            sites=tuple(names),
            evidence=(
                seen("entropy in nats", row["entropy"], row["uniform_entropy"]),
                seen("largest score", row["largest_score"]),
            ),
        )
