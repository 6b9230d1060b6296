"""Width exponents of a Transformer in training: `python -m sigprop.experiments.abc_transformer --help`.

The coordinate check on a Pre-LN decoder (shipped text, byte tokens) for width rules and optimizers, with the rule's
own expectations. Stored: the fitted exponents of all sites, and the exponent of the logits' change.
"""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from sigprop.models import build, sample_text, text_batch
from sigprop.results import CoordinateReport
from sigprop.scaling import coord_check

RATES = {"adamw": 1e-3, "sgd": 0.1, "adafactor": 3e-3}


def check(rule: str, optimizer: str, widths: list[int], seeds: int, steps: int, device: str) -> CoordinateReport:
    def make(width: int) -> nn.Module:
        model = build("transformer", vocabulary=128, context=64, width=width, depth=2, heads=4)
        nn.init.normal_(model.get_parameter("token_embedding.weight"), 0.0, 0.5)
        nn.init.normal_(model.get_parameter("position_embedding.weight"), 0.0, 0.5)
        return model.to(device)

    batch = text_batch(sample_text(), 8, 64, 128).to(device)
    options: dict[str, Any] = {"batch": batch, "seeds": seeds, "steps": steps, "lr": RATES[optimizer]}
    return coord_check(make, widths, plan=rule, expect=rule, optimizer=optimizer, **options)


def main(
    widths: Annotated[str, typer.Option(help="Widths, separated by commas.")] = "64,128,256,512",
    seeds: Annotated[int, typer.Option(help="Initializations.")] = 4,
    steps: Annotated[int, typer.Option(help="Training steps.")] = 3,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Where the table is stored.")] = Path("docs/data/abc_transformer.json"),
) -> None:
    """Check all combinations, print the worst deviations, store the exponents."""
    torch.backends.cuda.matmul.allow_tf32 = False
    scales = [int(part) for part in widths.split(",")]
    table = {}
    for rule in ("mup", "sp", "neural_tangent"):
        for optimizer in RATES:
            report = check(rule, optimizer, scales, seeds, steps, device)
            asked = [item for item in report.exponents if item.expected is not None]
            table[f"{rule} {optimizer}"] = {
                "passed": report.passed,
                "logit_change": [
                    round(report.find("output", "change", step).exponent, 3) for step in range(1, steps + 1)
                ],
                "exponents": [
                    {"name": item.name, "quantity": item.quantity, "step": item.step, "expected": item.expected}
                    | {key: round(getattr(item, key), 3) for key in ("exponent", "low", "high")}
                    for item in asked
                    if item.quantity in ("activation", "change")
                ],
            }
            told = []
            for quantity in ("activation", "change", "weight", "update", "rate"):
                mine = [item for item in asked if item.quantity == quantity and item.name not in ("output", "head")]
                if mine:
                    worst = max(mine, key=lambda item: abs(item.deviation()))
                    told.append(f"{quantity} {worst.deviation():+.2f} ({worst.name})")
            typer.echo(
                f"{rule} {optimizer}: logits {table[f'{rule} {optimizer}']['logit_change']} worst " + ", ".join(told)
            )
    options = f"--widths {widths} --seeds {seeds} --steps {steps} --device {device}"
    data: dict[str, Any] = {"command": f"python -m sigprop.experiments.abc_transformer {options}"}
    data |= {"date": str(date.today()), "device": device, "widths": scales, "seeds": f"0..{seeds - 1}", "checks": table}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
