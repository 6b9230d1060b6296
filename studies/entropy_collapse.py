"""Entropy collapse of attention above beta_c = sqrt(2 / (1 - p)): arXiv 2505.24333, by simulation.

Tokens of correlation `p`, scores `beta sqrt(ln T)` times their normalized product through random query and key
matrices, as a random energy model: the entropy over `ln T` tends to `1 - (beta / beta_c)^2` below the critical value
and to 0 above it. At finite T it comes near from above; the limit is taken from a line in `1 / ln T`, at the critical
value, where the energy fluctuates by the root of `ln T`, from one in `1 / sqrt(ln T)`.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from studies.reproduction import Judgement, Reproduction, Row, Setting, mean_and_spread, verdict

CORRELATIONS = (0.0, 0.5)
RATIOS = (0.5, 0.75, 1.0, 1.5, 2.0)
"""beta over beta_c."""


def run(setting: Setting) -> dict[str, Any]:
    lengths = [2**power for power in (range(8, 17, 2) if setting.is_full else range(8, 15, 2))]
    draws, width = (16, 1024) if setting.is_full else (8, 512)
    rows = []
    for p in CORRELATIONS:
        for ratio in RATIOS:
            beta = ratio * math.sqrt(2.0 / (1.0 - p))
            entropies = [
                [_entropy(beta, p, length, width, seed, setting.device) for seed in range(draws)] for length in lengths
            ]
            rows.append({"correlation": p, "ratio": ratio, "beta": beta, "entropy": entropies})
    return {"lengths": lengths, "width": width, "seeds": list(range(draws)), "rows": rows}


def _entropy(beta: float, p: float, length: int, width: int, seed: int, device: str) -> float:
    """Mean entropy over `ln T` of 32 queries on `length` keys."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(count: int, shared: torch.Tensor) -> torch.Tensor:
        own = torch.randn(count, width, generator=generator)
        return (math.sqrt(p) * shared + math.sqrt(1.0 - p) * own).to(device)

    shared = torch.randn(width, generator=generator)
    product = (torch.randn(width, width, generator=generator) / width).to(device)
    scores = beta * math.sqrt(math.log(length)) * tokens(32, shared) @ product @ tokens(length, shared).T
    return float(torch.distributions.Categorical(logits=scores.double()).entropy().mean()) / math.log(length)


def judge(data: dict[str, Any]) -> Judgement:
    rows, below, above = [], [], []
    for row in data["rows"]:
        power = -0.5 if row["ratio"] == 1 else -1.0
        x = torch.tensor([math.log(length) ** power for length in data["lengths"]], dtype=torch.float64)
        means = torch.tensor([mean_and_spread(values)[0] for values in row["entropy"]], dtype=torch.float64)
        slope = ((x - x.mean()) * (means - means.mean())).sum() / ((x - x.mean()) ** 2).sum()
        limit = float(means.mean() - slope * x.mean())
        expected = max(1.0 - row["ratio"] ** 2, 0.0)
        spread = mean_and_spread(row["entropy"][-1])[1]
        told = f"{limit:.3f} (at {data['lengths'][-1]} tokens {means[-1]:.3f} ± {spread:.3f})"
        what = f"p = {row['correlation']:g}, beta = {row['ratio']:g} beta_c: entropy over ln T, T to infinity"
        rows.append(Row(what, f"{expected:.3f}", told))
        (below if row["ratio"] < 1 else above).append(abs(limit - expected))
    why = (
        f"Limits lie within {max(below):.3f} of theory below beta_c and within {max(above):.3f} at and above it, for "
        "both correlations; at finite length the transition is smooth."
    )
    fine, ordered = (max(below) < size and max(above) < 2 * size for size in (0.05, 0.15))
    return Judgement(verdict(fine, ordered), why, tuple(rows))


REPRODUCTION = Reproduction(
    id="others-entropy-collapse",
    paper="others",
    place="arXiv 2505.24333",
    claim="The entropy of attention over random scores collapses above beta_c = sqrt(2 / (1 - p)), p the correlation "
    "of the tokens.",
    run=run,
    judge=judge,
    minutes=(1, 1),
    budget=(("seeds", 8.0),),
)
