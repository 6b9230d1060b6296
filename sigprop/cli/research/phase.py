"""`sigprop research phase`: chi_J over a plane of settings, from theory or measured."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sigprop.cli.options import Figure, Json, Quiet, Seed, Settings, progress, require_device, show, writable
from sigprop.errors import InputError, UnknownNameError, require

if TYPE_CHECKING:
    from sigprop.research.phase.networks import Network


def parse_range(key: str, text: str) -> list[float]:
    """`0.5:3:40` to forty evenly spaced values from 0.5 to 3; a single number to itself."""
    parts = text.split(":")
    try:
        if len(parts) == 1:
            low = high = float(parts[0])
            count = 1
        else:
            low, high, count = float(parts[0]), float(parts[1]), int(parts[2])
            if len(parts) > 3:
                raise ValueError
    except (ValueError, IndexError):
        raise InputError(f"{key} {text!r} is not allowed: needs from:to:count, for example 0.5:3:40") from None
    require(math.isfinite(low) and math.isfinite(high), key, text, "finite numbers")
    require(low >= 0, key, text, "values that are not negative")
    if len(parts) > 1:
        require(count >= 2, key, text, "at least 2 values")
        require(high > low, key, text, "a range whose end lies above its start")
    return [low + (high - low) * i / max(count - 1, 1) for i in range(count)]


MODELS = ("mlp", "transformer", "vit", "resnet", "mixer")
Axis = tuple[str, list[float]]


def phase_command(
    model: Annotated[str, typer.Argument(help=f"One of {', '.join(MODELS)}.")],
    sigma_w: Annotated[str, typer.Option(help="from:to:count, or one number.")] = "0.1:3:40",
    sigma_b: Annotated[str, typer.Option(help="from:to:count, or one number.")] = "0:1.5:40",
    residual: Annotated[str | None, typer.Option(help="Residual strength mu: a number, or from:to:count.")] = None,
    activation: Annotated[str | None, typer.Option(help="Of the MLP, relu if not given; or file.py:function.")] = None,
    norm: Annotated[
        str | None, typer.Option(help="Norm of the MLP: none (if not given), preactivation, activation, batch.")
    ] = None,
    settings: Settings = None,
    measure: Annotated[bool, typer.Option("--measure", help="Measure real networks.")] = False,
    inits: Annotated[int, typer.Option(min=1, max=2**24, help="Initializations to average over.")] = 10,
    depth: Annotated[
        int | None, typer.Option(min=1, max=2**24, help="Layers of the measured MLP (50), blocks of others.")
    ] = None,
    width: Annotated[
        int | None, typer.Option(min=1, max=2**24, help="Width of the measured MLP (500), or of others.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    seed: Seed = 0,
    resume: Annotated[
        Path | None, typer.Option(callback=writable, help="Keep the state of the run in this file.")
    ] = None,
    quiet: Quiet = False,
    figure: Figure = None,
    json: Json = False,
) -> None:
    """Draw a phase diagram: ordered, critical, chaotic.

    These are chi_J below, at and above 1, by theory or measured.
    """
    if model not in MODELS:
        raise UnknownNameError("model", model, MODELS)
    x, y, fixed = _axes(sigma_w, sigma_b, residual, model)

    from sigprop.inputs import parse_settings, read_activation
    from sigprop.research.criticality import predicted_diagram
    from sigprop.research.phase.diagrams import SIZES, contour, measured_diagram, mlp_phase, overlays
    from sigprop.research.phase.figure import Panel, phase_figure
    from sigprop.research.phase.networks import Network
    from sigprop.research.phase.predicted import blueprint_diagram

    if model == "mlp":
        require(not settings, "--set", settings, "a model other than mlp, or --activation and --norm")
        network = Network(
            read_activation(activation or "relu"),
            norm or "none",
            depth or 50,
            width or 500,
            batch=128 if norm == "batch" else 1,
        )
        predicted = partial(predicted_diagram, network.activation, x, y, fixed, network.norm)
        measured: Any = partial(mlp_phase, network, x, y, fixed)
    else:
        given = {"--activation": activation, "--norm": norm}
        for key, value in given.items():
            require(value is None, key, value, f"model mlp; for others --set {key[2:]}={value}")
        network = None
        sizes = {key: value for key, value in (("depth", depth), ("width", width)) if value is not None}
        extra = {**SIZES.get(model, {}), **sizes, **parse_settings(settings or [])}
        predicted = partial(blueprint_diagram, model, x, y, fixed, extra)
        measured = partial(measured_diagram, model, x, y, fixed, extra)
    run: dict[str, Any] = {"initializations": inits, "seed": seed, "device": require_device(device), "resume": resume}
    if measure:
        with progress("initializations", inits, quiet or json) as step:
            diagram = measured(**run, progress=lambda done, total: step(done))
    else:
        diagram = predicted()
    if figure is not None:
        theory = None if measure else diagram
        if network is None:
            above = contour(model, x, y, fixed, extra, theory)
        else:
            above = overlays(network.activation, network.norm, x, y, fixed)
        phase_figure([Panel(_title(model, network), diagram, **above)], figure)
    if json:
        show(diagram.to_json())
        return
    if not diagram.finite:
        raise InputError(diagram.summary())
    show(diagram.summary())
    if figure is not None:
        show(f"figure: {figure}")


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


def _title(model: str, network: Network | None) -> str:
    if network is None:
        return model
    name = network.settings()["activation"]
    return f"mlp, {name}" + ("" if network.norm == "none" else f", norm {network.norm}")
