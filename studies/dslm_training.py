"""dslm's trainings: Tables 4, 5 and 7 to 13 and Figs. 7 to 10, in reduced size.

Every method has its own best learning rate. Runs at full scale take the paper's optimizer: beta2 0.999, a warm-up in
steps, linear decay, Xavier per head.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sigprop.measurement import measure
from sigprop.models import vit
from sigprop.plans.scaling import plan as prescribe
from sigprop.research.lab.data import TextBatches
from sigprop.research.lab.trainer import Run
from sigprop.results.profile import streams
from studies.reproduction import (
    SEEDS,
    UNSEEN,
    Found,
    Reproduction,
    Row,
    Setting,
    error_of_difference,
    mean_and_spread,
    rounded,
    told,
)
from studies.trainings import (
    LETTERS,
    PER_HEAD,
    Best,
    Method,
    Program,
    accuracies,
    accuracy_of,
    best_of,
    cells_of,
    images_of,
    read_told,
    settings_on,
    trained,
)

BUDGET = {"steps": 1000.0, "seeds": 3.0}
PAPERS_BUDGET = {"steps": 5000.0, "seeds": 3.0}
ON_BYTES = (
    "Decoders on bytes of English text, of reduced size; the paper trains BERT on word pieces for 41 tokens a "
    "parameter."
)
EARLIER = (
    " The stored run is of an earlier protocol: Xavier per matrix (2/(d + d); the paper's is 2/(d + d_head) for "
    "queries, keys and values), beta2 0.95, a warm-up of a tenth of the steps, cosine decay."
)
LIKE_THE_PAPER = {"warmup": 1000, "betas": (0.9, 0.999), "decay": "linear", "final": 0.0}
SMALL = {"seeds": (UNSEEN,), "passages": 4, "length": 64, "steps": 150}
FULL = {"seeds": SEEDS, "passages": 16, "length": 128, "steps": 5000, **LIKE_THE_PAPER}


def by_label(data: dict[str, Any]) -> dict[str, Best]:
    return {item["label"]: best_of(item) for item in data["methods"]}


def size_of(data: dict[str, Any]) -> str:
    first = data["methods"][0]
    return f"{first['layers']} layers of width {first['width']}, {read_told(data)}"


# -- Tables 4 and 5: models of one number of parameters, shallow and wide to deep and thin

SHAPES = {
    "small": ((2, 64), (8, 32), (32, 16)),
    "full": ((6, 256), (24, 128), (96, 64)),
}
"""Constant N d^2."""
TABLE4 = {"Xavier": ("14.2", "14.8", "17.2 to diverged"), "DeepScale": ("15.5", "13.1", "12.9 to 18.4")}
TABLE5 = {
    "Xavier": ("29.4 (12 x 512)", "20.6 (96 x 512)", "19.8 to 26.9"),
    "DeepScale": ("26.0", "15.4", "17.0 to 25.9"),
}


def train_shapes(placement: str, setting: Setting, shapes: Sequence[tuple[int, int]], **program: Any) -> dict[str, Any]:
    """Both methods at every shape."""
    methods = [
        Method(f"{label} {depth} x {width}", recipe, placement, depth, width, options=options)
        for depth, width in shapes
        for label, recipe, options in (("Xavier", "xavier", PER_HEAD), ("DeepScale", "deepscale", ()))
    ]
    data = Program(**program).record(methods, setting)
    return data | {"methods": [item | {"method": item["label"].split()[0]} for item in data["methods"]]}


def shapes_of(data: dict[str, Any], paper: dict[str, tuple[str, ...]]) -> tuple[list[Row], list[list[float]]]:
    """The table, and the mean losses of each method, shallow first."""
    rows, losses = [], {method: [] for method in paper}
    for place, item in enumerate(data["methods"]):
        best = best_of(item)
        ours = f"{told(best.losses)}, rate {best.rate:.2g}"
        rows.append(Row(f"{item['label']}: loss at its best rate", paper[item["method"]][place // 2], ours))
        losses[item["method"]].append(best.mean)
    return rows, list(losses.values())


def table4(data: dict[str, Any]) -> Found:
    rows, (xavier, scaled) = shapes_of(data, TABLE4)
    fails = not xavier[-1] <= LETTERS
    ahead = min(xavier) - min(scaled[1:])
    why = f"{read_told(data)}. The deepest Xavier model "
    why += (
        f"{'fails' if fails else f'ends at {xavier[-1]:.3f}'}, the deepest DeepScale model ends at {scaled[-1]:.3f}; "
    )
    why += f"the best deep DeepScale model ends {-ahead:+.3f} from the best Xavier model of any shape."
    ends = {"deepest_xavier": xavier[-1], "deepest_deepscale": scaled[-1]}
    return Found(why, rows, {**ends, "deep_deepscale_ahead": ahead})


def table5(data: dict[str, Any]) -> Found:
    rows, (xavier, scaled) = shapes_of(data, TABLE5)
    gains = [before - after for before, after in zip(xavier, scaled, strict=True)]
    why = f"{read_told(data)}. From Xavier's loss DeepScale's is "
    why += f"{', '.join(f'{-gain:+.3f}' for gain in gains)} away, from the shallowest shape to the deepest (the paper: "
    why += "-0.12, -0.29, -0.04 to -0.15)."
    numbers = {"least_gain": min(gains), "largest_gain_of_deep": max(gains[1:]), "lowest_loss": min(*xavier, *scaled)}
    return Found(why, rows, numbers)


# -- Table 7: four times deeper and half as wide; the same as masked word pieces

TABLE7 = {
    ("pre", "shallow, Xavier"): "11.6, 10.4", ("pre", "deep, DeepScale"): "11.2, 10.1",
    ("post", "shallow, Xavier"): "12.7, 11.6", ("post", "deep, DeepScale"): "11.7, 10.8",
}  # fmt: skip
"""Perplexities of 12 x 1024 against 48 x 512, and of 24 x 1024 against 96 x 512."""


def train_pair(setting: Setting, shallow: tuple[int, int], deep: tuple[int, int], **program: Any) -> dict[str, Any]:
    """Both shapes with Xavier per head and with DeepScale, norms before and after."""
    shared = Program(**program)
    found = []
    for placement in ("pre", "post"):
        for name, shape in (("shallow", shallow), ("deep", deep)):
            for label, recipe, options in (("Xavier", "xavier", PER_HEAD), ("DeepScale", "deepscale", ())):
                method = Method(f"{name}, {label}", recipe, placement, *shape, options=options)
                found.append(shared.train(method, setting, name=f"{placement} {method.label}"))
    return {**shared.described(setting), "methods": found}


def pair(data: dict[str, Any]) -> Found:
    """The deep, thin DeepScale model against the shallow Xavier one at each placement."""
    best = {(item["placement"], item["label"]): best_of(item) for item in data["methods"]}
    sizes = {(item["placement"], item["label"]): f"{item['layers']} x {item['width']}" for item in data["methods"]}
    rows = [
        Row(f"{key[0]}-LN, {key[1]}, {sizes[key]}: loss at its best rate", TABLE7.get(key, ""), told(one.losses))
        for key, one in best.items()
    ]
    numbers = {"lowest_loss": min(one.mean for one in best.values())}
    why = f"{data['text']}, {read_told(data)}. "
    for placement in ("pre", "post"):
        shallow, scaled = (best.get((placement, label)) for label in ("shallow, Xavier", "deep, DeepScale"))
        gain, noise = math.nan, math.nan
        if shallow is not None and scaled is not None:
            gain, noise = shallow.mean - scaled.mean, error_of_difference(shallow.losses, scaled.losses)
            why += f"{placement.capitalize()}-LN: DeepScale's perplexity is {math.expm1(-gain):+.1%} from the shallow "
            why += f"model's, the loss {-gain:+.3f} ± {noise:.3f}. "
        numbers |= {f"gain_{placement}": gain, f"error_{placement}": noise}
    return Found(why.strip(), rows, numbers)


PAIR_RULE: dict[str, Any] = {
    "reproduced": "gain_pre > 2 * error_pre and gain_post > 2 * error_post",
    "in_order": "gain_pre + gain_post > 0 and (gain_pre > 2 * error_pre or gain_post > 2 * error_post)",
}


# -- Table 8: an encoder-decoder on restored spans

TABLE8 = {
    ("pre", "Xavier"): "24.9", ("pre", "DeepScale"): "25.6", ("post", "Xavier"): "21.9", ("post", "DeepScale"): "23.8",
}  # fmt: skip
"""BLEU; higher is better."""


def train_spans(
    setting: Setting, shallow: tuple[int, int], deep: tuple[int, int], powers: dict[str, Any], **program: Any
) -> dict[str, Any]:
    found, described = [], {}
    for placement in ("pre", "post"):
        shared = Program(powers=powers[placement], objective="spans", head=32, **program)
        for label, recipe, shape in (("Xavier", "xavier", shallow), ("DeepScale", "deepscale", deep)):
            options = PER_HEAD if recipe == "xavier" else ()
            method = Method(label, recipe, placement, *shape, options=options)
            found.append(shared.train(method, setting, name=f"{placement} {label}"))
        described = shared.described(setting)
    return {**described, "models": found}


def table8(data: dict[str, Any]) -> Found:
    best = {(item["placement"], item["label"]): best_of(item) for item in data["models"]}
    rows = [
        Row(
            f"{item['placement']}-LN, {item['label']}, {item['layers']} + {item['layers']} x {item['width']}: loss",
            f"BLEU {TABLE8[item['placement'], item['label']]}",
            told(best[item["placement"], item["label"]].losses),
        )
        for item in data["models"]
    ]
    gains = [best[kind, "Xavier"].mean - best[kind, "DeepScale"].mean for kind in ("pre", "post")]
    why = f"{data['steps']} steps. From the shallow model's loss the deep, thin one's is {-gains[0]:+.3f} (Pre-LN) and "
    why += f"{-gains[1]:+.3f} (Post-LN) away."
    lowest = min(found.mean for found in best.values())
    return Found(why, rows, {"least_gain": min(gains), "largest_gain": max(gains), "lowest_loss": lowest})


# -- Table 9: a Vision Transformer

TABLE9 = {"Xavier": "76.5 %, 79.8 % (90, 300 epochs)", "DeepScale": "77.2 %, 80.3 %"}


def train_vit(
    setting: Setting, shallow: tuple[int, int], deep: tuple[int, int], batch: int, steps: int, powers: Sequence[int],
    seeds: Sequence[int],
) -> dict[str, Any]:  # fmt: skip
    batches, tests = images_of(setting, batch)

    def work(recipe: str, shape: tuple[int, int]) -> dict[str, Any]:
        def made(seed: int) -> nn.Module:
            torch.manual_seed(seed)
            return vit(width=shape[1], depth=shape[0], heads=max(shape[1] // 32, 1), patch=7, activation="relu")

        plan = prescribe(
            made(0), recipe, batch=batches.images[:1].cpu(), **dict(PER_HEAD if recipe == "xavier" else ())
        )

        def look(model: nn.Module, run: Run) -> dict[str, Any]:
            return {"accuracy": round(accuracy_of(model, *tests), 4)}

        def network(seed: int) -> nn.Module:
            return plan.apply_(made(seed), torch.Generator().manual_seed(seed))

        settings = settings_on(setting.device, steps, weight_decay=0.01)
        runs = trained(network, cells_of(powers, seeds), batches, settings, plan, look)
        return {"layers": shape[0], "width": shape[1], "runs": runs}

    ways = (("Xavier", "xavier", shallow), ("DeepScale", "deepscale", deep))
    found = [{"label": label, **setting.part(label, work, recipe, shape)} for label, recipe, shape in ways]
    epochs = round(steps * batch / len(batches.images), 2)
    return {"steps": steps, "batch": batch, "epochs": epochs, "seeds": seeds, "models": found}


def table9(data: dict[str, Any]) -> Found:
    rows, found = [], {}
    for item in data["models"]:
        rate, found[item["label"]] = accuracies(item)
        what = f"{item['label']}, {item['layers']} x {item['width']}: test accuracy at its best rate"
        rows.append(Row(what, TABLE9[item["label"]], f"{told(found[item['label']])}, rate {rate:.2g}"))
    (before, one), (after, other) = (mean_and_spread(found[label]) for label in TABLE9)
    gain, noise = after - before, math.hypot(one, other)
    why = f"{data['epochs']} epochs. The accuracy of the deep, thin model is {gain:+.2%} away from the shallow one's, "
    return Found(why + f"± {noise:.2%} over seeds.", rows, {"gain": gain, "spread": noise})


# -- Table 10: ways to train a deep Transformer

TABLE10 = {
    "DeepScaleLM": (12.9, 11.7),
    "SkipInit": (15.1, 13.1),
    "LayerScale": (13.2, 14.4),
    "DeepNorm": (14.4, 13.4),
    "Value-SkipInit": (18.8, 17.1),
    "DSInit": (15.9, math.inf),
    "Bamboo": (17.1, math.inf),
    "ADMIN": (math.inf, 25.2),
    "ReZero": (math.inf, math.inf),
    "Noci": (math.inf, math.inf),
}
"""Perplexities at 192 x 256 and 96 x 512; infinite: diverged."""
RECIPES: dict[str, tuple[str, str, bool]] = {
    "DeepScaleLM": ("deepscale", "post", False),
    "SkipInit": ("skipinit", "none", True),
    "LayerScale": ("layer_scale", "pre", True),
    "DeepNorm": ("deepnorm", "post", False),
    "unit": ("unit", "pre", False),
}
"""Recipe, norm placement, and whether its scales are new parameters; `unit` is this package's own."""
TABLES = (0.02, 0.707)
"""Standard deviations of the embeddings: the usual one, and DeepScale's."""


def train_methods(setting: Setting, depth: int, width: int, **program: Any) -> dict[str, Any]:
    """Every method with both sizes of embeddings."""
    methods = [
        Method(f"{label}, tables {table}", recipe, placement, depth, width, surgery, table=table)
        for label, (recipe, placement, surgery) in RECIPES.items()
        for table in TABLES
    ]
    return Program(**program).record(methods, setting)


def table10(data: dict[str, Any]) -> Found:
    """Each method with the better of its tables."""
    every = by_label(data)
    order = sorted(every, key=lambda label: every[label].mean)
    rows = [
        Row(
            f"{place + 1}. {label}: loss at its best rate",
            ", ".join(
                "diverged" if value == math.inf else f"{value}" for value in TABLE10.get(label.partition(",")[0], ())
            ),
            f"{told(every[label].losses)}, rate {every[label].rate:.2g}",
        )
        for place, label in enumerate(order)
    ]
    best = {label.partition(",")[0]: every[label] for label in reversed(order)}
    rivals = [best[label] for label in TABLE10 if label in best and label != "DeepScaleLM"]
    first, ours = min(rivals, key=lambda one: one.mean), best["DeepScaleLM"]
    place = 1 + sum(one.mean < ours.mean for one in rivals)
    tops = {item["label"]: max(run["rate"] for run in item["runs"]) for item in data["methods"]}
    edges = [label for label in order if every[label].rate == tops[label]]
    why = f"{size_of(data)}. DeepScale is number {place} of the {len(rivals) + 1} methods of the paper that were run."
    why += f" Best at the highest rate tried: {', '.join(edges)}." if edges else ""
    missing = [label for label in TABLE10 if label not in best]
    why += f" Not run at this size: {', '.join(missing)}." if missing else ""
    lead = first.mean - ours.mean
    noise = error_of_difference(first.losses, ours.losses)
    share = sum(one.mean < LETTERS for one in best.values()) / len(best)
    return Found(why, rows, {"lead": lead, "error": noise, "share_that_learns": share})


# -- Table 11: cast to 8-bit floats

FORMATS = {"E5M2": torch.float8_e5m2, "E4M3": torch.float8_e4m3fn}
TABLE11 = {"baseline": {"E5M2": 1.05, "E4M3": 0.11}, "DeepScale": {"E5M2": 0.49, "E4M3": 0.06}}
"""Rise of the loss: logarithms of 42.5 / 14.8, 16.5 / 14.8, 21.4 / 13.1 and 13.9 / 13.1."""
EVALUATED = 8


def train_and_cast(setting: Setting, depth: int, width: int, **program: Any) -> dict[str, Any]:
    shared = Program(**program)
    methods = (
        Method("baseline", "xavier", "post", depth, width, options=PER_HEAD),
        Method("DeepScale", "deepscale", "post", depth, width, surgery=True),
    )
    batches = replace(shared.batches(setting), seed=1)

    def look(model: nn.Module, run: Run) -> dict[str, Any]:
        return {"seen": cast_losses(model, batches, setting.device)}

    return shared.record(methods, setting, look=look)


@torch.no_grad()
def cast_losses(model: nn.Module, batches: TextBatches, device: str) -> dict[str, float | None]:
    """Mean loss over passages that were not trained on in this order: as trained, and in every format."""
    found = {}
    for name, kind in {"float32": None, **FORMATS}.items():
        cast = copy.deepcopy(model).eval()
        if kind is not None:
            cast_(cast, kind)
        values = []
        for step in range(EVALUATED):
            batch = {key: value.to(device) for key, value in batches(step).items()}
            values.append(batches.loss(cast(batch["input_ids"]), batch).item())
        mean = sum(values) / len(values)
        found[name] = round(mean, 5) if mean < float("inf") else None
    return found


def cast_(model: nn.Module, kind: torch.dtype) -> None:
    """Weights and inputs of linear layers rounded, larger values to the largest one; nothing is rescaled."""
    largest = torch.finfo(kind).max

    def round_(values: Tensor) -> Tensor:
        return values.clamp(-largest, largest).to(kind).to(values.dtype)

    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.copy_(round_(module.weight))
            module.register_forward_pre_hook(lambda _, inputs: (round_(inputs[0]), *inputs[1:]))


def table11(data: dict[str, Any]) -> Found:
    rows, rises, best = [], {}, by_label(data)
    for item in data["methods"]:
        label = item["label"]
        seen = [run["seen"] for run in item["runs"] if run["rate"] == best[label].rate]
        for kind in FORMATS:
            values = [float("inf") if one[kind] is None else one[kind] - one["float32"] for one in seen]
            mean, spread = mean_and_spread(values)
            rises[label, kind] = mean
            what = f"{label}, {item['layers']} x {item['width']}: rise of the loss in {kind}"
            rows.append(Row(what, f"+{TABLE11[label][kind]}", f"{mean:+.4f} ± {spread:.4f} ({len(values)} seeds)"))
    why = f"Trained on {read_told(data)} to {best['baseline'].mean:.3f} (baseline) and "
    why += f"{best['DeepScale'].mean:.3f}."
    shares = {f"share_in_{kind}": rises["DeepScale", kind] / rises["baseline", kind] for kind in FORMATS}
    return Found(why, rows, shares | {"higher_loss": max(one.mean for one in best.values())})


# -- Tables 12 and 13: what of DeepScale a deep model needs

TABLE12 = {
    "Xavier": math.inf,
    "DeepScale's weights, beta^2 = 0.5": math.inf,
    "DeepScale, learned scales": 12.2,
    "DeepScale": 11.7,
}
"""Perplexities; infinite: diverged."""
TABLE13 = {
    "Xavier": "38.2 (192 x 256)",
    "std 0.02": "20.5 (96 x 512)",
    "DeepScale, simple": "17.9 (192 x 256)",
    "DeepScale": "17.0 (192 x 256), 17.9 (96 x 512)",
}


def train_parts(setting: Setting, depth: int, width: int, **program: Any) -> dict[str, Any]:
    """Table 12. Scaling both sides of a Post-LN sum alike (beta^2 = 0.5) changes nothing: one row for both."""
    weights = (("k", depth / 2),)
    methods = [
        Method("Xavier", "xavier", "post", depth, width, options=PER_HEAD),
        Method("DeepScale's weights, beta^2 = 0.5", "deepscale", "post", depth, width, options=weights),
        Method("DeepScale, learned scales", "deepscale", "post", depth, width, True, options=(("learnable", True),)),
        Method("DeepScale", "deepscale", "post", depth, width),
    ]
    return Program(**program).record(methods, setting)


def table12(data: dict[str, Any]) -> Found:
    best = by_label(data)
    rows = [
        Row(
            f"{label}: loss at its best rate",
            "diverges" if TABLE12[label] == math.inf else f"perplexity {TABLE12[label]}",
            f"{told(found.losses)}, rate {found.rate:.2g}",
        )
        for label, found in best.items()
    ]
    learned = [best[label].mean for label, value in TABLE12.items() if value < math.inf]
    failing = [best[label].mean for label, value in TABLE12.items() if value == math.inf]
    why = f"{size_of(data)}. Without the scales the best loss is {min(failing):.3f}, with them {max(learned):.3f} or "
    why += f"lower; learned scales end {learned[0] - learned[1]:+.3f} from fixed ones (the paper: +0.04)."
    numbers = {"without_scales": min(failing), "with_scales": max(learned), "lowest_loss": min(learned)}
    return Found(why, rows, numbers)


def train_starts(setting: Setting, depth: int, width: int, **program: Any) -> dict[str, Any]:
    """Table 13: four initializations under DeepScale's residual scales, norms before."""
    scales = ((1 - 2 / depth) ** 0.5, (2 / depth) ** 0.5)
    methods = [
        Method("Xavier", "xavier", "pre", depth, width, scales=scales, options=PER_HEAD),
        Method("std 0.02", "fixed", "pre", depth, width, scales=scales),
        Method("DeepScale, simple", "deepscale_simple", "pre", depth, width),
        Method("DeepScale", "deepscale", "pre", depth, width),
    ]
    return Program(**program).record(methods, setting)


def table13(data: dict[str, Any]) -> Found:
    best = by_label(data)
    rows = [
        Row(
            f"{label}: loss at its best rate", f"perplexity {TABLE13[label]}", f"{told(found.losses)}, {found.rate:.2g}"
        )
        for label, found in best.items()
    ]
    xavier, fixed, simple, ours = (best[label].mean for label in TABLE13)
    why = f"{size_of(data)}. Against DeepScale Xavier ends {xavier - ours:+.3f}, std 0.02 {fixed - ours:+.3f}, the "
    why += f"simple form {simple - ours:+.3f} (the paper: +0.81, +0.14 and +0.05 of loss)."
    above = {"xavier_above": xavier - ours, "fixed_above": fixed - ours, "simple_above": simple - ours}
    return Found(why, rows, above | {"higher_loss": max(simple, ours)})


# -- Figs. 7 to 10: profiles after training

LOOKED = 8
"""Passages that profiles are measured on."""
FIGURES7_10 = {"vanilla": "explodes", "beta^2 = 0.1": "vanishes", "beta^2 = 1/N": "conserved"}


def train_profiles(setting: Setting, depth: int, width: int, **program: Any) -> dict[str, Any]:
    shared = Program(**program)
    methods = (
        Method("vanilla", "xavier", "pre", depth, width, options=PER_HEAD),
        Method("beta^2 = 0.1", "deepscale", "pre", depth, width, surgery=True, options=(("k", 0.1 * depth),)),
        Method("beta^2 = 1/N", "deepscale", "pre", depth, width, surgery=True, options=(("k", 1.0),)),
    )
    batches = replace(shared.batches(setting), passages=LOOKED, seed=1)

    def look(model: nn.Module, run: Run) -> dict[str, Any]:
        return {"seen": profile_of(model, batches, setting.device)}

    found = []
    for method in methods:
        start = shared.plan(method, batches).apply_(shared.network(method, 0), torch.Generator().manual_seed(0))
        before = profile_of(start.to(setting.device), batches, setting.device)
        found.append(shared.train(method, setting, look=look) | {"at the start": before})
    return {**shared.described(setting), "methods": found}


def profile_of(model: nn.Module, batches: TextBatches, device: str) -> dict[str, list[float]]:
    """Variance and mean square gradient at the end of every block."""
    batch = {key: value.to(device) for key, value in batches(0).items()}
    profile = measure(model, batch["input_ids"], lambda logits: batches.loss(logits, batch))
    rows = next(iter(streams(profile.sites).values()))
    return {
        "variance": rounded([row.variance for row in rows]),
        "gradient": rounded([row.grad_variance for row in rows]),
    }


def figures7_10(data: dict[str, Any]) -> Found:
    def mean(item: dict[str, Any], key: str) -> Any:
        return np.exp(np.log([run["seen"][key] for run in item["runs"]]).mean(0))

    def fall(gradient: Any) -> float:
        return float(np.polyfit(np.log(np.arange(1, len(gradient) + 1)), np.log(np.array(gradient)), 1)[0])

    def growth(gradient: Any) -> float:
        return float(gradient[0] / gradient[-1])

    items = {item["label"]: item for item in data["methods"]}
    variance = mean(items["vanilla"], "variance")
    line = float(np.corrcoef(np.arange(1, len(variance) + 1), variance)[0, 1] ** 2)
    power, first = fall(mean(items["vanilla"], "gradient")), fall(items["vanilla"]["at the start"]["gradient"])
    after = {label: growth(mean(item, "gradient")) for label, item in items.items()}
    before = {label: growth(item["at the start"]["gradient"]) for label, item in items.items()}
    rows = [
        Row("vanilla: share of the variance over depth that a line explains, trained", "near 1", f"{line:.3f}"),
        Row("vanilla: power of depth in the gradient, at the start, trained", "-1", f"{first:.2f}, {power:.2f}"),
    ]
    rows += [
        Row(
            f"{label}: gradient at the first block over the last, at the start, trained",
            f"1, {FIGURES7_10[label]}" if label != "vanilla" else "explodes, explodes",
            f"{before[label]:.3g}, {after[label]:.3g}",
        )
        for label in items
    ]
    why = f"{items['vanilla']['layers']} layers of width {items['vanilla']['width']}, {data['steps']} steps. A line "
    why += (
        f"explains {line:.2f} of the trained vanilla network's variance over depth; its gradient falls like depth to "
    )
    why += (
        f"the power {power:.2f}, {first:.2f} at the start. beta^2 = 0.1 changes the gradient's ratio of first to last "
    )
    why += f"by {after['beta^2 = 0.1'] / before['beta^2 = 0.1']:.2g}, beta^2 = 1/N ends at {after['beta^2 = 1/N']:.2g}."
    numbers = {"line": line, "power": power, "fall": after["beta^2 = 0.1"] / before["beta^2 = 0.1"]}
    numbers |= {"kept": after["beta^2 = 1/N"], "vanished": after["beta^2 = 0.1"]}
    numbers["highest_loss"] = max(best_of(item).mean for item in items.values())
    return Found(why, rows, numbers)


# -- all

ITEMS = (
    Reproduction(
        id="dslm-table4",
        place="Table 4, in reduced size",
        claim="At constant N d^2 deep, thin Post-LN models with DeepScale end below the shallow vanilla one (12.9 and "
        "14.2 perplexity); vanilla ones get worse with depth and diverge.",
        run=partial(train_shapes, "post"),
        figures=table4,
        reproduced=f"not deepest_xavier <= {LETTERS} and deep_deepscale_ahead > 0",
        in_order="deepest_deepscale < deepest_xavier",
        decided=f"deepest_deepscale < {LETTERS}",
        small={"shapes": SHAPES["small"], "powers": (-9, -8), **SMALL, "steps": 200},
        full={"shapes": SHAPES["full"], "powers": (-13, -12, -11, -10), **FULL},
        minutes=(3, 15),
        deviation=ON_BYTES + EARLIER,
        budget=PAPERS_BUDGET,
    ),
    Reproduction(
        id="dslm-table5",
        place="Table 5, in reduced size",
        claim="At every depth a Pre-LN model with DeepScale ends below the vanilla one (17.0 for 19.8 at 192 x 256).",
        run=partial(train_shapes, "pre"),
        figures=table5,
        reproduced="least_gain > 0",
        in_order="largest_gain_of_deep > 0",
        decided=f"lowest_loss < {LETTERS}",
        small={"shapes": SHAPES["small"], "powers": (-8, -7), **SMALL, "steps": 200},
        full={"shapes": SHAPES["full"], "powers": (-12, -11, -10, -9), **FULL},
        minutes=(3, 15),
        deviation=ON_BYTES + EARLIER,
        budget=PAPERS_BUDGET,
    ),
    Reproduction(
        id="dslm-table7",
        place="Table 7, in reduced size",
        claim="At equal parameters and tokens a decoder four times deeper and half as wide, with DeepScale, ends below "
        "the shallow vanilla one, Pre-LN (11.2 against 11.6 perplexity) and Post-LN (11.7 against 12.7).",
        run=train_pair,
        figures=pair,
        **PAIR_RULE,
        decided=f"lowest_loss < {LETTERS}",
        small={"shallow": (2, 64), "deep": (8, 32), "powers": (-9, -7), **SMALL},
        full={"shallow": (6, 512), "deep": (24, 256), "powers": (-13, -12, -11, -10), **FULL},
        minutes=(3, 30),
        deviation=ON_BYTES + EARLIER + " It had 96 x 128 against 6 x 512, sixteen times deeper, and Post-LN alone; "
        "under the rule of then it was not reproduced.",
        budget=PAPERS_BUDGET,
    ),
    Reproduction(
        id="dslm-masked-pieces",
        place="Tables 4 and 5, the pair 6 x 512 and 24 x 256",
        claim="On masked word pieces with dropout 0.1 an encoder four times deeper and half as wide, with DeepScale, "
        "ends below the shallow vanilla one, Pre-LN and Post-LN.",
        run=train_pair,
        figures=pair,
        **PAIR_RULE,
        decided="lowest_loss < 6.5",
        small={
            "shallow": (2, 64), "deep": (8, 32), "powers": (-9, -7), **SMALL, "dropout": 0.1, "objective": "masked",
            "vocabulary": 512,
        },
        full={
            "shallow": (6, 512), "deep": (24, 256), "powers": (-13, -12, -11, -10), **FULL, "dropout": 0.1, "objective":
            "masked", "vocabulary": 8192,
        },
        minutes=(3, 40),
        deviation="Held-out loss of encoders of reduced size on English web text; the paper trains 12 to 768 layers on "
        "Pile-CC for 41 tokens a parameter.",
        budget=PAPERS_BUDGET,
    ),
    Reproduction(
        id="dslm-table8",
        place="Table 8, in reduced size",
        claim="An encoder-decoder four times deeper and half as wide with DeepScale is better than the vanilla one, "
        "Pre-LN (25.6 and 24.9 BLEU) and Post-LN (23.8 and 21.9).",
        run=train_spans,
        figures=table8,
        reproduced="least_gain > 0",
        in_order="largest_gain > 0",
        decided=f"lowest_loss < {LETTERS}",
        small={
            "shallow": (2, 64), "deep": (8, 32), "powers": {"pre": (-12, -11, -10, -9), "post": (-13, -12, -11, -10)},
            **SMALL, "passages": 8, "steps": 200,
        },
        full={
            "shallow": (3, 256), "deep": (12, 128), "powers": {"pre": (-12, -11, -10, -9), "post": (-13, -12, -11,
            -10)}, **FULL, "passages": 32, "length": 96,
        },
        minutes=(15, 15),
        deviation="Spans of bytes are restored; the paper translates speech." + EARLIER,
        budget=PAPERS_BUDGET,
    ),
    Reproduction(
        id="dslm-table9",
        place="Table 9, in reduced size",
        claim="A Vision Transformer four times deeper and half as wide with DeepScale is more accurate than the "
        "vanilla "
        "one (77.2 and 76.5 %).",
        run=train_vit,
        figures=table9,
        reproduced="gain > 0.0035",
        in_order="gain > 0",
        decided="abs(gain) > spread",
        small={
            "shallow": (2, 64), "deep": (8, 32), "batch": 64, "steps": 200, "powers": (-10, -9, -8), "seeds": SEEDS[:2],
        },
        full={
            "shallow": (6, 256), "deep": (24, 128), "batch": 128, "steps": 5000, "powers": (-12, -11, -10, -9),
            "seeds": SEEDS,
        },
        minutes=(4, 10),
        deviation="Small images and small models; the paper trains ViT on ImageNet. The stored run had Xavier per "
        "matrix.",
        budget=BUDGET,
    ),
    Reproduction(
        id="dslm-table10",
        place="Table 10, in reduced size",
        claim="Of ten methods for deep Transformers DeepScale reaches the lowest perplexity at both shapes; "
        "LayerScale, "
        "SkipInit and DeepNorm come next, ReZero, ADMIN and Noci diverge at one or both.",
        run=train_methods,
        figures=table10,
        reproduced="lead > 2 * error",
        in_order="lead > 0",
        decided="share_that_learns >= 0.5",
        small={"depth": 24, "width": 32, "powers": (-9, -7), **SMALL},
        full={"depth": 48, "width": 128, "powers": (-13, -12, -11, -10, -9), **FULL},
        minutes=(5, 60),
        deviation=ON_BYTES
        + " Four of the ten methods and one of this package, each with both sizes of embeddings."
        + EARLIER
        + " It had ten methods, tables of 0.707 under DeepScale and of 0.02 under the others, one seed for most.",
        budget=PAPERS_BUDGET,
    ),
    Reproduction(
        id="dslm-table11",
        place="Table 11, in reduced size",
        claim="Cast to 8-bit floats as it is, a DeepScale model loses about half of what the baseline loses "
        "(perplexity "
        "13.1 to 21.4 in E5M2, 13.9 in E4M3; baseline 14.8 to 42.5 and 16.5).",
        run=train_and_cast,
        figures=table11,
        reproduced="max(share_in_E5M2, share_in_E4M3) < 0.75",
        in_order="max(share_in_E5M2, share_in_E4M3) < 1",
        decided=f"higher_loss < {LETTERS}",
        small={"depth": 6, "width": 64, "powers": (-10, -8), **SMALL, "seeds": SEEDS, "steps": 400},
        full={"depth": 12, "width": 128, "powers": (-14, -13, -12, -11), **FULL},
        minutes=(4, 10),
        deviation=ON_BYTES + EARLIER,
        budget=PAPERS_BUDGET,
    ),
    Reproduction(
        id="dslm-table12",
        place="Table 12, in reduced size",
        claim="A deep Post-LN model diverges with Xavier and with DeepScale's weights alone; with beta^2 = 2/N it "
        "trains, with learned scales a little worse than with fixed ones (12.2 and 11.7).",
        run=train_parts,
        figures=table12,
        reproduced=f"not without_scales <= {LETTERS} and with_scales < {LETTERS}",
        in_order="with_scales < without_scales",
        decided=f"lowest_loss < {LETTERS}",
        small={"depth": 24, "width": 32, "powers": (-9, -7), **SMALL},
        full={"depth": 48, "width": 128, "powers": (-13, -12, -11, -10), **FULL},
        minutes=(4, 15),
        deviation=ON_BYTES + EARLIER,
        budget=PAPERS_BUDGET,
    ),
    Reproduction(
        id="dslm-table13",
        place="Table 13, in reduced size",
        claim="With DeepScale's residual scales a deep Pre-LN model initialized by Xavier ends far above DeepScale "
        "itself "
        "(38.2 and 17.0), one with std 0.02 above it (20.5 and 17.9), the simple form close to it (17.9 and 17.0).",
        run=train_starts,
        figures=table13,
        reproduced="xavier_above > 0.2 and fixed_above > 0 and simple_above < min(xavier_above, fixed_above)",
        in_order="xavier_above > 0 and fixed_above > 0 and simple_above < min(xavier_above, fixed_above)",
        decided=f"higher_loss < {LETTERS}",
        small={"depth": 24, "width": 32, "powers": (-9, -7), **SMALL},
        full={"depth": 48, "width": 128, "powers": (-12, -11, -10, -9), **FULL},
        minutes=(3, 15),
        deviation=ON_BYTES + EARLIER,
        budget=PAPERS_BUDGET,
    ),
    Reproduction(
        id="dslm-figures7-10",
        place="Figs. 7 to 10, in reduced size",
        claim="Trained Pre-LN models keep the linear variance and hyperbolic gradient they start with; with beta^2 = "
        "0.1 gradients vanish in training, with beta^2 = 1/N they do not.",
        run=train_profiles,
        figures=figures7_10,
        reproduced="line > 0.9 and power < -0.5 and fall < 0.3 and 1 / 3 < kept < 3",
        in_order="(line > 0.9 and power < -0.5) + (fall < 0.3) + (1 / 3 < kept < 3) >= 2 and vanished < kept",
        decided=f"highest_loss < {LETTERS}",
        small={"depth": 16, "width": 48, "powers": (-8,), **SMALL, "seeds": SEEDS[:2], "steps": 300},
        full={"depth": 48, "width": 128, "powers": (-10,), **FULL},
        minutes=(9, 10),
        deviation=ON_BYTES + EARLIER,
        budget=PAPERS_BUDGET,
    ),
)  # fmt: skip
