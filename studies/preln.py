"""preln: gradients by layer at the start (Theorem 1), and what a learning-rate warm-up does for Post- and Pre-LN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from sigprop.measurement import measure
from sigprop.models import build
from sigprop.models.layers import initialize_
from studies.dslm_training import LIKE_THE_PAPER
from studies.reproduction import SEEDS, UNSEEN, Found, Reproduction, Row, Setting, power, rounded, told
from studies.trainings import LETTERS, PER_HEAD, Method, Program, best_of

TOKENS, VOCABULARY = 64, 256
KINDS = {"causal": "decoder", "masked": "encoder", "spans": "encoder-decoder"}


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


# -- warm-up

LEARNS = 0.1
"""A rate is usable if its mean loss lies within this of the placement's best one with warm-up."""
PAPERS = {
    ("post", True): "trains",
    ("post", False): "fails at ordinary rates",
    ("pre", True): "trains",
    ("pre", False): "trains as well",
}


def train_with_and_without(
    setting: Setting, objectives: Sequence[str], depth: int, width: int, warmup: float | int, **program: Any
) -> dict[str, Any]:
    """Each placement of each kind of model, with warm-up and without, over the rates."""
    found, described = [], {}
    for objective in objectives:
        for placement in ("post", "pre"):
            for steps in (warmup, 0):
                shared = Program(objective=objective, warmup=steps, **program)
                name = f"{objective}, {placement}, {'warm-up' if steps else 'none'}"
                method = Method(name, "xavier", placement, depth, width, options=PER_HEAD)
                found.append(shared.train(method, setting) | {"warmup": steps, "kind": KINDS[objective]})
                described = shared.described(setting)
    return {**described, "warmup": warmup, "methods": found}


def warm_up(data: dict[str, Any]) -> Found:
    """By kind of model: how many usable rates each placement loses without warm-up, and how much loss."""
    rows, numbers, said = [], {"usable_without": 0.0, "pre_lost": 0.0, "post_lost": 0.0, "margin": 9.0}, []
    numbers["worst_with_warmup"] = 0.0
    for kind in dict.fromkeys(item.get("kind", "decoder") for item in data["methods"]):
        mine = {(i["placement"], bool(i["warmup"])): i for i in data["methods"] if i.get("kind", "decoder") == kind}
        best = {key: best_of(item) for key, item in mine.items()}
        usable = {key: _usable(item, best[key[0], True].mean) for key, item in mine.items()}
        for (placement, warm), found in best.items():
            what = (
                f"{kind}, {placement.capitalize()}-LN {'with' if warm else 'without'} warm-up: loss at its best rate; "
            )
            ours = f"{told(found.losses)}; {usable[placement, warm]} of {len(data['rates'])}"
            rows.append(Row(what + "usable rates", PAPERS[placement, warm], ours))
        lost = {key: usable[key, True] - usable[key, False] for key in ("post", "pre")}
        worse = {key: best[key, False].mean - best[key, True].mean for key in ("post", "pre")}
        said.append(
            f"{kind}: without warm-up Post-LN loses {lost['post']} of its {usable['post', True]} usable rates and ends "
            f"{worse['post']:+.3f} at its best; Pre-LN loses {lost['pre']} of {usable['pre', True]} and ends "
            f"{worse['pre']:+.3f}."
        )
        numbers["usable_without"] = max(numbers["usable_without"], usable["post", False])
        numbers["pre_lost"] = max(numbers["pre_lost"], lost["pre"])
        numbers["post_lost"] = max(numbers["post_lost"], lost["post"])
        numbers["margin"] = min(numbers["margin"], lost["post"] - lost["pre"])
        numbers["worst_with_warmup"] = max(numbers["worst_with_warmup"], best["post", True].mean)
    return Found(f"{data['methods'][0]['layers']} layers. {' '.join(said)}", rows, numbers)


def _usable(item: dict[str, Any], best: float) -> int:
    """Rates whose mean loss over seeds is close to the best one."""
    by_rate: dict[float, list[float]] = {}
    for found in item["runs"]:
        loss = found.get("held_out", found["last"])
        by_rate.setdefault(found["rate"], []).append(float("inf") if loss is None else loss)
    return sum(sum(losses) / len(losses) < best + LEARNS for losses in by_rate.values())


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
    Reproduction(
        id="preln-warmup",
        place="section 3 of the paper; Fig. 1 of its supplement",
        claim="A Post-LN Transformer needs a learning-rate warm-up, a Pre-LN one trains without it.",
        run=train_with_and_without,
        figures=warm_up,
        reproduced="usable_without == 0 and pre_lost <= 0",
        in_order="margin > 0",
        decided=f"worst_with_warmup < {LETTERS}",
        small={
            "objectives": ("spans", "masked"), "depth": 2, "width": 64, "warmup": 0.2, "powers": (-9, -8, -7, -6),
            "seeds": SEEDS[:2], "passages": 4, "length": 64, "steps": 300, "clip": 0.0,
        },
        full={
            "objectives": ("spans", "masked"), "depth": 6, "width": 512, "powers": (-14, -13, -12, -11, -10, -9),
            "seeds": SEEDS, "passages": 32, "length": 128, "steps": 5000, "clip": 0.0, "dropout": 0.1,
            **LIKE_THE_PAPER, "warmup": 1000,
        },
        minutes=(5, 60),
        deviation="Restored spans and masked bytes in place of translation and BERT's pieces. The stored run is of an "
        "earlier protocol: decoders of 12 layers on bytes, rates 2^-12 to 2^-7, a warm-up of a tenth of the steps, no "
        "dropout.",
        budget={"steps": 5000.0, "seeds": 3.0},
    ),
)  # fmt: skip
