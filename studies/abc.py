"""abc: exponents of width of the bigram model (Tables 1 to 3), of a Transformer's alignment, and rates in training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sigprop.models import build, sample_text, text_batch
from sigprop.plans import ParameterPlan, Plan
from sigprop.plans.exponents import PARAMETRIZATIONS, Parametrization, read_alignment, read_optimizer, solve
from sigprop.plans.scaling import measure_alignment
from sigprop.plans.scaling.expectations import fit_exponent
from sigprop.research.exponents import chain
from sigprop.research.lab.data import ImageBatches, labelled_idx
from sigprop.research.lab.trainer import Run
from studies.reproduction import SEEDS, UNSEEN, Found, Reproduction, Row, Setting, rounded
from studies.trainings import best_of, cells_of, settings_on, trained

# -- Tables 1 to 3: embedding, two hidden layers and readout, no bias, no nonlinearity, 16 tokens
#
# Learning rates follow a rule fixed beforehand: at the smallest width one step moves the logits by
# 0.1 / (steps sqrt(widest / narrowest)) on a seed that is not measured, so that even logits that grow like the root of
# the width stay far from fitting the batch.

VOCABULARY, DEPTH = 16, 2
OPTIMIZERS = ("adam", "sgd", "adafactor")
CALIBRATION_SEED = 10_000
ROLES = ("embedding", *("hidden",) * DEPTH, "readout")
LOGITS = f"dh{DEPTH + 2}"


def calibrate(entry: Parametrization, optimizer: str, width: int, move: float, device: str) -> float:
    """The learning rate at which one step moves the logits of one network by `move`."""
    rate = 1e-3
    for _ in range(3):
        sizes = steps_of(entry, optimizer, rate, width, CALIBRATION_SEED, 1, device)
        rate *= move / sizes[f"{LOGITS} step 1"]
    return rate


def steps_of(
    entry: Parametrization, optimizer: str, rate: float, width: int, seed: int, steps: int, device: str
) -> dict[str, float]:
    """Sizes of h, h', W' at the start and of every change of h after each step; all tokens in one batch."""
    generator = torch.Generator().manual_seed(seed)
    rates = solve(entry, optimizer, "full").c
    multipliers, stds, powers = (
        [width ** -float(getattr(values, role)) for role in ROLES] for values in (entry.a, entry.b, rates)
    )
    shapes = [(width, VOCABULARY), *[(width, width)] * DEPTH, (VOCABULARY, width)]
    weights = [
        (torch.randn(shape, generator=generator) * std).to(device, torch.float64).requires_grad_()
        for shape, std in zip(shapes, stds, strict=True)
    ]
    readout = weights[-1].detach().clone()
    targets = torch.randperm(VOCABULARY, generator=generator).to(device)
    sizes, first = {}, []
    for step in range(steps + 1):
        h = torch.eye(VOCABULARY, dtype=torch.float64, device=device)
        states = []
        for weight, multiplier in zip(weights, multipliers, strict=True):
            h = multiplier * h @ weight.T
            states.append(h)
        loss = torch.nn.functional.cross_entropy(h, targets, reduction="sum")
        gradients = torch.autograd.grad(loss, [*weights, *states])
        if step == 0:
            first = [state.detach() for state in states]
            sizes |= {f"h{layer + 1}": rms(state) for layer, state in enumerate(states)}
            sizes |= {f"W'{layer}": rms(gradient) for layer, gradient in enumerate(gradients[: len(weights)])}
            sizes |= {f"h'{layer + 1}": rms(gradient) for layer, gradient in enumerate(gradients[len(weights) :])}
        else:
            changes = [state - start for state, start in zip(states, first, strict=True)]
            sizes |= {f"dh{layer + 1} step {step}": rms(change) for layer, change in enumerate(changes)}
            sizes[f"W_o dh step {step}"] = rms(multipliers[-1] * changes[-2] @ readout.T)
        with torch.no_grad():
            for weight, gradient, power in zip(weights, gradients, powers, strict=False):
                weight -= rate * power * direction(optimizer, weight, gradient)
    return sizes


def direction(optimizer: str, weight: Tensor, gradient: Tensor) -> Tensor:
    """The momentumless update of eq. (12)."""
    if optimizer == "sgd":
        return gradient
    return gradient.sign() * (rms(weight) if optimizer == "adafactor" else 1.0)


def rms(values: Tensor) -> float:
    return values.detach().square().mean().sqrt().item()


def expected(entry: Parametrization, optimizer: str, alignment: str) -> dict[str, float]:
    """The exact exponents under the same names."""
    rates = solve(entry, optimizer, "full").c
    found = chain(entry, rates, read_optimizer(optimizer), read_alignment(alignment), DEPTH)
    table = {f"h{i + 1}": -float(p) for i, p in enumerate(found.activations)}
    table |= {f"h'{i + 1}": -float(q) for i, q in enumerate(found.activation_gradients)}
    table |= {f"W'{i}": -float(g) for i, g in enumerate(found.weight_gradients)}
    return table | {f"dh{i + 1}": -float(r) for i, r in enumerate(found.updates)}


def over_widths(setting: Setting, widths: Sequence[int], seeds: int, first: int, steps: int) -> dict[str, Any]:
    """Every size of every parametrization and optimizer, fitted over the widths."""
    move = 0.1 / (steps * math.sqrt(widths[-1] / widths[0]))
    rows, rates, chosen = [], {}, range(first, first + seeds)
    for name, entry in PARAMETRIZATIONS.items():
        for optimizer in OPTIMIZERS:
            rate = calibrate(entry, optimizer, widths[0], move, setting.device)
            rates[f"{name} {optimizer}"] = {"rate": rate, "exponents": [str(x) for x in solve(name, optimizer).c]}
            runs = [
                [steps_of(entry, optimizer, rate, width, seed, steps, setting.device) for seed in chosen]
                for width in widths
            ]
            theory, aligned = expected(entry, optimizer, "full"), expected(entry, optimizer, "readout")
            for key in runs[0][0]:
                sizes = np.array([[run[key] for run in column] for column in runs]).T
                slope, low, high = fit_exponent(widths, sizes)
                large, place = fit_exponent(widths, sizes, corrected=True)[0], key.split(" step")[0]
                row = {"parametrization": name, "optimizer": optimizer, "quantity": key, "slope": round(slope, 4)}
                row |= {"low": round(low, 4), "high": round(high, 4), "large_width": round(large, 4)}
                rows.append(row | {"theory": theory.get(place), "theory_aligned_readout": aligned.get(place)})
    return {"widths": widths, "seeds": list(chosen), "steps": steps, "learning_rates": rates, "rows": rows}


def table3(data: dict[str, Any]) -> Found:
    rows, starts, features = [], [], []
    for name in PARAMETRIZATIONS:
        mine = [row for row in data["rows"] if row["parametrization"] == name]
        start = max(abs(row["slope"] - row["theory"]) for row in mine if " " not in row["quantity"])
        kept = [row for row in mine if row["quantity"].startswith("dh") and LOGITS not in row["quantity"]]
        moved = max(abs(row["slope"]) for row in kept)
        last = [row["large_width"] for row in mine if row["quantity"].startswith(LOGITS)]
        grows = "1/2 (aligned readout)" if name in ("SP", "NTK") else "0"
        rows.append(Row(f"{name}: largest error of an exponent at the start", "0", f"{start:.3f}"))
        rows.append(Row(f"{name}: largest exponent of a change of features", "0", f"{moved:.3f}"))
        rows.append(Row(f"{name}: exponent of the change of logits", grows, f"{min(last):+.2f} to {max(last):+.2f}"))
        starts.append(start)
        features.append(moved)
    why = (
        f"Exponents at the start are within {max(starts):.3f}, features keep their size within {max(features):.3f}; "
        "logits of SP and NTK grow like the root of the width once the readout is aligned, those of muP and MF do not."
    )
    return Found(why, rows, {"error_at_start": max(starts), "power_of_features": max(features)})


# -- alignment of a Transformer in training

KINDS = ("omega", "alpha", "u")


def align(setting: Setting, widths: Sequence[int], seeds: int, counts: Sequence[int]) -> dict[str, Any]:
    """omega, alpha and u of every linear layer (eqs. 15 to 17) after some steps under muP and SP, on bytes."""
    batch = text_batch(sample_text(), 8, 64, 128).to(setting.device)

    def make(width: int) -> nn.Module:
        torch.manual_seed(torch.initial_seed() + UNSEEN)
        model = build("transformer", vocabulary=128, context=64, width=width, depth=2, heads=4)
        return model.to(setting.device)

    table: dict[str, Any] = {}
    for rule, name in (("mup", "muP"), ("sp", "SP")):
        for count in counts:
            report = measure_alignment(make, list(widths), batch=batch, plan=rule, lr=3e-3, steps=count, seeds=seeds)
            found = report.alignment()
            medians = {key: str(value) for key, value in vars(found).items() if key != "name"}
            layers = [
                {"layer": row.layer, "role": row.role, **{kind: rounded(getattr(row, kind), 3) for kind in KINDS}}
                for row in report.rows
            ]
            rates = [str(rate) for rate in solve(name, "adam", found).c]
            table[f"{name} step {count}"] = {"medians": medians, "adam_exponents": rates, "layers": layers}
    return {"widths": widths, "seeds": list(range(UNSEEN, UNSEEN + seeds)), "measured": table}


def alignment(data: dict[str, Any]) -> Found:
    """alpha is the alignment of an update with its input: 1 is full, 1/2 none."""
    rows, alphas, omegas = [], [], []
    for name, found in data["measured"].items():
        medians = {key: float(Fraction(value)) for key, value in found["medians"].items()}
        alphas += [medians["alpha_hidden"], medians["alpha_readout"]]
        omegas.append(medians["omega_hidden"])
        told = ", ".join(f"{key.replace('_', ' of ')} {value:.2f}" for key, value in medians.items())
        rows.append(Row(f"{name}: exponents of alignment", "alpha 1, omega 1/2 (hidden)", told))
    why = f"Exponents of updates are {min(alphas):.2f} to {max(alphas):.2f}, those of hidden weights {min(omegas):.2f} "
    why += f"to {max(omegas):.2f}."
    apart = max(abs(value - 0.5) for value in omegas)
    return Found(why, rows, {"least_alpha": min(alphas), "omega_from_half": apart})


# -- Table 1 in training

NAMES = ("SP", "NTK", "muP", "MF", "plain")
LAYERS = ("embedding", "hidden", "hidden", "readout")
PIXELS, CLASSES, BATCH = 784, 10, 128


class Network(nn.Module):
    """`h <- d^-a W relu(h)`, widths relative to the narrowest one."""

    def __init__(self, width: int, multipliers: list[float], stds: list[float], seed: int):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        shapes = [(width, PIXELS), (width, width), (width, width), (CLASSES, width)]
        self.multipliers, self.seed = multipliers, seed
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
    """A network of one parametrization, and its learning rates as a plan; `plain`: SP with one rate for all."""
    entry = PARAMETRIZATIONS["SP" if name == "plain" else name]
    ratio = width / base
    at_base = [PIXELS**-0.5, (2 / base) ** 0.5, (2 / base) ** 0.5, base**-0.5]
    given = (entry.a, entry.b, solve(entry, "adam", "full").c)
    a, b, c = ([float(getattr(values, role)) for role in LAYERS] for values in given)
    stds = [std * ratio**-power for std, power in zip(at_base, b, strict=True)]
    network = Network(width, [ratio**-power for power in a], stds, seed)
    factors = [1.0 if name == "plain" else ratio**-power for power in c]
    named = zip(network.named_parameters(), factors, strict=True)
    return network, Plan([ParameterPlan(label, tuple(value.shape), lr=factor) for (label, value), factor in named])


def train_widths(
    setting: Setting, widths: Sequence[int], powers: Sequence[int], steps: int, seeds: Sequence[int], images: int
) -> dict[str, Any]:
    pixels, labels = labelled_idx(setting.folder("fashion-mnist"), count=images)
    batches = ImageBatches(pixels.to(setting.device), labels.to(setting.device), BATCH)
    settings = settings_on(setting.device, steps, weight_decay=0.0, clip=0.0, precision="float32")

    def work(name: str, width: int) -> dict[str, Any]:
        def look(network: Any, run: Run) -> dict[str, Any]:
            start = made(name, width, widths[0], network.seed)[0].to(setting.device)
            return {"sizes": _sizes(network, start, batches.images[:512])}

        def network(seed: int) -> Network:
            return made(name, width, widths[0], seed)[0]

        plan = made(name, width, widths[0], 0)[1]
        return {"runs": trained(network, cells_of(powers, seeds), batches, settings, plan, look)}

    rows = [
        {"name": name, "width": width, **setting.part(f"{name} {width}", work, name, width)}
        for name in NAMES
        for width in widths
    ]
    rates = [2.0**power for power in powers]
    return {"widths": widths, "rates": rates, "seeds": seeds, "steps": steps, "batch": BATCH, "rows": rows}


@torch.no_grad()
def _sizes(network: Network, start: Network, images: Tensor) -> list[float]:
    """Root mean square of what training has changed in every layer's output."""
    pairs = zip(network.features(images), start.features(images), strict=True)
    return rounded([(now - then).square().mean().sqrt().item() for now, then in pairs], 4)


def transfer(data: dict[str, Any]) -> Found:
    widths, base = data["widths"], data["widths"][0]
    best = {(row["name"], row["width"]): best_of(row) for row in data["rows"]}
    rows, slopes = [], {}
    for name in NAMES:
        found = [best[name, width] for width in widths]
        slopes[name] = fit_exponent(widths, np.array([item.rate for item in found]))[0]
        kept = best[name, base].rate
        sizes = [
            next(run["sizes"] for run in row["runs"] if run["rate"] == kept)
            for row in data["rows"]
            if row["name"] == name
        ]
        drift = max(abs(fit_exponent(widths, np.array(column))[0]) for column in zip(*sizes, strict=True))
        told = ", ".join(f"{math.log2(item.rate):.0f}" for item in found)
        paper = "falls" if name == "plain" else "constant"
        rows.append(Row(f"{name}: log2 of the best rate over widths", paper, f"{told} (power {slopes[name]:+.2f})"))
        what = f"{name}: largest power of width in the change of a layer, at the narrowest width's best rate"
        rows.append(Row(what, "" if name == "plain" else "0 (logits of SP, NTK at most 1/2)", f"{drift:+.2f}"))
    wide = {name: best[name, widths[-1]].mean for name in NAMES}
    why = f"Widths {base} to {widths[-1]}. Powers of the best rate: "
    why += ", ".join(f"{name} {slopes[name]:+.2f}" for name in NAMES)
    why += f". Loss of the widest network at its best rate: muP {wide['muP']:.3f}, SP {wide['SP']:.3f}, plain "
    why += f"{wide['plain']:.3f}."
    largest = max(abs(slopes[name]) for name in NAMES if name != "plain")
    return Found(why, rows, {"largest_power": largest, "power_of_plain": slopes["plain"]})


ITEMS = (
    Reproduction(
        id="abc-table3",
        place="Tables 1 to 3",
        claim="SP, NTK, muP and MF keep features at the same size at all widths, at the start and over steps; logits "
        "of "
        "SP grow like the root of the width when the readout aligns.",
        run=over_widths,
        figures=table3,
        reproduced="error_at_start < 0.05 and power_of_features < 0.1",
        in_order="error_at_start < 0.2 and power_of_features < 0.4",
        small={"widths": (64, 128, 256, 512), "seeds": 4, "first": UNSEEN, "steps": 3},
        full={"widths": (64, 128, 256, 512, 1024, 2048), "seeds": 8, "first": UNSEEN, "steps": 3},
        minutes=(2, 2),
        budget={"seeds": 4.0},
    ),
    Reproduction(
        id="abc-alignment",
        place="eqs. 15 to 17 and 23",
        claim="In training updates align with their inputs (alpha = 1), while weights do not (omega = 1/2).",
        run=align,
        figures=alignment,
        reproduced="least_alpha > 0.95 and omega_from_half < 0.05",
        in_order="least_alpha > 0.75 and omega_from_half < 0.2",
        small={"widths": (64, 128, 256), "seeds": 3, "counts": (1, 10)},
        full={"widths": (64, 128, 256, 512), "seeds": 3, "counts": (1, 10)},
        minutes=(1, 1),
        budget={"seeds": 3.0},
    ),
    Reproduction(
        id="abc-transfer",
        place="Table 1 in training",
        claim="With the table's multipliers, initializations and rates the best constant C and the changes of features "
        "do not depend on width, for SP, NTK, muP and MF; with one rate for all matrices they do.",
        run=train_widths,
        figures=transfer,
        reproduced="largest_power < 0.25 and power_of_plain < -0.4",
        in_order="largest_power < -power_of_plain",
        small={
            "widths": (32, 64, 128, 256), "powers": tuple(range(-11, -4)), "steps": 150, "seeds": SEEDS[:1],
            "images": 10_000,
        },
        full={
            "widths": (64, 128, 256, 512, 1024, 2048), "powers": tuple(range(-14, -4)), "steps": 1000, "seeds": SEEDS,
            "images": 60_000,
        },
        minutes=(6, 5),
        budget={"steps": 1000.0, "seeds": 3.0},
    ),
)  # fmt: skip
