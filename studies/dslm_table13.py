"""dslm Table 13 in reduced size: how a deep Pre-LN decoder with DeepScale's residual scales should be drawn.

The paper trains BERT of 192 x 256 and 96 x 512; here decoders on bytes, all four draws at one shape.
"""

from __future__ import annotations

from typing import Any

from studies.rate_runs import best_of
from studies.reproduction import MATRIX_XAVIER, ON_BYTES, Judgement, Reproduction, Row, Setting, told
from studies.text_runs import LETTERS, Method, Program, bytes_told

FULL = Program(tuple(2.0**-power for power in (12, 11, 10, 9)), (0, 1), 16, 128, 400)
SMALL = Program((2.0**-9, 2.0**-7), (0,), 4, 64, 150)
PAPER = {
    "Xavier": "38.2 (192 x 256)",
    "std 0.02": "20.5 (96 x 512)",
    "DeepScale, simple": "17.9 (192 x 256)",
    "DeepScale": "17.0 (192 x 256), 17.9 (96 x 512)",
}


def methods(depth: int, width: int) -> list[Method]:
    scales = ((1 - 2 / depth) ** 0.5, (2 / depth) ** 0.5)
    return [
        Method("Xavier", "xavier", "pre", depth, width, scales=scales),
        Method("std 0.02", "fixed", "pre", depth, width, scales=scales),
        Method("DeepScale, simple", "deepscale_simple", "pre", depth, width),
        Method("DeepScale", "deepscale", "pre", depth, width),
    ]


def run(setting: Setting) -> dict[str, Any]:
    program, shape = (FULL, (48, 128)) if setting.is_full else (SMALL, (24, 32))
    return program.record(methods(*shape), setting)


def judge(data: dict[str, Any]) -> Judgement:
    best = {item["label"]: best_of(item) for item in data["methods"]}
    rows = tuple(
        Row(f"{label}: loss at its best rate", f"perplexity {PAPER[label]}", f"{told(found.losses)}, {found.rate:.2g}")
        for label, found in best.items()
    )
    xavier, fixed, simple, ours = (best[label].mean for label in PAPER)
    first = data["methods"][0]
    said = f"{first['layers']} layers of width {first['width']}, {bytes_told(data['tokens'])}. Against "
    said += f"DeepScale Xavier ends {xavier - ours:+.3f}, std 0.02 {fixed - ours:+.3f}, the simple draw "
    said += f"{simple - ours:+.3f} (the paper: +0.81, +0.14 and +0.05 of loss)."
    if max(simple, ours) > LETTERS:
        return Judgement("too small to tell", f"Too small to tell: DeepScale learns no more than letters. {said}", rows)
    worse = xavier > ours and fixed > ours and simple < min(xavier, fixed)
    if worse and xavier - ours > 0.2:
        return Judgement("reproduced", said, rows)
    return Judgement("in order but not in size" if worse else "not reproduced", said, rows)


REPRODUCTION = Reproduction(
    id="dslm-table13",
    paper="dslm",
    place="Table 13, in reduced size",
    claim="With DeepScale's residual scales a deep Pre-LN model drawn by Xavier ends far above DeepScale's own draw "
    "(38.2 and 17.0), one drawn with std 0.02 above it (20.5 and 17.9), the simple draw close to it (17.9 and 17.0).",
    run=run,
    judge=judge,
    minutes=(3, 1),
    deviation=ON_BYTES + " " + MATRIX_XAVIER,
    budget=(("steps", 1000.0), ("seeds", 3.0)),
)
