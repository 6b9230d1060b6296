"""effective, part II.1 in reduced size: four ways to share a learning rate among the groups of a Vision Transformer.

Standard, neural-tangent, maximal-update, and the geometric mean of the last two, on Fashion-MNIST; every matrix of the
blocks has the same rate under all four, so that best rates can be compared. As in the paper biases of the blocks are
left out and gains of the norms not trained; the paper trains 12 x 768 on ImageNet for 300 epochs.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.models import vit
from sigprop.plans import ParameterPlan, Plan
from sigprop.research.lab.data import ImageBatches, labelled_idx
from sigprop.research.lab.many import train_many
from sigprop.results.init import Init
from studies.rate_runs import Cell, best_of, rows_of, settings_on
from studies.reproduction import Judgement, Reproduction, Row, Setting, told

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


def network(width: int, depth: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = vit(width=width, depth=depth, heads=max(width // 32, 1), patch=7)
    for name, parameter in model.named_parameters():
        if "norm" in name or (name.endswith("bias") and name != "head.bias"):
            parameter.requires_grad_(False)
    return model


def plan_of(strategy: str, model: nn.Module, width: int) -> Plan:
    """The paper's draws, the same for all but the head, and the strategy's rates."""
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


def run(setting: Setting) -> dict[str, Any]:
    width, depth, powers, seeds, steps, batch = 256, 6, range(-13, -8), (0, 1, 2), 700, 128
    if not setting.is_full:
        width, depth, powers, seeds, steps, batch = 64, 3, range(-11, -6), (0, 1), 200, 64
    folder = setting.folder("fashion-mnist")
    images, labels = (values.to(setting.device) for values in labelled_idx(folder))
    tests = tuple(values.to(setting.device) for values in labelled_idx(folder, "t10k"))
    batches = ImageBatches(images, labels, batch)
    cells = [(2.0**power, seed) for power in powers for seed in seeds]
    found = []
    for strategy in STRATEGIES:
        work = (strategy, width, depth, cells, steps, batches, tests, setting.device)
        found.append(setting.part(strategy, lambda work=work: _trained(*work)))
        print(strategy, best_of(found[-1]), flush=True)
    sizes = {"width": width, "depth": depth, "steps": steps, "batch": batch, "epochs": round(steps * batch / 60_000, 2)}
    return {**sizes, "rates": [2.0**power for power in powers], "seeds": seeds, "strategies": found}


def _trained(
    strategy: str, width: int, depth: int, cells: list[Cell], steps: int, batches: ImageBatches,
    tests: tuple[Tensor, ...], device: str,
) -> dict[str, Any]:  # fmt: skip
    plan = plan_of(strategy, network(width, depth, 0), width)
    models = [plan.apply_(network(width, depth, seed), torch.Generator().manual_seed(seed)) for _, seed in cells]
    settings = settings_on(device, steps, weight_decay=0.0, clip=0.0)
    runs = train_many(models, batches, [rate for rate, _ in cells], settings, plan=plan)
    rows = [
        row | {"accuracy": round(accuracy_of(model, *tests), 4), "spikes": spikes(run.losses, steps // 10)}
        for row, run, model in zip(rows_of(cells, runs), runs, models, strict=True)
    ]
    return {"strategy": strategy, "runs": rows}


def spikes(losses: list[float], warmup: int) -> int:
    """How often the loss jumps after the warm-up; a spike that lasts counts once."""
    count, inside = 0, False
    for step in range(max(warmup, 20), len(losses)):
        before = [value for value in losses[step - 20 : step] if math.isfinite(value)]
        above = not before or not losses[step] < SPIKE * statistics.median(before)
        count, inside = count + (above and not inside), above
    return count


@torch.no_grad()
def accuracy_of(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    right = [(model(part).argmax(-1) == truth).sum() for part, truth in zip(images.split(1000), labels.split(1000))]  # noqa: B905
    return float(sum(right)) / len(labels)


def judge(data: dict[str, Any]) -> Judgement:
    rows, accuracy, jumps, rates = [], {}, {}, {}
    for item in data["strategies"]:
        name, best = item["strategy"], max_accuracy(item)
        chosen = [one for one in item["runs"] if one["rate"] == best]
        accuracy[name], rates[name] = [one["accuracy"] for one in chosen], best
        jumps[name] = sum(one["spikes"] for one in item["runs"] if one["rate"] in (best, 2 * best))
        ours = f"{told(accuracy[name])}, rate 2^{math.log2(best):.0f}, {jumps[name]} spikes at it and at twice it"
        rows.append(Row(f"{name}: test accuracy at its best rate", PAPER[name], ours))
    means = {name: statistics.mean(values) for name, values in accuracy.items()}
    order = sorted(means, key=lambda name: -means[name])
    edges = [name for name, rate in rates.items() if rate in (data["rates"][0], data["rates"][-1])]
    said = f"{data['depth']} layers of width {data['width']}, {data['epochs']} epochs. In order: {', '.join(order)}."
    said += f" At the edge of the rates: {', '.join(edges)}." if edges else ""
    better = means["neural-tangent"] > means["standard"]
    calmer = jumps["neural-tangent"] <= jumps["standard"]
    if better and calmer and order[0] == "hybrid" and order[-1] == "maximal-update":
        return Judgement("reproduced", said, tuple(rows))
    return Judgement("in order but not in size" if better and calmer else "not reproduced", said, tuple(rows))


def max_accuracy(item: dict[str, Any]) -> float:
    """The rate with the highest mean accuracy over seeds."""
    rates = sorted({one["rate"] for one in item["runs"]})
    return max(rates, key=lambda rate: statistics.mean(o["accuracy"] for o in item["runs"] if o["rate"] == rate))


REPRODUCTION = Reproduction(
    id="effective-vit",
    paper="effective",
    place="part II.1, Figs. 1 and 2, in reduced size",
    claim="Neural-tangent rates train a Vision Transformer better than a uniform one and with fewer spikes; the hybrid "
    "with maximal-update rates is the best of four, maximal-update the worst (80.9 to 80.6 %).",
    run=run,
    judge=judge,
    minutes=(4, 1),
    deviation="Three layers of width 64 on small images.",
    budget=(("steps", 1000.0), ("seeds", 3.0)),
)
