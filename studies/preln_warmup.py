"""preln: Pre-LN and Post-LN decoders with and without a learning-rate warm-up, over learning rates.

The paper trains translation; here decoders of as many layers, six, on bytes, with its Xavier initialization. What is
compared is how much each placement loses when the warm-up is left out, at each placement's own best rate and at all
rates.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from studies.rate_runs import best_of
from studies.reproduction import Judgement, Reproduction, Row, Setting, told
from studies.text_runs import LETTERS, Method, Program

FULL = Program(tuple(2.0**-power for power in (14, 13, 12, 11, 10, 9)), (0, 1, 2), 16, 128, 600, clip=0.0)
SMALL = Program(tuple(2.0**-power for power in (9, 8, 7, 6)), (0, 1), 4, 64, 300, clip=0.0)
LEARNS = 0.1
"""A rate is usable if its mean loss lies within this of the placement's best one with warm-up."""


def run(setting: Setting) -> dict[str, Any]:
    program = FULL if setting.is_full else SMALL
    depth, width = (6, 256) if setting.is_full else (6, 64)
    batches = program.batches(setting)
    found = []
    for placement in ("post", "pre"):
        for warmup in (0.2, 0.0):
            method = Method(f"{placement}, {'warm-up' if warmup else 'none'}", "xavier", placement, depth, width)
            found.append(replace(program, warmup=warmup).train(method, batches, setting) | {"warmup": warmup})
    return {**program.described(setting), "methods": found}


def judge(data: dict[str, Any]) -> Judgement:
    best = {(item["placement"], bool(item["warmup"])): best_of(item) for item in data["methods"]}
    usable = {
        (item["placement"], bool(item["warmup"])): _usable(item, best[item["placement"], True].mean)
        for item in data["methods"]
    }
    papers = {
        ("post", True): "trains",
        ("post", False): "fails at ordinary rates",
        ("pre", True): "trains",
        ("pre", False): "trains as well",
    }
    rows = tuple(
        Row(
            f"{placement.capitalize()}-LN {'with' if warm else 'without'} warm-up: loss at its best rate; usable rates",
            papers[placement, warm],
            f"{told(found.losses)}; {usable[placement, warm]} of {len(data['rates'])}",
        )
        for (placement, warm), found in best.items()
    )
    lost = {placement: usable[placement, True] - usable[placement, False] for placement in ("post", "pre")}
    worse = {placement: best[placement, False].mean - best[placement, True].mean for placement in ("post", "pre")}
    said = (
        f"{data['methods'][0]['layers']} layers. "
        f"Without warm-up Post-LN loses {lost['post']} of its {usable['post', True]} usable rates and ends "
        f"{worse['post']:+.3f} at its best; Pre-LN loses {lost['pre']} of {usable['pre', True]} and ends "
        f"{worse['pre']:+.3f}."
    )
    if best["post", True].mean > LETTERS:
        why = f"Too small to tell: even with warm-up Post-LN stays at the frequencies of letters. {said}"
        return Judgement("too small to tell", why, rows)
    if usable["post", False] == 0 and lost["pre"] <= 0:
        return Judgement("reproduced", said, rows)
    in_order = (lost["post"], worse["post"]) > (lost["pre"], worse["pre"])
    return Judgement("in order but not in size" if in_order else "not reproduced", said, rows)


def _usable(item: dict[str, Any], best: float) -> int:
    """Rates whose mean loss over seeds is close to the best one."""
    by_rate: dict[float, list[float]] = {}
    for found in item["runs"]:
        by_rate.setdefault(found["rate"], []).append(math.inf if found["last"] is None else found["last"])
    return sum(sum(losses) / len(losses) < best + LEARNS for losses in by_rate.values())


REPRODUCTION = Reproduction(
    id="preln-warmup",
    paper="preln",
    place="section 3 of the paper; Fig. 1 of its supplement",
    claim="A Post-LN Transformer needs a learning-rate warm-up, a Pre-LN one trains without it.",
    run=run,
    judge=judge,
    minutes=(3, 2),
    deviation="Decoders on bytes; the paper trains translation with an encoder and a decoder, and BERT.",
    budget=(("steps", 1000.0), ("seeds", 3.0)),
)
