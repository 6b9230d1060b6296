"""`sigprop phase`: chi_J over a plane of settings, from theory or measured."""

from __future__ import annotations

import json as json_module
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from sigprop.blueprints.criticality import blueprint_diagram
from sigprop.cli.ranges import parse_range
from sigprop.cli.settings import parse_settings
from sigprop.errors import InputError, UnknownNameError, require
from sigprop.experiments.apjn_networks import BUILDERS, measured_diagram, overlays
from sigprop.measure.grid import Network
from sigprop.measure.phase import mlp_phase
from sigprop.report.phase import Panel, phase_figure
from sigprop.results.phase import PhaseDiagram
from sigprop.theory.criticality import predicted_diagram

MODELS = ("mlp", *BUILDERS)
Axis = tuple[str, list[float]]


def phase_command(
    model: Annotated[str, typer.Argument(help=f"One of {', '.join(MODELS)}.")],
    sigma_w: Annotated[str, typer.Option(help="from:to:count, or one number.")] = "0.1:3:40",
    sigma_b: Annotated[str, typer.Option(help="from:to:count, or one number.")] = "0:1.5:40",
    residual: Annotated[str | None, typer.Option(help="Residual strength mu: a number, or from:to:count.")] = None,
    activation: Annotated[str, typer.Option(help="Activation of the MLP.")] = "relu",
    norm: Annotated[str, typer.Option(help="Norm of the MLP: none, preactivation, activation, batch.")] = "none",
    settings: Annotated[list[str] | None, typer.Option("--set", help="A setting of another model, key=value.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Measure real networks.")] = False,
    inits: Annotated[int, typer.Option(help="Initializations to average over.")] = 10,
    depth: Annotated[int, typer.Option(help="Layers (blocks) of the measured networks.")] = 50,
    width: Annotated[int, typer.Option(help="Width of the measured MLP.")] = 500,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Seed of the first initialization.")] = 0,
    resume: Annotated[Path | None, typer.Option(help="Keep the state of the run in this file.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Write a heat map to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the diagram as JSON.")] = False,
) -> None:
    """Phase diagram: ordered (chi_J < 1), critical, chaotic (chi_J > 1)."""
    if model not in MODELS:
        raise UnknownNameError("model", model, MODELS)
    x, y, fixed = _axes(sigma_w, sigma_b, residual, model)
    extra = parse_settings(settings or [])
    require(not extra or model != "mlp", "--set", sorted(extra), "a model other than mlp, or --activation and --norm")
    if not measure:
        diagram = _predicted(model, x, y, fixed, activation, norm, extra)
    else:
        shape: dict[str, Any] = {"depth": depth, "width": width, "activation": activation, "norm": norm}
        run = {"initializations": inits, "seed": seed, "device": device, "resume": resume}
        diagram = _measured(model, x, y, fixed, shape, extra, run)
    if figure is not None:
        above = overlays(activation, norm, x, y, fixed) if model == "mlp" else {}
        phase_figure([Panel(_title(model, activation, norm), diagram, **above)], figure)
    if json:
        typer.echo(json_module.dumps(diagram.to_dict()))
        return
    _summary(diagram, figure)


def _axes(sigma_w: str, sigma_b: str, residual: str | None, model: str) -> tuple[Axis, Axis, dict[str, float]]:
    default = "0" if model == "mlp" else "1"
    texts = {"sigma_w": sigma_w, "sigma_b": sigma_b, "residual": default if residual is None else residual}
    ranges = {key: parse_range(f"--{key.replace('_', '-')}", text) for key, text in texts.items()}
    if max(ranges["residual"]) > 1:
        raise InputError(f"--residual {residual} is not allowed: needs a strength between 0 and 1")
    axes = [(key, values) for key, values in ranges.items() if len(values) > 1]
    if len(axes) != 2:
        raise InputError(
            f"a phase diagram needs two ranges out of --sigma-w, --sigma-b and --residual, got {len(axes)}: "
            "give the third as a single number, for example --sigma-b 0"
        )
    fixed = {key: values[0] for key, values in ranges.items() if len(values) == 1}
    return axes[0], axes[1], fixed


def _predicted(
    model: str, x: Axis, y: Axis, fixed: dict[str, float], activation: str, norm: str, extra: dict[str, Any]
) -> PhaseDiagram:
    if model == "mlp":
        return predicted_diagram(activation, x, y, fixed, norm)
    return blueprint_diagram(model, x, y, fixed, extra)


def _measured(
    model: str,
    x: Axis,
    y: Axis,
    fixed: dict[str, float],
    shape: dict[str, Any],
    extra: dict[str, Any],
    run: dict[str, Any],
) -> PhaseDiagram:
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("initializations", total=run["initializations"])
        run["progress"] = lambda done, total: bar.update(task, completed=done)
        if model == "mlp":
            batch = 128 if shape["norm"] == "batch" else 1
            return mlp_phase(Network(**shape, batch=batch), x, y, fixed, **run)
        return measured_diagram(model, x, y, fixed, extra, **run)


def _title(model: str, activation: str, norm: str) -> str:
    return f"{model}, {activation}" + ("" if norm == "none" else f", norm {norm}") if model == "mlp" else model


def _summary(diagram: PhaseDiagram, figure: Path | None) -> None:
    everything = [value for row in diagram.chi for value in row]
    values = sorted(value for value in everything if math.isfinite(value))
    if not values:
        raise InputError("the signal overflows at every point: take smaller --sigma-w")
    ordered = sum(value < 0.99 for value in values) / len(values)
    chaotic = sum(value > 1.01 for value in values) / len(values)
    console = Console()
    console.print(
        f"chi_J over {len(diagram.x)} x {len(diagram.y)} points: {values[0]:.4g} to {values[-1]:.4g}, "
        f"median {values[len(values) // 2]:.4g}; ordered {ordered:.0%}, within 1 % of critical "
        f"{1 - ordered - chaotic:.0%}, chaotic {chaotic:.0%}"
    )
    if diagram.standard_error is not None:
        pairs = zip(diagram.chi, diagram.standard_error, strict=True)
        ratios = [e / c for chi, error in pairs for c, e in zip(chi, error, strict=True) if c]
        errors = sorted(ratio for ratio in ratios if math.isfinite(ratio))
        if errors:
            console.print(f"standard error: median {errors[len(errors) // 2]:.2%}, largest {errors[-1]:.2%}")
    if len(values) < len(everything):
        console.print(f"{len(everything) - len(values)} points without a value: the signal overflows there")
    if figure is not None:
        console.print(f"figure: {figure}")
