"""dslm Table 9 in reduced size: a Vision Transformer four times deeper and half as wide, with DeepScale.

The paper trains on ImageNet; here Fashion-MNIST, Pre-LN, test accuracy of each model at its own best rate.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.api import plan as prescribe
from sigprop.models import vit
from sigprop.research.lab.data import ImageBatches, labelled_idx
from sigprop.research.lab.many import train_many
from studies.effective_vit import accuracy_of, max_accuracy
from studies.rate_runs import Cell, rows_of, settings_on
from studies.reproduction import Judgement, Reproduction, Row, Setting, mean_and_spread, told

PAPER = {"Xavier": "76.5 %, 79.8 % (90, 300 epochs)", "DeepScale": "77.2 %, 80.3 %"}


def network(depth: int, width: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return vit(width=width, depth=depth, heads=max(width // 32, 1), patch=7, activation="relu")


def run(setting: Setting) -> dict[str, Any]:
    shallow, deep, batch, steps, powers, seeds = (6, 256), (24, 128), 128, 700, (12, 11, 10, 9), (0, 1, 2)
    if not setting.is_full:
        shallow, deep, batch, steps, powers, seeds = (2, 64), (8, 32), 64, 200, (10, 9, 8), (0, 1)
    folder = setting.folder("fashion-mnist")
    images, labels = (values.to(setting.device) for values in labelled_idx(folder))
    tests = tuple(values.to(setting.device) for values in labelled_idx(folder, "t10k"))
    batches = ImageBatches(images, labels, batch)
    cells = [(2.0**-power, seed) for power in powers for seed in seeds]
    found = []
    for label, recipe, shape in (("Xavier", "xavier", shallow), ("DeepScale", "deepscale", deep)):
        work = (label, recipe, shape, cells, steps, batches, tests, setting.device)
        found.append(setting.part(label, lambda work=work: _trained(*work)))
    sizes = {"steps": steps, "batch": batch, "epochs": round(steps * batch / len(images), 2)}
    return {**sizes, "rates": [2.0**-power for power in powers], "seeds": seeds, "models": found}


def _trained(
    label: str, recipe: str, shape: tuple[int, int], cells: list[Cell], steps: int, batches: ImageBatches,
    tests: tuple[Tensor, ...], device: str,
) -> dict[str, Any]:  # fmt: skip
    plan = prescribe(network(*shape, 0), recipe, batch=batches.images[:1].cpu())
    models = [plan.apply_(network(*shape, seed), torch.Generator().manual_seed(seed)) for _, seed in cells]
    settings = settings_on(device, steps, weight_decay=0.01)
    runs = train_many(models, batches, [rate for rate, _ in cells], settings, plan=plan)
    rows = [
        row | {"accuracy": round(accuracy_of(model, *tests), 4)}
        for row, model in zip(rows_of(cells, runs), models, strict=True)
    ]
    return {"label": label, "layers": shape[0], "width": shape[1], "runs": rows}


def judge(data: dict[str, Any]) -> Judgement:
    rows, found = [], {}
    for item in data["models"]:
        rate = max_accuracy(item)
        values = [one["accuracy"] for one in item["runs"] if one["rate"] == rate]
        found[item["label"]] = values
        what = f"{item['label']}, {item['layers']} x {item['width']}: test accuracy at its best rate"
        rows.append(Row(what, PAPER[item["label"]], f"{told(values)}, rate {rate:.2g}"))
    (before, one), (after, other) = (mean_and_spread(found[label]) for label in PAPER)
    noise = math.hypot(one, other)
    said = f"{data['epochs']} epochs. The accuracy of the deep, thin model is {after - before:+.2%} away from the "
    said += f"shallow one's, ± {noise:.2%} over seeds."
    if abs(after - before) <= noise:
        return Judgement("too small to tell", f"Too small to tell. {said}", tuple(rows))
    return Judgement("reproduced" if after > before else "not reproduced", said, tuple(rows))


REPRODUCTION = Reproduction(
    id="dslm-table9",
    paper="dslm",
    place="Table 9, in reduced size",
    claim="A Vision Transformer four times deeper and half as wide with DeepScale is more accurate than the vanilla "
    "one (77.2 and 76.5 %).",
    run=run,
    judge=judge,
    minutes=(3, 1),
    deviation="Small images and small models; the paper trains ViT on ImageNet.",
    budget=(("steps", 1000.0), ("seeds", 3.0)),
)
