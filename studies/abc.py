"""abc: exponents of width of the bigram model (Tables 1 to 3) and of a Transformer's alignment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sigprop.models import build, sample_text, text_batch
from sigprop.plans.exponents import PARAMETRIZATIONS, Parametrization, read_alignment, read_optimizer, solve
from sigprop.plans.scaling import measure_alignment
from sigprop.plans.scaling.expectations import fit_exponent
from sigprop.research.exponents import chain
from studies.reproduction import UNSEEN, Found, Reproduction, Row, Setting, rounded

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
)  # fmt: skip
