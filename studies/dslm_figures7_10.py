"""dslm Figs. 7 to 10 in reduced size: whether the profile of a deep Pre-LN decoder outlives training.

Vanilla Pre-LN after training: variance still linear in depth, gradient still hyperbolic (Figs. 7 and 8). DeepScale with
beta^2 = 0.1 at all depths against beta^2 = 1/N: whether gradients vanish (Figs. 9 and 10). The paper trains 48 to 64
layers for 50,000 to 150,000 steps.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from sigprop.measurement import measure
from sigprop.research.lab.data import TextBatches
from sigprop.results.profile import streams
from studies.rate_runs import best_of
from studies.reproduction import MATRIX_XAVIER, ON_BYTES, Judgement, Reproduction, Row, Setting
from studies.text_runs import LETTERS, Method, Program

FULL = Program((2.0**-10,), (0, 1, 2), 16, 128, 800)
SMALL = Program((2.0**-8,), (0, 1), 4, 64, 300)
LOOKED = 8
"""Passages that profiles are measured on."""


def run(setting: Setting) -> dict[str, Any]:
    program, (depth, width) = (FULL, (48, 128)) if setting.is_full else (SMALL, (16, 48))
    batches = program.batches(setting)
    methods = (
        Method("vanilla", "xavier", "pre", depth, width),
        Method("beta^2 = 0.1", "deepscale", "pre", depth, width, surgery=True, options=(("k", 0.1 * depth),)),
        Method("beta^2 = 1/N", "deepscale", "pre", depth, width, surgery=True, options=(("k", 1.0),)),
    )
    look = partial(profile_of, batches=TextBatches(batches.tokens, LOOKED, program.length, 1), device=setting.device)
    found = []
    for method in methods:
        item = program.train(method, batches, setting, look=look)
        start = look(method.drawn(0, batches).to(setting.device))
        found.append({**item, "at the start": start})
    return {**program.described(setting), "methods": found}


def profile_of(model: nn.Module, batches: TextBatches, device: str) -> dict[str, list[float]]:
    """Variance and mean square gradient at the end of every block."""
    batch = {key: value.to(device) for key, value in batches(0).items()}
    profile = measure(model, batch["input_ids"], lambda logits: batches.loss(logits, batch))
    rows = next(iter(streams(profile.sites).values()))
    return {
        "variance": [float(f"{row.variance:.5g}") for row in rows],
        "gradient": [float(f"{row.grad_variance:.5g}") for row in rows],
    }


def linearity(values: list[float]) -> float:
    """Share of the variance over depth that a straight line explains."""
    depth = np.arange(1, len(values) + 1)
    return float(np.corrcoef(depth, values)[0, 1] ** 2)


def hyperbola(gradient: list[float]) -> float:
    """Power of depth in the gradient; -1 is a hyperbola."""
    depth = np.arange(1, len(gradient) + 1)
    return float(np.polyfit(np.log(depth), np.log(np.array(gradient)), 1)[0])


def judge(data: dict[str, Any]) -> Judgement:
    by_label = {item["label"]: item for item in data["methods"]}
    seen = {label: _mean(item) for label, item in by_label.items()}
    start = {label: item["at the start"] for label, item in by_label.items()}
    vanilla = seen["vanilla"]
    line, power = linearity(vanilla["variance"]), hyperbola(vanilla["gradient"])
    first_power = hyperbola(start["vanilla"]["gradient"])
    growths = {label: values["gradient"][0] / values["gradient"][-1] for label, values in seen.items()}
    before = {label: values["gradient"][0] / values["gradient"][-1] for label, values in start.items()}
    rows = [
        Row("vanilla: share of the variance over depth that a line explains, trained", "near 1", f"{line:.3f}"),
        Row("vanilla: power of depth in the gradient, at the start, trained", "-1", f"{first_power:.2f}, {power:.2f}"),
    ]
    papers = {"vanilla": "explodes", "beta^2 = 0.1": "vanishes", "beta^2 = 1/N": "conserved"}
    rows += [
        Row(
            f"{label}: gradient at the first block over the last, at the start, trained",
            f"1, {papers[label]}" if label != "vanilla" else "explodes, explodes",
            f"{before[label]:.3g}, {growths[label]:.3g}",
        )
        for label in seen
    ]
    losses = {label: best_of(item).mean for label, item in by_label.items()}
    size = f"{by_label['vanilla']['layers']} layers of width {by_label['vanilla']['width']}, {data['steps']} steps"
    if max(losses.values()) > LETTERS:
        return Judgement("too small to tell", f"Too small to tell ({size}): not all networks learn.", tuple(rows))
    keeps = line > 0.9 and power < -0.5
    vanishes = growths["beta^2 = 0.1"] < 0.3 * before["beta^2 = 0.1"]
    conserved = 1 / 3 < growths["beta^2 = 1/N"] < 3
    said = f"{size}. The variance of the trained vanilla network is {'still' if line > 0.9 else 'no longer'} linear in "
    said += f"depth; its gradient falls like depth to the power {power:.2f}, {first_power:.2f} at the start. "
    said += f"beta^2 = 0.1 {'makes' if vanishes else 'does not make'} the gradient vanish, beta^2 = 1/N "
    said += f"{'conserves' if conserved else 'does not conserve'} it."
    right = sum((keeps, vanishes, conserved))
    ordered = math.log(growths["beta^2 = 0.1"]) < math.log(growths["beta^2 = 1/N"])
    verdict = "reproduced" if right == 3 else "in order but not in size" if right == 2 and ordered else "not reproduced"
    return Judgement(verdict, said, tuple(rows))


def _mean(item: dict[str, Any]) -> dict[str, list[float]]:
    """Geometric means over seeds."""
    runs = [run["seen"] for run in item["runs"]]
    return {key: list(np.exp(np.log([one[key] for one in runs]).mean(0))) for key in ("variance", "gradient")}


REPRODUCTION = Reproduction(
    id="dslm-figures7-10",
    paper="dslm",
    place="Figs. 7 to 10, in reduced size",
    claim="Trained Pre-LN models keep the linear variance and hyperbolic gradient they start with; with beta^2 = 0.1 "
    "gradients vanish in training, with beta^2 = 1/N they do not.",
    run=run,
    judge=judge,
    minutes=(3, 1),
    deviation=ON_BYTES + " " + MATRIX_XAVIER,
    budget=(("steps", 1000.0), ("seeds", 3.0)),
)
