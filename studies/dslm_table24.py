"""dslm Table 24: compute of BERT shapes with constant N d^2, counted operation by operation on the meta device.

256 tokens (Table 25), a vocabulary of 30,522 and an untied readout at every token, forward and backward. The paper
counts with Electra's script.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from sigprop.models import build
from studies.reproduction import Judgement, Reproduction, Row, Setting, verdict

SHAPES = {(12, 1024): 0.0, (48, 512): -2.5, (192, 256): 6.3, (784, 128): 30.6, (24, 1024): 0.0, (96, 512): 2.3}
"""Layers and width: the paper's percent of extra compute over the first shape of as many parameters."""
FIRST = {(48, 512): (12, 1024), (192, 256): (12, 1024), (784, 128): (12, 1024), (96, 512): (24, 1024)}
TOKENS, VOCABULARY = 256, 30_522


def run(setting: Setting) -> dict[str, Any]:
    found = []
    for layers, width in SHAPES:
        with torch.device("meta"):
            model = build(
                "transformer", kind="encoder", norm_placement="post", depth=layers, width=width, heads=width // 64,
                context=TOKENS, vocabulary=VOCABULARY,
            )  # fmt: skip
            ids = torch.zeros(1, TOKENS, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            model(ids).sum().backward()
        parameters = sum(parameter.numel() for parameter in model.parameters())
        found.append({"layers": layers, "width": width, "flops": counter.get_total_flops(), "parameters": parameters})
    return {"shapes": found, "tokens": TOKENS, "vocabulary": VOCABULARY, "seeds": []}


def judge(data: dict[str, Any]) -> Judgement:
    flops = {(item["layers"], item["width"]): item["flops"] for item in data["shapes"]}
    rows, apart = [], []
    for shape, first in FIRST.items():
        extra = 100 * (flops[shape] / flops[first] - 1)
        told = f"{shape[0]} x {shape[1]} against {first[0]} x {first[1]}: extra compute"
        rows.append(Row(told, f"{SHAPES[shape]:+.1f} %", f"{extra:+.1f} %"))
        apart.append(abs(extra - SHAPES[shape]))
    why = f"The count is within {max(apart):.1f} percentage points of the paper's."
    return Judgement(verdict(max(apart) < 5, max(apart) < 15), why, tuple(rows))


REPRODUCTION = Reproduction(
    id="dslm-table24",
    paper="dslm",
    place="Table 24",
    claim="At constant N d^2, 192 layers of width 256 cost 6 % more compute than 12 of 1024, and 784 of 128 31 % more.",
    run=run,
    judge=judge,
    minutes=(1, 1),
)
