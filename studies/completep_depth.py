"""CompleteP's depth coordinate check: are changes of the stream per step the same at every depth?

Pre-LN decoders of width 64, AdamW, three steps, branches by no rule, by `1/sqrt(L)` (depth-muP) and by `1/L`
(CompleteP); the power of depth of every block's change after the last step is fitted over depths.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sigprop.models import build, sample_text, text_batch
from sigprop.plans.scaling import coord_check
from studies.reproduction import Judgement, Reproduction, Row, Setting

RULES = ("none", "sqrt", "linear")
STEPS = 3


def run(setting: Setting) -> dict[str, Any]:
    depths, seeds, width = ((2, 4, 8, 16, 32, 64), 4, 128) if setting.is_full else ((2, 4, 8, 16), 2, 32)
    batch = text_batch(sample_text(), 4, 32, 128).to(setting.device)

    def make(width: int, depth: int) -> nn.Module:
        with torch.device(setting.device):
            return build("transformer", vocabulary=128, context=32, width=width, depth=depth, heads=4)

    found = {}
    for rule in RULES:
        options: dict[str, Any] = {"depth_rule": rule, "steps": STEPS, "seeds": seeds, "lr": 2.0**-9}
        report = coord_check(make, [width], list(depths), batch=batch, **options)
        found[rule] = [
            {
                "name": item.name,
                "slope": round(item.exponent, 4),
                "low": round(item.low, 4),
                "high": round(item.high, 4),
            }
            for item in report.exponents
            if item.axis == "depth" and item.quantity == "change" and item.step == STEPS
        ]
    return {"depths": depths, "width": width, "seeds": list(range(seeds)), "exponents": found}


def judge(data: dict[str, Any]) -> Judgement:
    outputs = {
        rule: next(item for item in rows if item["name"] == "output") for rule, rows in data["exponents"].items()
    }
    names = {"none": "no rule", "sqrt": "branches 1/sqrt(L)", "linear": "branches 1/L (CompleteP)"}
    papers = {"none": "grows", "sqrt": "steady, features lazy inside", "linear": "0"}
    rows = tuple(
        Row(
            f"{names[rule]}: power of depth of the logits' change after {STEPS} steps",
            papers[rule],
            f"{item['slope']:+.2f} ({item['low']:+.2f} to {item['high']:+.2f})",
        )
        for rule, item in outputs.items()
    )
    slopes = {rule: item["slope"] for rule, item in outputs.items()}
    why = f"Over depths {data['depths'][0]} to {data['depths'][-1]} the change of the logits has power "
    why += ", ".join(f"{slopes[rule]:+.2f} with {names[rule]}" for rule in RULES) + "."
    if abs(slopes["linear"]) < 0.15 and slopes["none"] > 0.3:
        return Judgement("reproduced", why, rows)
    in_order = abs(slopes["linear"]) < abs(slopes["none"])
    return Judgement("in order but not in size" if in_order else "not reproduced", why, rows)


REPRODUCTION = Reproduction(
    id="others-completep-depth",
    paper="others",
    place="CompleteP (Dey et al. 2025), depth coordinate check",
    claim="With branches scaled by 1/L and its rates, the change of the output per step does not depend on depth; "
    "without a rule it grows.",
    run=run,
    judge=judge,
    minutes=(2, 1),
)
