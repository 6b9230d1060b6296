"""Width exponents of the bigram model, measured: `python -m studies.abc_slopes --help`.

Four parametrizations and three momentumless optimizers on embedding, two hidden layers and readout (no bias, no
nonlinearity, 16 tokens). Sizes at the start and after every step are fitted over widths and set beside the exact
exponents; the readout's own alignment is reported, since SP's logits depend on it (Stratos, Table 1, eq. 24).

Learning rates follow a rule fixed beforehand: at the smallest width one step moves the logits by
0.1 / (steps sqrt(widest / narrowest)) on a seed that is not measured, so that even logits that grow like the root of
the width stay far from fitting the batch. Stored: the power fitted over all widths, and the exponent of large width.
"""

from __future__ import annotations

import json
import math
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor

from sigprop.plans.scaling.fit import fit_exponent
from sigprop.theory.exponents import PARAMETRIZATIONS, Parametrization, chain, read_alignment, read_optimizer, solve
from studies.reproduction import Judgement, Reproduction, Row, Setting, captured, verdict

VOCABULARY, DEPTH = 16, 2
OPTIMIZERS = ("adam", "sgd", "adafactor")
CALIBRATION_SEED, FIRST_SEED = 10_000, 100
ROLES = ("embedding", *("hidden",) * DEPTH, "readout")


def calibrate(entry: Parametrization, optimizer: str, width: int, move: float, device: str) -> float:
    """The learning rate at which one step moves the logits of one network by `move`."""
    rate = 1e-3
    for _ in range(3):
        sizes = train(entry, optimizer, rate, width, CALIBRATION_SEED, 1, device)
        rate *= move / sizes[f"dh{DEPTH + 2} step 1"]
    return rate


def train(
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


def main(
    widths: Annotated[str, typer.Option(help="Widths, separated by commas.")] = "64,128,256,512,1024,2048",
    seeds: Annotated[int, typer.Option(help="Initializations.")] = 8,
    steps: Annotated[int, typer.Option(help="Training steps.")] = 3,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Where the table is stored.")] = Path("docs/data/abc_slopes.json"),
) -> None:
    """Fit every exponent for all combinations, print the worst deviations, store the table."""
    scales = [int(part) for part in widths.split(",")]
    move = 0.1 / (steps * math.sqrt(scales[-1] / scales[0]))
    rows, rates = [], {}
    for name, entry in PARAMETRIZATIONS.items():
        for optimizer in OPTIMIZERS:
            rate = calibrate(entry, optimizer, scales[0], move, device)
            rates[f"{name} {optimizer}"] = {"rate": rate, "exponents": [str(x) for x in solve(name, optimizer).c]}
            runs = [
                [train(entry, optimizer, rate, width, FIRST_SEED + seed, steps, device) for seed in range(seeds)]
                for width in scales
            ]
            theory, aligned = expected(entry, optimizer, "full"), expected(entry, optimizer, "readout")
            for key in runs[0][0]:
                sizes = np.array([[run[key] for run in column] for column in runs]).T
                slope, low, high = fit_exponent(scales, sizes)
                large = fit_exponent(scales, sizes, corrected=True)[0]
                place = key.split(" step")[0]
                row = {"parametrization": name, "optimizer": optimizer, "quantity": key, "slope": round(slope, 4)}
                row |= {"low": round(low, 4), "high": round(high, 4), "large_width": round(large, 4)}
                rows.append(row | {"theory": theory.get(place), "theory_aligned_readout": aligned.get(place)})
    report(rows)
    options = f"--widths {widths} --seeds {seeds} --steps {steps} --device {device}"
    data: dict[str, Any] = {"command": f"python -m studies.abc_slopes {options}", "date": str(date.today())}
    data |= {"widths": scales, "seeds": f"{FIRST_SEED}..{FIRST_SEED + seeds - 1}", "steps": steps}
    data |= {"learning_rates": rates, "rows": rows}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(data, indent=1) + "\n")


def report(rows: list[dict]) -> None:
    """Worst deviation of the start, of features and of logits for every combination."""
    logits = f"dh{DEPTH + 2}"
    for name in PARAMETRIZATIONS:
        for optimizer in OPTIMIZERS:
            mine = [row for row in rows if (row["parametrization"], row["optimizer"]) == (name, optimizer)]
            initial = [abs(row["slope"] - row["theory"]) for row in mine if " " not in row["quantity"]]
            features = [
                abs(row["slope"]) for row in mine if row["quantity"].startswith("dh") and logits not in row["quantity"]
            ]
            moved, large = (
                [row[kind] for row in mine if row["quantity"].startswith(logits)] for kind in ("slope", "large_width")
            )
            told = (
                f"start {max(initial):.3f}  features {max(features):.3f}  logits {min(moved):+.3f}..{max(moved):+.3f}"
            )
            told += f", at large width {min(large):+.3f}..{max(large):+.3f}"
            typer.echo(f"{name:4s} {optimizer:10s} worst: {told}")


def run(setting: Setting) -> dict[str, Any]:
    widths, seeds = ("64,128,256,512,1024,2048", 8) if setting.is_full else ("32,64,128,256", 3)
    return captured(lambda out: main(widths, seeds, 3, setting.device, out / "found.json"), "found.json")


def judge(data: dict[str, Any]) -> Judgement:
    rows, starts, features = [], [], []
    logits = f"dh{DEPTH + 2}"
    for name in PARAMETRIZATIONS:
        mine = [row for row in data["rows"] if row["parametrization"] == name]
        start = max(abs(row["slope"] - row["theory"]) for row in mine if " " not in row["quantity"])
        kept = [row for row in mine if row["quantity"].startswith("dh") and logits not in row["quantity"]]
        moved = max(abs(row["slope"]) for row in kept)
        last = [row["large_width"] for row in mine if row["quantity"].startswith(logits)]
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
    fine, ordered = (max(starts) < size and max(features) < 2 * size for size in (0.05, 0.2))
    return Judgement(verdict(fine, ordered), why, tuple(rows))


REPRODUCTION = Reproduction(
    id="abc-table3",
    paper="abc",
    place="Tables 1 to 3",
    claim="SP, NTK, muP and MF keep features at the same size at all widths, at the start and over steps; logits of SP "
    "grow like the root of the width when the readout aligns.",
    run=run,
    judge=judge,
    minutes=(2, 2),
    earlier="abc_slopes.json",
)


if __name__ == "__main__":
    typer.run(main)
