"""dslm Table 4 in reduced size: Post-LN models of one number of parameters, shallow and wide to deep and thin.

The paper trains BERT of 12 x 1024 to 768 x 128; here decoders on bytes, at a quarter of the width and less. Every
method and shape has its own best rate.
"""

from __future__ import annotations

import math
from typing import Any

from studies.rate_runs import best_of
from studies.reproduction import MATRIX_XAVIER, ON_BYTES, Judgement, Reproduction, Row, Setting, told
from studies.text_runs import LETTERS, Method, Program, bytes_told

FULL = Program(tuple(2.0**-power for power in (13, 12, 11, 10)), (0, 1), 16, 128, 400)
SMALL = Program((2.0**-9, 2.0**-8), (0,), 4, 64, 200)
SHAPES = {True: ((6, 256), (24, 128), (96, 64)), False: ((2, 64), (8, 32), (32, 16))}
"""Constant N d^2, by scale."""
PAPER = {"Xavier": ("14.2", "14.8", "17.2 to diverged"), "DeepScale": ("15.5", "13.1", "12.9 to 18.4")}


def run(setting: Setting) -> dict[str, Any]:
    return shapes(setting, "post", FULL if setting.is_full else SMALL)


def shapes(setting: Setting, placement: str, program: Program) -> dict[str, Any]:
    """Both methods at every shape."""
    batches = program.batches(setting)
    found = []
    for depth, width in SHAPES[setting.is_full]:
        for label, recipe in (("Xavier", "xavier"), ("DeepScale", "deepscale")):
            method = Method(f"{label} {depth} x {width}", recipe, placement, depth, width)
            found.append(program.search(method, batches, setting) | {"method": label})
    return {**program.described(setting), "methods": found}


def rows_of(data: dict[str, Any], paper: dict[str, tuple[str, ...]]) -> tuple[Row, ...]:
    """Each method at each shape, shallow first."""
    rows = []
    for place, item in enumerate(data["methods"]):
        best = best_of(item)
        ours = f"{told(best.losses)}, rate {best.rate:.2g}"
        rows.append(Row(f"{item['label']}: loss at its best rate", paper[item["method"]][place // 2], ours))
    return tuple(rows)


def losses_of(data: dict[str, Any], method: str) -> list[float]:
    return [best_of(item).mean for item in data["methods"] if item["method"] == method]


def judge(data: dict[str, Any]) -> Judgement:
    xavier, scaled = (losses_of(data, method) for method in PAPER)
    rows = rows_of(data, PAPER)
    said = f"{bytes_told(data['tokens'])}. "
    if min(xavier[-1], scaled[-1]) > LETTERS:
        why = f"Too small to tell: neither of the deepest models learns more than letters. {said.strip()}"
        return Judgement("too small to tell", why, rows)
    fails = xavier[-1] > LETTERS or math.isinf(xavier[-1])
    trains = scaled[-1] < LETTERS
    helps = min(scaled[1:]) < min(xavier)
    said += (
        f"The deepest Xavier model {'fails' if fails else f'ends at {xavier[-1]:.3f}'}, the deepest DeepScale model "
    )
    said += (
        f"ends at {scaled[-1]:.3f}; the best deep DeepScale model ends {min(scaled[1:]) - min(xavier):+.3f} from the "
    )
    said += "best Xavier model of any shape."
    if fails and trains and helps:
        return Judgement("reproduced", said, rows)
    deep = trains and scaled[-1] < xavier[-1]
    return Judgement("in order but not in size" if deep else "not reproduced", said, rows)


REPRODUCTION = Reproduction(
    id="dslm-table4",
    paper="dslm",
    place="Table 4, in reduced size",
    claim="At constant N d^2 deep, thin Post-LN models with DeepScale end below the shallow vanilla one (12.9 and 14.2 "
    "perplexity); vanilla ones get worse with depth and diverge.",
    run=run,
    judge=judge,
    minutes=(3, 1),
    deviation=ON_BYTES + " " + MATRIX_XAVIER,
    budget=(("steps", 1000.0), ("seeds", 3.0)),
)
