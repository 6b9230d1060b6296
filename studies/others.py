"""Claims of other papers: changes over depth (CompleteP), entropy of attention.

Entropy (arXiv 2505.24333): tokens of correlation `p`, scores `beta sqrt(ln T)` times their normalized product through
random query and key matrices; the entropy over `ln T` tends to `1 - (beta / beta_c)^2` below the critical value and to
0 above it. At finite T it comes near from above; the limit is taken from a line in `1 / ln T`, at the critical value,
where the energy fluctuates by the root of `ln T`, from one in `1 / sqrt(ln T)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from sigprop.models import build, sample_text, text_batch
from sigprop.plans.scaling import coord_check
from studies.reproduction import UNSEEN, Found, Reproduction, Row, Setting, mean_and_spread, slope

# -- CompleteP's depth coordinate check

RULES = {"none": "no rule", "sqrt": "branches 1/sqrt(L)", "linear": "branches 1/L (CompleteP)"}
PAPERS = {"none": "grows", "sqrt": "steady, features lazy inside", "linear": "0"}
STEPS = 3


def over_depths(setting: Setting, depths: Sequence[int], seeds: int, width: int) -> dict[str, Any]:
    """The power of depth of every block's change after the last step, AdamW."""
    batch = text_batch(sample_text(), 4, 32, 128).to(setting.device)

    def make(width: int, depth: int) -> nn.Module:
        torch.manual_seed(torch.initial_seed() + UNSEEN)
        with torch.device(setting.device):
            return build("transformer", vocabulary=128, context=32, width=width, depth=depth, heads=4)

    found = {}
    for rule in RULES:
        options: dict[str, Any] = {"depth_rule": rule, "steps": STEPS, "seeds": seeds, "lr": 2.0**-9}
        report = coord_check(make, [width], list(depths), batch=batch, **options)
        found[rule] = [
            {"name": item.name}
            | {key: round(value, 4) for key, value in zip(("slope", "low", "high"), _interval(item), strict=True)}
            for item in report.exponents
            if item.axis == "depth" and item.quantity == "change" and item.step == STEPS
        ]
    return {"depths": depths, "width": width, "seeds": list(range(UNSEEN, UNSEEN + seeds)), "exponents": found}


def _interval(item: Any) -> tuple[float, float, float]:
    return item.exponent, item.low, item.high


def depth_powers(data: dict[str, Any]) -> Found:
    outputs = {rule: next(one for one in rows if one["name"] == "output") for rule, rows in data["exponents"].items()}
    rows = [
        Row(
            f"{RULES[rule]}: power of depth of the logits' change after {STEPS} steps",
            PAPERS[rule],
            f"{item['slope']:+.2f} ({item['low']:+.2f} to {item['high']:+.2f})",
        )
        for rule, item in outputs.items()
    ]
    powers = {f"power_{rule}": item["slope"] for rule, item in outputs.items()}
    why = f"Over depths {data['depths'][0]} to {data['depths'][-1]} the change of the logits has power "
    why += ", ".join(f"{powers[f'power_{rule}']:+.2f} with {RULES[rule]}" for rule in RULES) + "."
    return Found(why, rows, powers)


# -- entropy of attention over random scores

CORRELATIONS = (0.0, 0.5)
RATIOS = (0.5, 0.75, 1.0, 1.5, 2.0)
"""beta over beta_c."""


def simulate(setting: Setting, powers: Sequence[int], width: int, seeds: int, first: int) -> dict[str, Any]:
    lengths, chosen, rows = [2**power for power in powers], range(first, first + seeds), []
    for p in CORRELATIONS:
        for ratio in RATIOS:
            beta = ratio * math.sqrt(2.0 / (1.0 - p))
            entropies = [
                [_entropy(beta, p, length, width, seed, setting.device) for seed in chosen] for length in lengths
            ]
            rows.append({"correlation": p, "ratio": ratio, "beta": beta, "entropy": entropies})
    return {"lengths": lengths, "width": width, "seeds": list(chosen), "rows": rows}


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


def entropies(data: dict[str, Any]) -> Found:
    rows, below, above = [], [], []
    for row in data["rows"]:
        x = [math.log(length) ** (-0.5 if row["ratio"] == 1 else -1.0) for length in data["lengths"]]
        means = [mean_and_spread(values)[0] for values in row["entropy"]]
        limit = sum(means) / len(means) - slope(x, means) * sum(x) / len(x)
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
    return Found(why, rows, {"error_below": max(below), "error_above": max(above)})


ITEMS = (
    Reproduction(
        id="others-completep-depth",
        place="CompleteP (Dey et al. 2025), depth coordinate check",
        claim="With branches scaled by 1/L and its rates, the change of the output per step does not depend on depth; "
        "without a rule it grows.",
        run=over_depths,
        figures=depth_powers,
        reproduced="abs(power_linear) < 0.15 and power_none > 0.3",
        in_order="abs(power_linear) < abs(power_none)",
        small={"depths": (2, 4, 8, 16), "seeds": 4, "width": 32},
        full={"depths": (2, 4, 8, 16, 32, 64), "seeds": 4, "width": 128},
        minutes=(1, 1),
        budget={"seeds": 2.0},
    ),
    Reproduction(
        id="others-entropy-collapse",
        place="arXiv 2505.24333",
        claim="The entropy of attention over random scores collapses above beta_c = sqrt(2 / (1 - p)), p the "
        "correlation of the tokens.",
        run=simulate,
        figures=entropies,
        reproduced="error_below < 0.05 and error_above < 0.1",
        in_order="error_below < 0.15 and error_above < 0.3",
        small={"powers": tuple(range(8, 15, 2)), "width": 512, "seeds": 8, "first": UNSEEN},
        full={"powers": tuple(range(8, 17, 2)), "width": 1024, "seeds": 16, "first": UNSEEN},
        budget={"seeds": 8.0},
    ),
)  # fmt: skip
