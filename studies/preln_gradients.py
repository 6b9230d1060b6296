"""preln Theorem 1: gradients of the mlp weights by layer at the start, Pre- and Post-LN, over depth.

Encoders of 6 to 48 layers, Xavier weights, measured: the norm of the gradient of each block's last mlp matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from sigprop.measurement import measure
from sigprop.models import build
from sigprop.models.layers import initialize_
from sigprop.plans.scaling.fit import fit_exponent
from studies.reproduction import Judgement, Reproduction, Row, Setting

TOKENS, VOCABULARY = 64, 256


def run(setting: Setting) -> dict[str, Any]:
    depths, width, seeds = ((6, 12, 24, 48), 256, 32) if setting.is_full else ((6, 12, 24), 64, 16)
    rows = []
    for placement in ("pre", "post"):
        for depth in depths:
            cell = (placement, depth, width, seeds, setting.device)
            norms = setting.part(f"{placement} {depth}", lambda cell=cell: {"norms": _norms(*cell)})["norms"]
            rows.append({"placement": placement, "depth": depth, "norms": norms})
            print(placement, depth, norms[0], norms[-1], flush=True)
    return {"width": width, "tokens": TOKENS, "seeds": list(range(seeds)), "rows": rows}


def _norms(placement: str, depth: int, width: int, seeds: int, device: str) -> list[float]:
    """Root of the mean squared norm of each block's gradient over draws."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCABULARY, (1, TOKENS), generator=generator).to(device)
    targets = torch.randint(VOCABULARY, (TOKENS,), generator=generator).to(device)

    def made() -> nn.Module:
        shape = {"depth": depth, "width": width, "heads": width // 32, "context": TOKENS, "vocabulary": VOCABULARY}
        model = build("transformer", kind="encoder", norm_placement=placement, activation="relu", **shape)
        initialize_(model, "xavier", embedding_std=1.0)
        return model.to(device)

    profile = measure(
        None, ids, lambda logits: nn.functional.cross_entropy(logits[0], targets), build=made, seeds=range(seeds)
    )
    rows = {row.name: row for row in profile.parameters}
    found = [rows[f"blocks.{number}.mlp.down.weight"] for number in range(depth)]
    return [float(f"{(row.grad_second_moment * np.prod(row.shape)) ** 0.5:.4g}") for row in found]


def judge(data: dict[str, Any]) -> Judgement:
    ends: dict[str, list[float]] = {"pre": [], "post": []}
    rows, depths = [], sorted({item["depth"] for item in data["rows"]})
    for item in data["rows"]:
        first, last = item["norms"][0], item["norms"][-1]
        ends[item["placement"]].append(last)
        what = f"{item['placement'].capitalize()}-LN, {item['depth']} layers: gradient norm of the first, the last mlp"
        paper = "steady over layers" if item["placement"] == "pre" else "largest at the last"
        rows.append(Row(what, paper, f"{first:.3g}, {last:.3g}"))
    powers = {key: fit_exponent(depths, np.array(values))[0] for key, values in ends.items()}
    rows.append(
        Row(
            "power of depth in the last layer's norm, Pre-LN, Post-LN",
            "-1/2, 0",
            f"{powers['pre']:+.2f}, {powers['post']:+.2f}",
        )
    )
    deepest = {item["placement"]: item["norms"] for item in data["rows"] if item["depth"] == depths[-1]}
    rising = deepest["post"][-1] > deepest["post"][0]
    larger = all(post > pre for pre, post in zip(ends["pre"], ends["post"], strict=True))
    why = f"Width {data['width']}, {len(data['seeds'])} draws. The last layer's gradient falls like depth to the power "
    why += f"{powers['pre']:+.2f} for Pre-LN and {powers['post']:+.2f} for Post-LN, whose last layer has "
    why += f"{'a larger' if rising else 'no larger'} gradient than its first."
    if larger and rising and abs(powers["pre"] + 0.5) < 0.15 and abs(powers["post"]) < 0.15:
        return Judgement("reproduced", why, tuple(rows))
    return Judgement(
        "in order but not in size" if larger and powers["pre"] < -0.2 else "not reproduced", why, tuple(rows)
    )


REPRODUCTION = Reproduction(
    id="preln-gradients",
    paper="preln",
    place="Theorem 1",
    claim="The gradient of the last layer is of the order of one over the root of the depth for Pre-LN and does not "
    "depend on depth for Post-LN, where it is the largest.",
    run=run,
    judge=judge,
    minutes=(1, 1),
    budget=(("seeds", 16.0),),
)
