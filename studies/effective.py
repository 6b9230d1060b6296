"""effective: parts of the tangent kernel over sizes (eqs. 1.99 to 1.116)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sigprop.plans.scaling.expectations import fit_exponent
from studies.reproduction import UNSEEN, Found, Reproduction, Row, Setting

GROUPS = ("patch", "vocabulary", "position", "Q", "K", "V", "U", "W", "X", "head", "head_bias")


def family_factors(
    group: str, width: int, s: float = 0.0, *, expansion: float = 4.0, patch: int = 1, outputs: int = 1
) -> tuple[float, float, float]:
    """Init variance, SGD rate and AdamW rate of a group, each up to a constant (eqs. 1.25 to 1.34, 1.99 to 1.116).

    Variance `1 / fan_in` (head: `1 / n^{1+s}`), rates `n^s / fan_in` and `n^{s/2} / (fan_in sqrt(fan_out))`, those of
    the head and its bias without the power of n; a one-hot input or a bias has fan-in 1.
    """
    hidden = expansion * width
    fans = {
        "patch": (patch, width),
        "vocabulary": (1, width),
        "position": (1, width),
        "W": (width, hidden),
        "X": (hidden, width),
        "head": (width, outputs),
        "head_bias": (1, outputs),
    }
    fan_in, fan_out = fans.get(group, (width, width))
    variance = {"head": width ** -(1.0 + s), "head_bias": 0.0}.get(group, 1.0 / fan_in)
    lift = 1.0 if group.startswith("head") else width**s
    return variance, lift / fan_in, lift**0.5 / (fan_in * fan_out**0.5)


# -- one block (stem, attention, mlp, head) with the family's initialization: each group's contribution to a unit change
# of the output at its relative rate. SGD: lambda |g|^2; AdamW: lambda |g|^2 / rms(g), with g the gradient of the output
# along a random unit direction.

TOKENS, VOCABULARY = 6, 32
SETTING = {"width": 128, "expansion": 4, "patch": 48, "outputs": 16, "head_size": 16, "heads": 0}
SWEEPS: dict[str, list[int]] = {
    "width": [64, 128, 256, 512],
    "expansion": [1, 2, 4, 8],
    "patch": [16, 32, 64, 128],
    "outputs": [4, 16, 64, 256],
}


def gradients(setting: dict[str, int], s: float, language: bool, seed: int, device: str) -> dict[str, Tensor]:
    """Gradient of one token's output along a random unit direction, for every group that the stem has."""
    n, hidden = setting["width"], setting["width"] * setting["expansion"]
    heads = setting["heads"] or n // setting["head_size"]
    generator, inputs = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(10_000 + seed)

    def initialized(group: str, *shape: int) -> Tensor:
        sizes = {key: setting[key] for key in ("expansion", "patch", "outputs")}
        variance, _, _ = family_factors(group, n, s, **sizes)
        values = torch.randn(shape, generator=generator, dtype=torch.float64) * math.sqrt(variance)
        return values.to(device).requires_grad_()

    square = {group: initialized(group, n, n) for group in "QKVU"}
    weights = square | {
        "W": initialized("W", hidden, n),
        "X": initialized("X", n, hidden),
        "position": initialized("position", TOKENS, n),
    }
    weights |= {
        "head": initialized("head", setting["outputs"], n),
        "head_bias": initialized("head_bias", setting["outputs"]),
    }
    if language:
        ids = torch.randint(0, VOCABULARY, (TOKENS,), generator=inputs).to(device)
        weights["vocabulary"] = initialized("vocabulary", VOCABULARY, n)
        z = weights["vocabulary"][ids] + weights["position"]
    else:
        pixels = torch.randn(TOKENS, setting["patch"], generator=inputs, dtype=torch.float64).to(device)
        weights["patch"] = initialized("patch", n, setting["patch"])
        z = pixels @ weights["patch"].T + weights["position"]
    x = F.layer_norm(z, (n,), eps=0.0)
    q, k, v = ((x @ weights[group].T).unflatten(1, (heads, -1)).transpose(0, 1) for group in "QKV")
    mixed = (q @ k.mT / math.sqrt(n / heads)).softmax(-1) @ v
    z = z + mixed.transpose(0, 1).flatten(1) @ weights["U"].T
    z = z + F.gelu(F.layer_norm(z, (n,), eps=0.0) @ weights["W"].T) @ weights["X"].T
    f = F.layer_norm(z, (n,), eps=0.0) @ weights["head"].T + weights["head_bias"]
    direction = F.normalize(torch.randn(setting["outputs"], generator=generator, dtype=torch.float64), dim=0).to(device)
    found = torch.autograd.grad(f[-1] @ direction, list(weights.values()))
    return dict(zip(weights, found, strict=True))


def contributions(
    setting: dict[str, int], s: float, language: bool, seed: int, device: str
) -> dict[str, tuple[float, float]]:
    """(SGD, AdamW) contribution of every group."""
    sizes = {key: setting[key] for key in ("expansion", "patch", "outputs")}
    found = {}
    for group, gradient in gradients(setting, s, language, seed, device).items():
        _, sgd, adamw = family_factors(group, setting["width"], s, **sizes)
        touched = gradient[gradient.abs().sum(-1) > 0] if group in ("vocabulary", "position") else gradient
        total, size = touched.square().sum().item(), touched.square().mean().sqrt().item()
        found[group] = sgd * total, adamw * total / size
    return found


def sweep(along: str, s: float, language: bool, fixed_heads: bool, seeds: range, device: str) -> list[dict[str, Any]]:
    """Fitted slopes of every group along one size."""
    columns = []
    for value in SWEEPS[along]:
        setting = SETTING | {along: value} | ({"heads": 4} if fixed_heads else {})
        columns.append([contributions(setting, s, language, seed, device) for seed in seeds])
    rows = []
    for group in (group for group in GROUPS if group in columns[0][0]):
        for place, optimizer in enumerate(("sgd", "adamw")):
            sizes = np.array([[run[group][place] for run in column] for column in columns]).T
            slope, low, high = fit_exponent(SWEEPS[along], sizes)
            row = {"along": along, "s": s, "stem": "language" if language else "vision", "optimizer": optimizer}
            row |= {"heads": "fixed" if fixed_heads else "grow", "group": group}
            rows.append(row | {"slope": round(slope, 3), "low": round(low, 3), "high": round(high, 3)})
    return rows


def over_sizes(setting: Setting, seeds: int, first: int) -> dict[str, Any]:
    chosen = range(first, first + seeds)
    cases: list[tuple[str, float, bool, bool]] = [
        ("width", s, language, False) for s in (0.0, 1.0) for language in (False, True)
    ]
    cases += [("width", 0.0, False, True)] + [(along, 0.0, False, False) for along in ("expansion", "patch", "outputs")]
    rows = [row for case in cases for row in sweep(*case, chosen, setting.device)]
    return {"seeds": list(chosen), "setting": SETTING, "sweeps": SWEEPS, "rows": rows}


def slopes(data: dict[str, Any]) -> Found:
    """Every group's part of the tangent kernel is to have the same power 0 of every size."""
    rows, largest = [], {"QK": 0.0, "others": 0.0}
    for along in data["sweeps"]:
        for optimizer in ("sgd", "adamw"):
            mine = [row for row in data["rows"] if (row["along"], row["optimizer"]) == (along, optimizer)]
            worst = {
                "QK": max(abs(row["slope"]) for row in mine if row["group"] in "QK"),
                "others": max(abs(row["slope"]) for row in mine if row["group"] not in "QK"),
            }
            largest = {kind: max(largest[kind], worst[kind]) for kind in largest}
            ours = f"{worst['others']:.3f}; queries and keys {worst['QK']:.3f}"
            rows.append(Row(f"{optimizer} over {along}: largest power of a group", "0", ours))
    why = (
        f"Powers are at most {largest['others']:.2f}, those of queries and keys {largest['QK']:.2f}, whose gradients "
        "fluctuate most."
    )
    return Found(why, rows, {"power_of_queries_and_keys": largest["QK"], "power_of_others": largest["others"]})


ITEMS = (
    Reproduction(
        id="effective-slopes",
        place="eqs. 1.99 to 1.116",
        claim="With the family's initializations and rates every group of a Transformer takes the same part in the "
        "tangent kernel at any width, expansion, patch size and number of outputs.",
        run=over_sizes,
        figures=slopes,
        reproduced="power_of_queries_and_keys < 0.1 and power_of_others < 0.1",
        in_order="power_of_others < 0.1",
        small={"seeds": 8, "first": UNSEEN},
        full={"seeds": 32, "first": UNSEEN},
        minutes=(1, 3),
        budget={"seeds": 8.0},
    ),
)  # fmt: skip
