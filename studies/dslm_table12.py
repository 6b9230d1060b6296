"""dslm Table 12 in reduced size: what of DeepScale a deep Post-LN decoder needs.

The paper trains BERT of 96 x 512; here decoders on bytes. Scaling skip and branch of a Post-LN block by the same number
(its beta^2 = 0.5) changes nothing before a norm, so that one row stands for the paper's "with or without".
"""

from __future__ import annotations

import math
from typing import Any

from studies.rate_runs import best_of
from studies.reproduction import MATRIX_XAVIER, ON_BYTES, Judgement, Reproduction, Row, Setting, told
from studies.text_runs import LETTERS, Method, Program, bytes_told

FULL = Program(tuple(2.0**-power for power in (13, 12, 11, 10)), (0, 1), 16, 128, 400)
SMALL = Program((2.0**-9, 2.0**-7), (0,), 4, 64, 150)
PAPER = {
    "Xavier": math.inf,
    "DeepScale's weights, beta^2 = 0.5": math.inf,
    "DeepScale, learned scales": 12.2,
    "DeepScale": 11.7,
}
"""Perplexities; infinite: diverged."""


def methods(depth: int, width: int) -> list[Method]:
    return [
        Method("Xavier", "xavier", "post", depth, width),
        Method("DeepScale's weights, beta^2 = 0.5", "deepscale", "post", depth, width, options=(("k", depth / 2),)),
        Method(
            "DeepScale, learned scales", "deepscale", "post", depth, width, surgery=True, options=(("learnable", True),)
        ),
        Method("DeepScale", "deepscale", "post", depth, width),
    ]


def run(setting: Setting) -> dict[str, Any]:
    program, shape = (FULL, (48, 128)) if setting.is_full else (SMALL, (24, 32))
    return program.record(methods(*shape), setting)


def judge(data: dict[str, Any]) -> Judgement:
    best = {item["label"]: best_of(item) for item in data["methods"]}
    rows = tuple(
        Row(
            f"{label}: loss at its best rate",
            "diverges" if PAPER[label] == math.inf else f"perplexity {PAPER[label]}",
            f"{told(found.losses)}, rate {found.rate:.2g}",
        )
        for label, found in best.items()
    )
    first = data["methods"][0]
    said = f"{first['layers']} layers of width {first['width']}, {bytes_told(data['tokens'])}. "
    learned = [best[label].mean for label, value in PAPER.items() if value < math.inf]
    failing = [best[label].mean for label, value in PAPER.items() if value == math.inf]
    if min(learned) > LETTERS:
        return Judgement(
            "too small to tell", f"Too small to tell: no method learns more than letters. {said.strip()}", rows
        )
    said += f"Without the scales the best loss is {min(failing):.3f}, with them {max(learned):.3f} or lower; learned "
    said += f"scales end {learned[0] - learned[1]:+.3f} from fixed ones (the paper: +0.04)."
    if min(failing) > LETTERS and max(learned) < LETTERS:
        return Judgement("reproduced", said, rows)
    return Judgement("in order but not in size" if max(learned) < min(failing) else "not reproduced", said, rows)


REPRODUCTION = Reproduction(
    id="dslm-table12",
    paper="dslm",
    place="Table 12, in reduced size",
    claim="A deep Post-LN model diverges with Xavier and with DeepScale's weights alone; with beta^2 = 2/N it trains, "
    "with learned scales a little worse than with fixed ones (12.2 and 11.7).",
    run=run,
    judge=judge,
    minutes=(3, 1),
    deviation=ON_BYTES + " " + MATRIX_XAVIER,
    budget=(("steps", 1000.0), ("seeds", 3.0)),
)
