"""`sigprop critical`: critical line, points and exponents of an activation."""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer
from rich.table import Table

from sigprop.cli.console import output_console
from sigprop.sources import parse_settings
from sigprop.theory.criticality import Criticality, architecture, criticality


def critical_command(
    activation: Annotated[str, typer.Argument(help="An activation, e.g. gelu.")],
    norm: Annotated[str, typer.Option(help="none, preactivation, activation or batch.")] = "none",
    residual: Annotated[float, typer.Option(help="Residual strength mu, 0 to 1.")] = 0.0,
    stages: Annotated[int, typer.Option(help="BatchNorm stages per block.")] = 1,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter of the activation, key=value.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Where gradients survive any depth: chi_J = 1 in the (sigma_w, sigma_b) plane."""
    network = architecture(activation, norm, residual, stages, **parse_settings(settings or []))
    result = criticality(network)
    if json:
        typer.echo(json_module.dumps(result.to_dict()))
        return
    console = output_console()
    console.print(f"{result.activation}, norm {result.norm}, residual {result.residual:g} ({result.status})")
    if result.points:
        console.print(_points_table(result))
    if result.ray is not None:
        console.print(f"critical line: sigma_b = {result.ray:.6f} sigma_w")
    elif result.line:
        console.print(_line_table(result))
    if result.everywhere:
        console.print("critical everywhere")
    for note in result.notes:
        console.print(f"- {note}", markup=False)


def _points_table(result: Criticality) -> Table:
    table = Table(title="critical points", title_justify="left")
    for heading in ("sigma_w", "sigma_b", "K*", "stability", "J ~ depth^-zeta"):
        table.add_column(heading)
    for point in result.points:
        kernel = "any" if point.kernel is None else f"{point.kernel:.6f}"
        exponent = "" if point.exponent is None else f"{point.exponent:.6g}"
        table.add_row(f"{point.sigma_w:.6f}", f"{point.sigma_b:.6f}", kernel, point.stability, exponent)
    return table


def _line_table(result: Criticality, most: int = 12) -> Table:
    table = Table(title="critical line", title_justify="left")
    for heading in ("sigma_w", "sigma_b", "K*", "chi_K", "reached"):
        table.add_column(heading)
    rows = [row for row in result.line if 1e-3 <= row["kernel"] <= 1e3] or result.line
    for row in rows[:: max(1, len(rows) // most)]:
        cells = [f"{row[key]:.6g}" for key in ("sigma_w", "sigma_b", "kernel", "kernel_slope")]
        table.add_row(*cells, "yes" if row["stable"] else "no")
    return table
