"""Alignment exponents of a Transformer in training: `python -m studies.abc_alignment --help`.

omega, alpha and u of every linear layer (Stratos, eqs. 15 to 17), fitted over widths after a few steps, and the
learning-rate exponents that follow from their medians instead of from an assumption.
"""

from __future__ import annotations

import json
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import nn

from sigprop.models import build, sample_text, text_batch
from sigprop.plans.scaling import measure_alignment
from sigprop.theory.exponents import solve
from studies.reproduction import Judgement, Reproduction, Row, Setting, captured, verdict

KINDS = ("omega", "alpha", "u")


def main(
    widths: Annotated[str, typer.Option(help="Widths, separated by commas.")] = "64,128,256,512",
    seeds: Annotated[int, typer.Option(help="Initializations.")] = 3,
    steps: Annotated[str, typer.Option(help="Numbers of steps, separated by commas.")] = "1,10",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Where the table is stored.")] = Path("docs/data/abc_alignment.json"),
) -> None:
    """Measure under muP and SP, print medians and rates, store all layers."""
    scales = [int(part) for part in widths.split(",")]
    batch = text_batch(sample_text(), 8, 64, 128).to(device)

    def make(width: int) -> nn.Module:
        return build("transformer", vocabulary=128, context=64, width=width, depth=2, heads=4).to(device)

    table: dict[str, Any] = {}
    for rule, name in (("mup", "muP"), ("sp", "SP")):
        for count in (int(part) for part in steps.split(",")):
            report = measure_alignment(make, scales, batch=batch, plan=rule, lr=3e-3, steps=count, seeds=seeds)
            found = report.alignment()
            medians = {key: str(value) for key, value in vars(found).items() if key != "name"}
            rates = [str(rate) for rate in solve(name, "adam", found).c]
            layers = [
                {"layer": row.layer, "role": row.role}
                | {kind: [round(x, 3) for x in getattr(row, kind)] for kind in KINDS}
                for row in report.rows
            ]
            table[f"{name} step {count}"] = {"medians": medians, "adam_exponents": rates, "layers": layers}
            typer.echo(f"{name} step {count}: {medians}, Adam exponents {rates}")
    options = f"--widths {widths} --seeds {seeds} --steps {steps} --device {device}"
    data = {"command": f"python -m studies.abc_alignment {options}", "date": str(date.today())}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(data | {"seeds": f"0..{seeds - 1}", "measured": table}, indent=1) + "\n")


def run(setting: Setting) -> dict[str, Any]:
    widths, seeds = ("64,128,256,512", 3) if setting.is_full else ("32,64,128", 2)
    return captured(lambda out: main(widths, seeds, "1,10", setting.device, out / "found.json"), "found.json")


def judge(data: dict[str, Any]) -> Judgement:
    """alpha is the alignment of an update with its input: 1 is full, 1/2 none."""
    rows, alphas = [], []
    for name, found in data["measured"].items():
        medians = {key: float(Fraction(value)) for key, value in found["medians"].items()}
        alphas += [medians["alpha_hidden"], medians["alpha_readout"]]
        told = ", ".join(f"{key.replace('_', ' of ')} {value:.2f}" for key, value in medians.items())
        rows.append(Row(f"{name}: exponents of alignment", "alpha 1, omega 1/2 (hidden)", told))
    why = (
        f"Updates are nearly aligned with their inputs (alpha {min(alphas):.2f} to {max(alphas):.2f}), weights are not."
    )
    return Judgement(verdict(min(alphas) > 0.95, min(alphas) > 0.75), why, tuple(rows))


REPRODUCTION = Reproduction(
    id="abc-alignment",
    paper="abc",
    place="eqs. 15 to 17 and 23",
    claim="In training updates align with their inputs (alpha = 1), while drawn weights do not (omega = 1/2).",
    run=run,
    judge=judge,
    minutes=(2, 1),
    earlier="abc_alignment.json",
)


if __name__ == "__main__":
    typer.run(main)
