"""abc: whether the best rate and the size of features carry over widths, for SP, NTK, muP, MF and one plain rate.

A ReLU network without biases on Fashion-MNIST: embedding, two hidden layers, readout, each with the table's multiplier
d^-a, standard deviation d^-b and rate d^-c (Adam, full alignment), all equal at the narrowest width. `plain` is SP with
the same rate for every matrix at every width.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sigprop.plans import ParameterPlan, Plan
from sigprop.plans.scaling.fit import fit_exponent
from sigprop.research.lab.data import ImageBatches, labelled_idx
from sigprop.research.lab.many import train_many
from sigprop.theory.exponents import PARAMETRIZATIONS, solve
from studies.rate_runs import Cell, best_of, rows_of, settings_on
from studies.reproduction import Judgement, Reproduction, Row, Setting

NAMES = ("SP", "NTK", "muP", "MF", "plain")
ROLES = ("embedding", "hidden", "hidden", "readout")
PIXELS, CLASSES, BATCH = 784, 10, 128


class Network(nn.Module):
    """`h <- d^-a W relu(h)`, widths relative to the narrowest one."""

    def __init__(self, width: int, multipliers: list[float], stds: list[float], seed: int):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        shapes = [(width, PIXELS), (width, width), (width, width), (CLASSES, width)]
        self.multipliers = multipliers
        self.layers = nn.ModuleList(nn.Linear(inputs, outputs, bias=False) for outputs, inputs in shapes)
        with torch.no_grad():
            for weight, std in zip(self.parameters(), stds, strict=True):
                weight.normal_(0.0, std, generator=generator)

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.features(pixel_values)[-1]

    def features(self, pixel_values: Tensor) -> list[Tensor]:
        h, found = pixel_values.flatten(1), []
        for number, (layer, factor) in enumerate(zip(self.layers, self.multipliers, strict=True)):
            h = factor * layer(h if number == 0 else h.relu())
            found.append(h)
        return found


def made(name: str, width: int, base: int, seed: int) -> tuple[Network, Plan]:
    """A network of one parametrization, and its learning rates as a plan."""
    entry = PARAMETRIZATIONS["SP" if name == "plain" else name]
    rates = solve(entry, "adam", "full").c
    ratio = width / base
    at_base = [PIXELS**-0.5, (2 / base) ** 0.5, (2 / base) ** 0.5, base**-0.5]
    a, b, c = ([float(getattr(values, role)) for role in ROLES] for values in (entry.a, entry.b, rates))
    multipliers = [ratio**-power for power in a]
    stds = [std * ratio**-power for std, power in zip(at_base, b, strict=True)]
    network = Network(width, multipliers, stds, seed)
    factors = [1.0 if name == "plain" else ratio**-power for power in c]
    rows = [
        ParameterPlan(label, tuple(value.shape), lr=factor)
        for (label, value), factor in zip(network.named_parameters(), factors, strict=True)
    ]
    return network, Plan(rows)


def run(setting: Setting) -> dict[str, Any]:
    widths, powers, steps, seeds = (64, 128, 256, 512, 1024, 2048), range(-14, -4), 400, (0, 1)
    if not setting.is_full:
        widths, powers, steps, seeds = (32, 64, 128, 256), range(-11, -4), 150, (0,)
    images, labels = labelled_idx(setting.folder("fashion-mnist"), count=60_000 if setting.is_full else 10_000)
    batches = ImageBatches(images.to(setting.device), labels.to(setting.device), BATCH)
    rates = tuple(2.0**power for power in powers)
    cells = [(rate, seed) for rate in rates for seed in seeds]
    rows = []
    for name in NAMES:
        for width in widths:
            work = (name, width, widths[0], cells, steps, batches, setting.device)
            rows.append(setting.part(f"{name} {width}", lambda work=work: _trained(*work)))
            print(name, width, best_of(rows[-1]), flush=True)
    return {"widths": widths, "rates": rates, "seeds": seeds, "steps": steps, "batch": BATCH, "rows": rows}


def _trained(
    name: str, width: int, base: int, cells: list[Cell], steps: int, batches: ImageBatches, device: str
) -> dict[str, Any]:
    networks = [made(name, width, base, seed)[0] for _, seed in cells]
    plan = made(name, width, base, 0)[1]
    settings = settings_on(device, steps, weight_decay=0.0, clip=0.0, precision="float32")
    runs = train_many(networks, batches, [rate for rate, _ in cells], settings, plan=plan)
    images = batches.images[:512]
    found = [
        row | {"sizes": _sizes(network, made(name, width, base, row["seed"])[0].to(device), images)}
        for row, network in zip(rows_of(cells, runs), networks, strict=True)
    ]
    return {"name": name, "width": width, "runs": found}


@torch.no_grad()
def _sizes(network: Network, start: Network, images: Tensor) -> list[float]:
    """Root mean square of what training has changed in every layer's output."""
    pairs = zip(network.features(images), start.features(images), strict=True)
    return [float(f"{(now - then).square().mean().sqrt().item():.4g}") for now, then in pairs]


def judge(data: dict[str, Any]) -> Judgement:
    widths, base = data["widths"], data["widths"][0]
    best = {(row["name"], row["width"]): best_of(row) for row in data["rows"]}
    rows, slopes, drifts = [], {}, {}
    for name in NAMES:
        found = [best[name, width] for width in widths]
        slopes[name] = fit_exponent(widths, np.array([item.rate for item in found]))[0]
        kept = best[name, base].rate
        sizes = [_at(row, kept) for row in data["rows"] if row["name"] == name]
        drifts[name] = max(abs(fit_exponent(widths, np.array(column))[0]) for column in zip(*sizes, strict=True))
        told = ", ".join(f"{math.log2(item.rate):.0f}" for item in found)
        rows.append(
            Row(f"{name}: log2 of the best rate over widths", _paper(name), f"{told} (power {slopes[name]:+.2f})")
        )
        what = f"{name}: largest power of width in the change of a layer, at the narrowest width's best rate"
        rows.append(Row(what, "" if name == "plain" else "0 (logits of SP, NTK at most 1/2)", f"{drifts[name]:+.2f}"))
    wide = {name: best[name, widths[-1]].mean for name in NAMES}
    kept = all(abs(slopes[name]) < 0.25 for name in ("SP", "NTK", "muP", "MF"))
    said = f"Widths {base} to {widths[-1]}. Powers of the best rate: "
    said += ", ".join(f"{name} {slopes[name]:+.2f}" for name in NAMES)
    said += f". Loss of the widest network at its best rate: muP {wide['muP']:.3f}, SP {wide['SP']:.3f}, plain "
    said += f"{wide['plain']:.3f}."
    if kept and slopes["plain"] < -0.4:
        return Judgement("reproduced", said, tuple(rows))
    ordered = max(abs(slopes[name]) for name in NAMES if name != "plain") < abs(slopes["plain"])
    return Judgement("in order but not in size" if ordered else "not reproduced", said, tuple(rows))


def _at(row: dict[str, Any], rate: float) -> list[float]:
    """Sizes of the first seed at one rate."""
    return next(run["sizes"] for run in row["runs"] if run["rate"] == rate)


def _paper(name: str) -> str:
    return "falls" if name == "plain" else "constant"


REPRODUCTION = Reproduction(
    id="abc-transfer",
    paper="abc",
    place="Table 1 in training",
    claim="With the table's multipliers, initializations and rates the best constant C and the changes of features do "
    "not depend on width, for SP, NTK, muP and MF; with one rate for all matrices they do.",
    run=run,
    judge=judge,
    minutes=(4, 1),
    budget=(("steps", 1000.0), ("seeds", 3.0)),
)
