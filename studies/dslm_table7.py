"""dslm Table 7 in reduced size: a deep, thin Post-LN decoder against a shallow, wide one of as many parameters.

96 layers of width 128 have the `N d^2` of 6 layers of width 512. Both see the same text, bytes as tokens, at the same
learning rates; each method is judged at its own best rate. Those that learn are then trained four times as long at that
rate: what is deep may need longer.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from studies.rate_runs import best_of
from studies.reproduction import MATRIX_XAVIER, ON_BYTES, Judgement, Reproduction, Row, Setting, mean_and_spread, told
from studies.text_runs import LETTERS, Method, Program, bytes_told

FULL = Program(tuple(2.0**-power for power in (13, 12, 11)), (0, 1, 2), 16, 128, 1200)
SMALL = Program(tuple(2.0**-power for power in (9, 7)), (0, 1, 2), 4, 64, 200)
LONGER = 4

PAPER = {
    "deep, Xavier": "diverges (96 x 512)",
    "deep, DeepScale": "perplexity 10.8",
    "shallow, Xavier": "perplexity 11.6",
}


def methods(full: bool) -> list[Method]:
    deep, thin, shallow, wide = (96, 128, 6, 512) if full else (24, 32, 6, 64)
    return [
        Method("deep, Xavier", "xavier", "post", deep, thin),
        Method("deep, DeepScale", "deepscale", "post", deep, thin),
        Method("shallow, Xavier", "xavier", "post", shallow, wide),
    ]


def run(setting: Setting) -> dict[str, Any]:
    program = FULL if setting.is_full else SMALL
    made = methods(setting.is_full)
    record = program.record(made, setting)
    if setting.is_full:
        found = {item["label"]: best_of(item) for item in record["methods"]}
        longer, batches = replace(program, steps=LONGER * program.steps), program.batches(setting)
        record["longer"] = [
            longer.train(
                method,
                batches,
                setting,
                [(found[method.label].rate, seed) for seed in program.seeds],
                name=f"{method.label}, longer",
            )
            for method in made
            if found[method.label].mean < LETTERS
        ]
    return record


def judge(data: dict[str, Any]) -> Judgement:
    best = {item["label"]: best_of(item) for item in data["methods"]}
    xavier, scaled, shallow = (best[label] for label in ("deep, Xavier", "deep, DeepScale", "shallow, Xavier"))
    sizes = {item["label"]: f"{item['layers']} x {item['width']}" for item in data["methods"]}
    rows = tuple(
        Row(f"{label}, {sizes[label]}: loss at its best rate", PAPER[label], told(item.losses))
        for label, item in best.items()
    )
    if min(found.mean for found in best.values()) > LETTERS:
        why = f"Too small to tell: after {bytes_told(data['tokens'])} none of the three knows more than "
        return Judgement("too small to tell", why + "the frequencies of letters.", rows)
    fails = min(xavier.losses) > LETTERS
    excess = math.exp(scaled.mean - shallow.mean) - 1.0
    noise = math.hypot(mean_and_spread(scaled.losses)[1], mean_and_spread(shallow.losses)[1])
    better = shallow.mean - scaled.mean > 2 * noise
    said = f"{bytes_told(data['tokens'])} of {data['text']}. "
    said += "Deep Xavier fails. " if fails else f"Deep Xavier does not fail at its best rate ({xavier.mean:.3f}). "
    said += (
        f"DeepScale's perplexity is {abs(excess):.1%} {'below' if excess < 0 else 'above'} that of the shallow model"
        f"{'' if abs(shallow.mean - scaled.mean) > 2 * noise else ', within the spread'}."
    )
    if longer := {item["label"]: best_of(item) for item in data.get("longer", [])}:
        said += f" After {LONGER} times as many bytes: " + ", ".join(f"{k} {told(v.losses)}" for k, v in longer.items())
        said += "."
    if fails and better:
        return Judgement("reproduced", said, rows)
    if scaled.mean < xavier.mean:
        return Judgement("in order but not in size" if better else "not reproduced", said, rows)
    return Judgement("not reproduced", said, rows)


REPRODUCTION = Reproduction(
    id="dslm-table7",
    paper="dslm",
    place="Table 7, in reduced size",
    claim="At equal parameters and tokens a Post-LN decoder four times deeper and half as wide, with DeepScale, ends "
    "below the shallow vanilla one (10.8 against 11.6 perplexity); vanilla fails at that depth.",
    run=run,
    judge=judge,
    minutes=(4, 8),
    deviation=ON_BYTES + " " + MATRIX_XAVIER,
    budget=(("steps", 1000.0), ("seeds", 3.0)),
)
