"""`sigprop phase`: chi_J over a plane of settings, from theory or measured."""

from __future__ import annotations

import dataclasses
import json as json_module
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from sigprop.blueprints.criticality import BLUEPRINTS, blueprint_diagram
from sigprop.cli.console import output_console
from sigprop.cli.ranges import parse_range
from sigprop.diagrams import BUILDERS, SIZES, coarse, measured_diagram, overlays
from sigprop.errors import InputError, UnknownNameError, require
from sigprop.measure.grid import Network
from sigprop.measure.phase import mlp_phase
from sigprop.report.phase import Panel, phase_figure
from sigprop.results.phase import PhaseDiagram
from sigprop.sources import parse_settings
from sigprop.theory.criticality import predicted_diagram

MODELS = ("mlp", *BLUEPRINTS)
Axis = tuple[str, list[float]]


@dataclasses.dataclass(frozen=True)
class Plane:
    """What was asked for: a model (`network` if it is an MLP), two ranges, and what is held fixed."""

    model: str
    network: Network | None
    x: Axis
    y: Axis
    fixed: dict[str, float]
    extra: dict[str, Any]


def phase_command(
    model: Annotated[str, typer.Argument(help=f"One of {', '.join(MODELS)}.")],
    sigma_w: Annotated[str, typer.Option(help="from:to:count, or one number.")] = "0.1:3:40",
    sigma_b: Annotated[str, typer.Option(help="from:to:count, or one number.")] = "0:1.5:40",
    residual: Annotated[str | None, typer.Option(help="Residual strength mu: a number, or from:to:count.")] = None,
    activation: Annotated[str | None, typer.Option(help="Activation of the MLP, relu if not given.")] = None,
    norm: Annotated[
        str | None, typer.Option(help="Norm of the MLP: none (if not given), preactivation, activation, batch.")
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="A setting of another model, key=value.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Measure real networks.")] = False,
    inits: Annotated[int, typer.Option(help="Initializations to average over.")] = 10,
    depth: Annotated[int | None, typer.Option(help="Layers of the measured MLP (50), blocks of others.")] = None,
    width: Annotated[int | None, typer.Option(help="Width of the measured MLP (500), or of others.")] = None,
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
    if model == "mlp":
        require(not settings, "--set", settings, "a model other than mlp, or --activation and --norm")
        network = Network(activation or "relu", norm or "none", depth or 50, width or 500, batch=_batch(norm))
        extra: dict[str, Any] = {}
    else:
        given = {"--activation": activation, "--norm": norm}
        for key, value in given.items():
            require(value is None, key, value, f"model mlp; for others --set {key[2:]}={value}")
        network = None
        sizes = {key: value for key, value in (("depth", depth), ("width", width)) if value is not None}
        extra = {**SIZES.get(model, {}), **sizes, **parse_settings(settings or [])}
    run: dict[str, Any] = {"initializations": inits, "seed": seed, "device": device, "resume": resume}
    plane = Plane(model, network, x, y, fixed, extra)
    diagram = _measured(plane, run) if measure else _predicted(plane)
    if figure is not None:
        above = _above(plane, None if measure else diagram)
        phase_figure([Panel(_title(model, network), diagram, **above)], figure)
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


def _batch(norm: str | None) -> int:
    return 128 if norm == "batch" else 1


def _predicted(plane: Plane) -> PhaseDiagram:
    if plane.network is not None:
        return predicted_diagram(plane.network.activation, plane.x, plane.y, plane.fixed, plane.network.norm)
    return blueprint_diagram(plane.model, plane.x, plane.y, plane.fixed, plane.extra)


def _measured(plane: Plane, run: dict[str, Any]) -> PhaseDiagram:
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("initializations", total=run["initializations"])
        run["progress"] = lambda done, total: bar.update(task, completed=done)
        if plane.network is not None:
            return mlp_phase(plane.network, plane.x, plane.y, plane.fixed, **run)
        if plane.model not in BUILDERS:
            raise UnknownNameError("model", plane.model, BUILDERS, "(to be measured)")
        return measured_diagram(plane.model, plane.x, plane.y, plane.fixed, plane.extra, **run)


def _above(plane: Plane, theory: PhaseDiagram | None) -> dict[str, Any]:
    """What theory draws over the heat map: line and stars of an MLP, the contour chi_J = 1 of others."""
    x, y = plane.x, plane.y
    if plane.network is not None:
        return overlays(str(plane.network.activation), plane.network.norm, x, y, plane.fixed)
    if not set(plane.extra) <= {field.name for field in dataclasses.fields(BLUEPRINTS[plane.model])}:
        return {}  # a variant that only the measured network has
    axes = (coarse(x), coarse(y)) if plane.model == "mixer" else (x, y)
    return {"contour": theory or blueprint_diagram(plane.model, *axes, plane.fixed, plane.extra)}


def _title(model: str, network: Network | None) -> str:
    if network is None:
        return model
    return f"mlp, {network.activation}" + ("" if network.norm == "none" else f", norm {network.norm}")


def _summary(diagram: PhaseDiagram, figure: Path | None) -> None:
    everything = [value for row in diagram.chi for value in row]
    values = sorted(value for value in everything if math.isfinite(value))
    if not values:
        raise InputError("the signal overflows at every point: take smaller --sigma-w")
    ordered = sum(value < 0.99 for value in values) / len(values)
    chaotic = sum(value > 1.01 for value in values) / len(values)
    console = output_console()
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
