"""dslm section 4.2: query and key weights of twice the Xavier standard deviation make gradients explode over depth.

A decoder and an encoder, Pre- and Post-LN, 128 Zipf-like tokens, measured: the mean square of the gradient at the first
block over that at the last, with doubled queries and keys over that without.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from sigprop.measurement import measure
from sigprop.models import build
from sigprop.models.layers import initialize_
from sigprop.results.profile import streams
from studies.reproduction import MATRIX_XAVIER, Judgement, Reproduction, Row, Setting
from studies.stack_accuracy import TOKENS, VOCABULARY, token_ids

CASES = tuple((kind, placement) for kind in ("encoder", "decoder") for placement in ("pre", "post"))


def run(setting: Setting) -> dict[str, Any]:
    layers, width, seeds = (192, 256, 4) if setting.is_full else (48, 64, 3)
    found = []
    for kind, placement in CASES:
        for factor in (1.0, 2.0):
            cell = (kind, placement, layers, width, factor, seeds, setting.device)
            found.append(setting.part(f"{kind} {placement} {factor:g}", lambda cell=cell: _grown(*cell)))
            print(found[-1], flush=True)
    return {"layers": layers, "width": width, "seeds": list(range(seeds)), "rows": found}


def _grown(
    kind: str, placement: str, layers: int, width: int, factor: float, seeds: int, device: str
) -> dict[str, Any]:
    ids = token_ids()[None].to(device)
    targets = ids[0].roll(-1)

    def made() -> nn.Module:
        model = build(
            "transformer", kind=kind, norm_placement=placement, depth=layers, width=width, heads=max(width // 64, 1),
            context=TOKENS, vocabulary=VOCABULARY, activation="relu",
        )  # fmt: skip
        initialize_(model, "xavier", embedding_std=1.0)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(("query.weight", "key.weight")):
                    parameter.mul_(factor)
        return model.to(device)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits[0], targets)

    growths = []
    for seed in range(seeds):
        profile = measure(None, ids, loss, build=made, seeds=[seed])
        rows = next(iter(streams(profile.sites).values()))
        growths.append(rows[0].grad_variance / rows[-1].grad_variance)
    return {"kind": kind, "placement": placement, "factor": factor, "growth": [float(f"{g:.4g}") for g in growths]}


def judge(data: dict[str, Any]) -> Judgement:
    medians = {
        (row["kind"], row["placement"], row["factor"]): sorted(row["growth"])[len(row["growth"]) // 2]
        for row in data["rows"]
    }
    rows, ratios = [], []
    for kind, placement in CASES:
        plain, doubled = medians[kind, placement, 1.0], medians[kind, placement, 2.0]
        ratios.append(doubled / plain)
        told = f"{plain:.3g} to {doubled:.3g}: {doubled / plain:.3g} times"
        rows.append(Row(f"{kind}, {placement}-LN: gradient growth, Xavier to doubled", "10,000 times", told))
    orders = max(math.log10(ratio) for ratio in ratios)
    why = f"{data['layers']} layers of width {data['width']}, medians over {len(data['seeds'])} draws: doubled queries "
    why += f"and keys change the growth of the mean square gradient by {min(ratios):.2g} to {max(ratios):.2g} times."
    verdict = "reproduced" if orders >= 3.5 else "in order but not in size" if orders >= 1 else "not reproduced"
    return Judgement(verdict, why, tuple(rows))


REPRODUCTION = Reproduction(
    id="dslm-query-key",
    paper="dslm",
    place="section 4.2",
    claim="Queries and keys drawn with twice Xavier's standard deviation make gradients explode 10,000 times over 192 "
    "layers.",
    run=run,
    judge=judge,
    minutes=(1, 3),
    deviation=MATRIX_XAVIER,
    budget=(("layers", 192.0), ("seeds", 3.0)),
)
