"""Width exponents of a Transformer in training: `python -m studies.abc_transformer --help`.

The coordinate check on a Pre-LN decoder (shipped text, byte tokens, float64) for width rules and optimizers, with the
rule's own expectations. Stored for every site: the power fitted over all widths, its local values from width to
width, and the exponent of large width (`sigprop.plans.scaling.fit`). For the logits also the parts of their change,
`W dh`, `dW h` and `dW dh` of the readout, and the law of two parts that theory gives, with no
exponent fitted: an aligned part
and a random walk that is smaller by d^{-1/2}, size^2 = (A + B/d) d^(2e), e = 0 (mup, neural_tangent) or 1/2 (sp).

Learning rates follow a rule fixed beforehand: at the smallest width, where all width rules agree, one step moves the
logits by 0.1 / (steps sqrt(widest / narrowest)) on a seed that is not measured, so that even logits that grow like the
root of the width stay far from fitting the batch.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor, nn

from sigprop.models import build, sample_text, text_batch
from sigprop.plans.scaling import coord_check, parametrize
from sigprop.plans.scaling.fit import fit_exponent, fit_two_parts
from sigprop.plans.scaling.training import Training, make_optimizers, make_step
from sigprop.results import CoordinateReport
from sigprop.results.coordinates import Exponent

RULES, OPTIMIZERS = ("mup", "sp", "neural_tangent"), ("adamw", "sgd", "adafactor")
FIRST_GUESS = {"adamw": 1e-4, "sgd": 1e-2, "adafactor": 1e-4}
CALIBRATION_SEED, FIRST_SEED = 10_000, 100


class Study:
    """One network, batch and list of widths."""

    def __init__(self, widths: list[int], seeds: int, steps: int, device: str):
        self.widths, self.seeds, self.steps, self.device = widths, seeds, steps, device
        self.batch = text_batch(sample_text(), 8, 64, 128).to(device)
        self.move = 0.1 / (steps * math.sqrt(widths[-1] / widths[0]))

    def build(self, width: int) -> nn.Module:
        """Drawn from the global seed, moved by FIRST_SEED so that no seed of an earlier run is met."""
        torch.manual_seed(torch.initial_seed() + FIRST_SEED)
        with torch.device(self.device):
            model = build("transformer", vocabulary=128, context=64, width=width, depth=2, heads=4).double()
        nn.init.normal_(model.get_parameter("token_embedding.weight"), 0.0, 0.5)
        nn.init.normal_(model.get_parameter("position_embedding.weight"), 0.0, 0.5)
        return model

    def rate(self, optimizer: str) -> float:
        """The learning rate of the rule above, by three proportional corrections."""
        lr = FIRST_GUESS[optimizer]
        for _ in range(3):
            torch.manual_seed(CALIBRATION_SEED)
            model = self.build(self.widths[0])
            training = Training(None, make_step(self.batch, None), optimizer, lr, 1)
            (run,), _ = training.run([model], together=False)
            lr *= self.move / run.sizes["change", "output", 1]
        return lr

    def check(self, rule: str, optimizer: str, lr: float) -> CoordinateReport:
        options: dict[str, Any] = {"batch": self.batch, "seeds": self.seeds, "steps": self.steps, "lr": lr}
        return coord_check(self.build, self.widths, plan=rule, expect=rule, optimizer=optimizer, **options)

    def logit_parts(self, rule: str, optimizer: str, lr: float) -> dict[str, Any]:
        """Sizes of the readout's `W dh`, `dW h` and `dW dh` after one step, with local powers."""
        base, step = self.build(self.widths[0]), make_step(self.batch, None)
        sizes: dict[str, list[list[float]]] = {"W dh": [], "dW h": [], "dW dh": []}
        for width in self.widths:
            columns: dict[str, list[float]] = {key: [] for key in sizes}
            plan = None
            for seed in range(self.seeds):
                torch.manual_seed(seed)
                model = self.build(width)
                plan = plan or parametrize(model, rule, base=base, optimizer=optimizer)
                plan.apply_(model)
                head = model.get_submodule("head")
                optimizers = make_optimizers(optimizer, model, plan, lr)
                weight, before, loss = head.get_parameter("weight").detach().clone(), *_inside(model, head, step)
                loss.backward()
                for each in optimizers:
                    each.step()
                after, _ = _inside(model, head, step)
                pairs = {"W dh": (weight, after - before), "dW h": (head.get_parameter("weight") - weight, before)}
                pairs["dW dh"] = pairs["dW h"][0], pairs["W dh"][1]
                for key, (matrix, vector) in pairs.items():
                    columns[key].append((vector @ matrix.T).square().mean().sqrt().item())
            for key, column in columns.items():
                sizes[key].append(column)
        return {key: described(self.widths, np.array(columns).T) for key, columns in sizes.items()}


def _inside(model: nn.Module, head: nn.Module, step: Any) -> tuple[Tensor, Tensor]:
    """(input of the readout, loss)."""
    seen: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach()))
    loss = step(model)[1]
    handle.remove()
    return seen[0], loss


def described(widths: list[int], sizes: np.ndarray) -> dict[str, Any]:
    """Power over all widths, local powers, and the exponent of large width, from `sizes[seed, width]`."""
    local = np.diff(np.log(sizes.mean(axis=0))) / np.diff(np.log(widths))
    fits = (fit_exponent(widths, sizes, corrected)[0] for corrected in (False, True))
    return dict(zip(("power", "large_width"), (round(fit, 3) for fit in fits), strict=True)) | {
        "local": local.round(3).tolist()
    }


def row(item: Exponent, widths: list[int]) -> dict[str, Any]:
    named = {"name": item.name, "quantity": item.quantity, "step": item.step, "expected": item.expected}
    return named | described(widths, np.array([item.sizes])) | {"low": round(item.low, 3), "high": round(item.high, 3)}


def worst(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """By quantity, logits aside: largest deviation of the power over all widths, and of the exponent of large width."""
    found = {}
    for quantity in ("activation", "change", "weight", "update", "rate"):
        mine = [row for row in rows if row["quantity"] == quantity and row["name"] not in ("output", "head")]
        for kind in ("power", "large_width") if mine else ():
            place = max(mine, key=lambda row: abs(row[kind] - row["expected"]))
            found[f"{quantity} {kind}"] = [place["name"], round(place[kind] - place["expected"], 3)]
    return found


def main(
    widths: Annotated[str, typer.Option(help="Widths, separated by commas.")] = "64,128,256,512,1024,2048",
    seeds: Annotated[int, typer.Option(help="Initializations.")] = 4,
    steps: Annotated[int, typer.Option(help="Training steps.")] = 3,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Where the table is stored.")] = Path("docs/data/abc_transformer.json"),
) -> None:
    """Check all combinations, print the worst deviations, store the exponents."""
    study = Study([int(part) for part in widths.split(",")], seeds, steps, device)
    rates = {optimizer: study.rate(optimizer) for optimizer in OPTIMIZERS}
    table = {}
    for rule in RULES:
        for optimizer in OPTIMIZERS:
            report = study.check(rule, optimizer, rates[optimizer])
            rows = [row(item, study.widths) for item in report.exponents if item.expected is not None]
            logits = [found for found in rows if (found["name"], found["quantity"]) == ("output", "change")]
            parts = study.logit_parts(rule, optimizer, rates[optimizer])
            for found in logits:
                sizes = np.array(report.find("output", "change", found["step"]).sizes)
                found["two_parts"] = asdict(fit_two_parts(study.widths, sizes, 0.5 if rule == "sp" else 0.0))
            changes = [found for found in rows if found["quantity"] == "change" and found["step"] == steps]
            summary = {"passed": report.passed, "worst": worst(rows), "logit_parts": parts, "logits": logits}
            table[f"{rule} {optimizer}"] = summary | {"changes": changes}
            typer.echo(f"{rule} {optimizer}: {json.dumps(summary, indent=1)}")
    options = f"--widths {widths} --seeds {seeds} --steps {steps} --device {device}"
    data: dict[str, Any] = {"command": f"python -m studies.abc_transformer {options}"}
    data |= {"date": str(date.today()), "device": device, "widths": study.widths, "learning_rates": rates}
    data |= {"seeds": f"{FIRST_SEED}..{FIRST_SEED + seeds - 1}", "checks": table}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
