"""effective: parts of the tangent kernel over sizes (eqs. 1.99 to 1.116), and rates by group in training (part II).

Vision (II.1): four ways to share a learning rate among the groups of a Vision Transformer; every matrix of the blocks
has the same rate under all four, so that best rates can be compared. Biases of the blocks are left out and gains of the
norms not trained. Language (II.2): an encoder-decoder on span denoising; weights start alike, nothing has a bias, gains
are not trained, embedding and readout are one matrix.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sigprop.models import build, vit
from sigprop.plans import ParameterPlan, Plan, ScalePlan
from sigprop.plans.scaling import GROUPS, family_factors
from sigprop.plans.scaling.expectations import fit_exponent
from sigprop.research.lab.trainer import Run
from sigprop.results.parameters import Init
from studies.reproduction import SEEDS, UNSEEN, Found, Reproduction, Row, Setting, mean_and_spread, told
from studies.trainings import (
    LETTERS,
    SPANNED,
    Program,
    accuracies,
    accuracy_of,
    best_of,
    cells_of,
    images_of,
    settings_on,
    trained,
)

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
        variance = family_factors(group, n, s, **sizes).init_variance
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
        factors = family_factors(group, setting["width"], s, **sizes)
        touched = gradient[gradient.abs().sum(-1) > 0] if group in ("vocabulary", "position") else gradient
        total, size = touched.square().sum().item(), touched.square().mean().sqrt().item()
        found[group] = factors.sgd * total, factors.adamw * total / size
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


# -- part II.1

STRATEGIES = ("standard", "neural-tangent", "hybrid", "maximal-update")
PAPER = {
    "standard": "80.8 %, most spikes", "neural-tangent": "better than standard, fewer spikes",
    "hybrid": "80.9 %, the best", "maximal-update": "80.6 %, the worst",
}  # fmt: skip
PATCH, CLASSES = 7 * 7, 10
SPIKE = 1.5
"""A spike begins where the loss exceeds this many times the median of the 20 steps before."""


def factors(strategy: str, width: int) -> dict[str, float]:
    """Rates of the other groups for a rate 1 of the blocks' matrices: the paper's table over its rows' bulk entry."""
    if strategy == "standard":
        return {"patch": 1.0, "position": 1.0, "head": 1.0, "head bias": 1.0}
    shared = {"neural-tangent": -0.5, "hybrid": -0.25, "maximal-update": 0.0}[strategy]
    bulk, outputs = width ** (shared - 1.0), CLASSES**-0.5
    return {
        "patch": width**shared / PATCH / bulk,
        "position": width**shared / bulk,
        "head": outputs / width / bulk,
        "head bias": outputs / bulk,
    }


def vision(width: int, depth: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = vit(width=width, depth=depth, heads=max(width // 32, 1), patch=7)
    for name, parameter in model.named_parameters():
        if "norm" in name or (name.endswith("bias") and name != "head.bias"):
            parameter.requires_grad_(False)
    return model


def plan_of(strategy: str, model: nn.Module, width: int) -> Plan:
    """The paper's initializations, the same for all but the head, and the strategy's rates."""
    given, rows = factors(strategy, width), []
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        if not parameter.requires_grad:
            init, rate = Init("constant", value=0.0 if name.endswith("bias") else 1.0), 1.0
        elif name.startswith("patch"):
            init, rate = Init("normal", std=PATCH**-0.5), given["patch"]
        elif name.startswith("position"):
            init, rate = Init("normal", std=0.02), given["position"]
        elif name == "head.weight":
            power = {"hybrid": -0.75, "maximal-update": -1.0}.get(strategy, -0.5)
            init, rate = Init("normal", std=width**power), given["head"]
        elif name == "head.bias":
            init, rate = Init("constant", value=0.0), given["head bias"]
        else:
            init, rate = Init("uniform", std=(2.0 / sum(shape)) ** 0.5), 1.0
        rows.append(ParameterPlan(name, shape, init, lr=rate))
    return Plan(rows)


def train_vision(
    setting: Setting, width: int, depth: int, powers: Sequence[int], seeds: Sequence[int], steps: int, batch: int
) -> dict[str, Any]:
    batches, tests = images_of(setting, batch)
    settings = settings_on(setting.device, steps, weight_decay=0.0, clip=0.0)

    def work(strategy: str) -> dict[str, Any]:
        plan = plan_of(strategy, vision(width, depth, 0), width)

        def network(seed: int) -> nn.Module:
            return plan.apply_(vision(width, depth, seed), torch.Generator().manual_seed(seed))

        def look(model: nn.Module, run: Run) -> dict[str, Any]:
            return {"accuracy": round(accuracy_of(model, *tests), 4), "spikes": spikes(run.losses, steps // 10)}

        return {"strategy": strategy, "runs": trained(network, cells_of(powers, seeds), batches, settings, plan, look)}

    found = [setting.part(strategy, work, strategy) for strategy in STRATEGIES]
    sizes = {"width": width, "depth": depth, "steps": steps, "batch": batch, "epochs": round(steps * batch / 60_000, 2)}
    return {**sizes, "rates": [2.0**power for power in powers], "seeds": seeds, "strategies": found}


def spikes(losses: list[float], warmup: int) -> int:
    """How often the loss jumps after the warm-up; a spike that lasts counts once."""
    count, inside = 0, False
    for step in range(max(warmup, 20), len(losses)):
        before = [value for value in losses[step - 20 : step] if math.isfinite(value)]
        above = not before or not losses[step] < SPIKE * statistics.median(before)
        count, inside = count + (above and not inside), above
    return count


def vision_rates(data: dict[str, Any]) -> Found:
    rows, means, jumps, rates = [], {}, {}, {}
    for item in data["strategies"]:
        name, (best, found) = item["strategy"], accuracies(item)
        means[name], rates[name] = statistics.mean(found), best
        jumps[name] = sum(one["spikes"] for one in item["runs"] if one["rate"] in (best, 2 * best))
        ours = f"{told(found)}, rate 2^{math.log2(best):.0f}, {jumps[name]} spikes at it and at twice it"
        rows.append(Row(f"{name}: test accuracy at its best rate", PAPER[name], ours))
    order = sorted(means, key=lambda name: -means[name])
    edges = [name for name, rate in rates.items() if rate in (data["rates"][0], data["rates"][-1])]
    why = f"{data['depth']} layers of width {data['width']}, {data['epochs']} epochs. In order: {', '.join(order)}."
    why += f" At the edge of the rates: {', '.join(edges)}." if edges else ""
    numbers = {"gain": means["neural-tangent"] - means["standard"]}
    numbers["fewer_spikes"] = jumps["standard"] - jumps["neural-tangent"]
    numbers |= {"place_of_hybrid": order.index("hybrid") + 1, "place_of_maximal": order.index("maximal-update") + 1}
    return Found(why, rows, numbers)


# -- part II.2

WAYS = ("standard", "neural-tangent")


def language(width: int, depth: int, context: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = build(
        "transformer", kind="encoder_decoder", width=width, depth=depth, heads=max(width // 32, 1), context=context,
        vocabulary=SPANNED, tied_head=True, bias=False,
    )  # fmt: skip
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.requires_grad_(False)
    return model


def plan_of_language(strategy: str, model: nn.Module, width: int) -> Plan:
    """Standard: embeddings of std 0.02, one rate. Neural-tangent: word embeddings of unit variance, the output times
    n^-1/2, rates of embeddings n times that of the others. Weights: 0.02 at width 1024, the same variance times width.
    """
    tangent, rows = strategy == "neural-tangent", []
    for name, parameter in model.named_parameters():
        init, rate = Init("normal", std=0.02 * (1024 / width) ** 0.5), 1.0
        if "norm" in name:
            init = Init("constant", value=0.0 if name.endswith("bias") else 1.0)
        elif "embedding" in name:
            std = 1.0 if tangent and name.startswith("token") else 0.02
            init, rate = Init("normal", std=std), width if tangent else 1.0
        rows.append(ParameterPlan(name, tuple(parameter.shape), init, lr=rate))
    return Plan(rows, scales=[ScalePlan("head", width**-0.5, "output")] if tangent else [])


def train_language(
    setting: Setting, width: int, depth: int, powers: Sequence[int], seeds: Sequence[int], passages: int, length: int,
    steps: int,
) -> dict[str, Any]:  # fmt: skip
    batches = Program(tuple(powers), tuple(seeds), passages, length, steps, objective="spans").batches(setting)
    settings = settings_on(setting.device, steps, decay="linear", final=0.0, weight_decay=0.0, clip=0.1)

    def work(strategy: str) -> dict[str, Any]:
        plan = plan_of_language(strategy, language(width, depth, length, 0), width)

        def network(seed: int) -> nn.Module:
            return plan.apply_(language(width, depth, length, seed), torch.Generator().manual_seed(seed))

        return {"strategy": strategy, "runs": trained(network, cells_of(powers, seeds), batches, settings, plan)}

    found = [setting.part(strategy, work, strategy) for strategy in WAYS]
    sizes = {"width": width, "depth": depth, "steps": steps, "batch": [passages, length], "text": setting.text_name}
    return {**sizes, "rates": [2.0**power for power in powers], "seeds": seeds, "strategies": found}


def language_rates(data: dict[str, Any]) -> Found:
    best = {item["strategy"]: best_of(item) for item in data["strategies"]}
    papers = {"standard": "higher", "neural-tangent": "lower; best rate of the weights the same"}
    rows = [
        Row(f"{name}: loss at its best rate", papers[name], f"{told(found.losses)}, rate 2^{math.log2(found.rate):.0f}")
        for name, found in best.items()
    ]
    standard, tangent = (best[name] for name in WAYS)
    gain = standard.mean - tangent.mean
    noise = math.hypot(mean_and_spread(standard.losses)[1], mean_and_spread(tangent.losses)[1])
    apart = abs(math.log2(standard.rate / tangent.rate))
    edges = [name for name, found in best.items() if found.rate in (data["rates"][0], data["rates"][-1])]
    why = f"{data['depth']} + {data['depth']} layers of width {data['width']}, {data['steps']} steps. Neural-tangent "
    why += f"scaling ends {gain:+.3f} below; the best rates are a factor {2**apart:g} apart."
    why += f" At the edge of the rates: {', '.join(edges)}." if edges else ""
    numbers = {"gain": gain, "spread": noise, "octaves_apart": apart, "higher_loss": max(standard.mean, tangent.mean)}
    return Found(why, rows, numbers)


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
    Reproduction(
        id="effective-vit",
        place="part II.1, Figs. 1 and 2, in reduced size",
        claim="Neural-tangent rates train a Vision Transformer better than a uniform one and with fewer spikes; the "
        "hybrid with maximal-update rates is the best of four, maximal-update the worst (80.9 to 80.6 %).",
        run=train_vision,
        figures=vision_rates,
        reproduced="gain > 0 and fewer_spikes >= 0 and place_of_hybrid == 1 and place_of_maximal == 4",
        in_order="gain > 0 and fewer_spikes >= 0",
        small={"width": 64, "depth": 3, "powers": tuple(range(-11, -6)), "seeds": SEEDS[:2], "steps": 200, "batch": 64},
        full={
            "width": 256, "depth": 6, "powers": tuple(range(-13, -8)), "seeds": SEEDS, "steps": 5000, "batch": 128,
        },
        minutes=(11, 8),
        deviation="Small images and a small model; the paper trains 12 x 768 on ImageNet for 300 epochs.",
        budget={"steps": 1000.0, "seeds": 3.0},
    ),
    Reproduction(
        id="effective-spans",
        place="part II.2, in reduced size",
        claim="Neural-tangent scaling of embeddings and rates trains an encoder-decoder to a lower span-denoising "
        "loss, "
        "and the best rate of the other weights stays what it is.",
        run=train_language,
        figures=language_rates,
        reproduced="gain > 2 * spread and octaves_apart <= 1",
        in_order="gain > 0",
        decided=f"higher_loss < {LETTERS}",
        small={
            "width": 64, "depth": 2, "powers": tuple(range(-10, -5)), "seeds": SEEDS[:2], "passages": 8, "length": 64,
            "steps": 200,
        },
        full={
            "width": 256, "depth": 4, "powers": tuple(range(-13, -8)), "seeds": SEEDS, "passages": 32, "length": 96,
            "steps": 5000,
        },
        minutes=(4, 8),
        deviation="A small model on bytes; the paper trains BART-large for 200,000 steps.",
        budget={"steps": 1000.0, "seeds": 3.0},
    ),
)  # fmt: skip
