"""`sigprop critical`: critical line, points and exponents of an activation, and how to initialize weights for it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sigprop.cli.options import Json, show
from sigprop.grid import Grid, thinned

if TYPE_CHECKING:
    from sigprop.research.criticality import Criticality


def critical_command(
    activation: Annotated[str, typer.Argument(help="An activation, e.g. gelu, or file.py:function of a tensor.")],
    norm: Annotated[str, typer.Option(help="none, preactivation, activation or batch.")] = "none",
    residual: Annotated[float, typer.Option(help="Residual strength mu, 0 to 1.")] = 0.0,
    stages: Annotated[int, typer.Option(min=1, max=1000, help="BatchNorm stages per block.")] = 1,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter of the activation, key=value.")
    ] = None,
    json: Json = False,
) -> None:
    """The initialization for an activation at any depth.

    Lists where chi_J = 1 in the plane of sigma_w and sigma_b.
    """
    from sigprop.inputs import parse_settings, read_activation
    from sigprop.research.criticality import advice, architecture, criticality

    network = architecture(read_activation(activation), norm, residual, stages, **parse_settings(settings or []))
    result = criticality(network)
    if json:
        show(asdict(result) | {"advice": advice(network, result)})
        return
    show(f"{result.activation}, norm {result.norm}, residual {result.residual:g} ({result.status})")
    show(advice(network, result))
    if result.points:
        show("", _points(result))
    if result.ray is not None:
        show(f"critical line: sigma_b = {result.ray:.6f} sigma_w")
    elif result.line:
        show("", _line(result))
    if result.points or result.line:
        show("", IN_WORDS)
    show(*(f"- {note}" for note in result.notes))


IN_WORDS = (
    "sigma_w: std of the weights times sqrt(fan_in). sigma_b: std of the biases. K*: mean square at which a deep stack "
    "settles. chi_K: the slope there, which attracts below 1."
)


def _points(result: Criticality) -> Grid:
    rows = []
    for point in result.points:
        kernel = "any" if point.kernel is None else f"{point.kernel:.6f}"
        exponent = "" if point.exponent is None else f"{point.exponent:.6g}"
        rows.append([f"{point.sigma_w:.6f}", f"{point.sigma_b:.6f}", kernel, point.stability, exponent])
    headings = ["sigma_w", "sigma_b", "K*", "stability", "J ~ depth^-zeta"]
    return Grid(headings, rows, title="critical points", wrapped=(3,))


def _line(result: Criticality, most: int = 9) -> Grid:
    rows = [row for row in result.line if 1e-3 <= row["kernel"] <= 1e3] or result.line
    cells = [
        [
            *(f"{row[key]:.4g}" for key in ("sigma_w", "sigma_b", "kernel", "kernel_slope")),
            "yes" if row["stable"] else "no",
        ]
        for row in thinned(rows, most)
    ]
    return Grid(["sigma_w", "sigma_b", "K*", "chi_K", "reached"], cells, title="critical line", names=())
