"""preln: gradients by layer at the start (Theorem 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from sigprop.measurement import measure
from sigprop.models import build
from sigprop.models.layers import initialize_
from studies.reproduction import UNSEEN, Found, Reproduction, Row, Setting, power, rounded

TOKENS, VOCABULARY = 64, 256


def over_depths(setting: Setting, depths: Sequence[int], width: int, seeds: int, first: int) -> dict[str, Any]:
    """Encoders with Xavier weights: the norm of the gradient of each block's last mlp matrix."""
    chosen, rows = range(first, first + seeds), []
    for placement in ("pre", "post"):
        for depth in depths:
            given = (placement, depth, width, chosen, setting.device)
            rows.append(
                {"placement": placement, "depth": depth, **setting.part(f"{placement} {depth}", _norms, *given)}
            )
    return {"width": width, "tokens": TOKENS, "seeds": list(chosen), "rows": rows}


def _norms(placement: str, depth: int, width: int, seeds: range, device: str) -> dict[str, Any]:
    """Root of the mean squared norm of each block's gradient over initializations."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCABULARY, (1, TOKENS), generator=generator).to(device)
    targets = torch.randint(VOCABULARY, (TOKENS,), generator=generator).to(device)

    def made() -> nn.Module:
        shape = {"depth": depth, "width": width, "heads": width // 32, "context": TOKENS, "vocabulary": VOCABULARY}
        model = build("transformer", kind="encoder", norm_placement=placement, activation="relu", **shape)
        return initialize_(model, "xavier", embedding_std=1.0).to(device)

    profile = measure(
        None, ids, lambda logits: nn.functional.cross_entropy(logits[0], targets), build=made, seeds=seeds
    )
    rows = {row.name: row for row in profile.parameters}
    found = [rows[f"blocks.{number}.mlp.down.weight"] for number in range(depth)]
    return {"norms": rounded([(row.grad_second_moment * np.prod(row.shape)) ** 0.5 for row in found], 4)}


def gradients(data: dict[str, Any]) -> Found:
    ends: dict[str, list[float]] = {"pre": [], "post": []}
    rows, depths = [], sorted({item["depth"] for item in data["rows"]})
    for item in data["rows"]:
        first, last = item["norms"][0], item["norms"][-1]
        ends[item["placement"]].append(last)
        what = f"{item['placement'].capitalize()}-LN, {item['depth']} layers: gradient norm of the first, the last mlp"
        paper = "steady over layers" if item["placement"] == "pre" else "largest at the last"
        rows.append(Row(what, paper, f"{first:.3g}, {last:.3g}"))
    powers = {key: power(depths, values) for key, values in ends.items()}
    told_powers = f"{powers['pre']:+.2f}, {powers['post']:+.2f}"
    rows.append(Row("power of depth in the last layer's norm, Pre-LN, Post-LN", "-1/2, 0", told_powers))
    deepest = {item["placement"]: item["norms"] for item in data["rows"] if item["depth"] == depths[-1]}
    rise = deepest["post"][-1] / deepest["post"][0]
    above = min(post / pre for pre, post in zip(ends["pre"], ends["post"], strict=True))
    why = f"Width {data['width']}, {len(data['seeds'])} initializations. The last layer's gradient falls like depth to "
    why += f"the power {powers['pre']:+.2f} for Pre-LN and {powers['post']:+.2f} for Post-LN, whose last layer has "
    why += f"{rise:.2f} times the gradient of its first."
    numbers = {
        "power_pre": powers["pre"],
        "power_post": powers["post"],
        "post_over_pre": above,
        "last_over_first": rise,
    }
    return Found(why, rows, numbers)


ITEMS = (
    Reproduction(
        id="preln-gradients",
        place="Theorem 1",
        claim="The gradient of the last layer is of the order of one over the root of the depth for Pre-LN and does "
        "not "
        "depend on depth for Post-LN, where it is the largest.",
        run=over_depths,
        figures=gradients,
        reproduced="post_over_pre > 1 and last_over_first > 1 and abs(power_pre + 0.5) < 0.15 and abs(power_post) < "
        "0.15",
        in_order="post_over_pre > 1 and power_pre < -0.2",
        small={"depths": (6, 12, 24), "width": 64, "seeds": 16, "first": UNSEEN},
        full={"depths": (6, 12, 24, 48), "width": 256, "seeds": 32, "first": UNSEEN},
        budget={"seeds": 16.0},
    ),
)  # fmt: skip
