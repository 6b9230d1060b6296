"""`sigprop exponents`: width exponents of a parametrization, its stability and its learning rates."""

from __future__ import annotations

import json as json_format
from typing import Annotated, Any

import typer
from rich.table import Table

from sigprop.cli.console import output_console
from sigprop.theory.exponents import (
    OPTIMIZERS,
    Classification,
    Parametrization,
    classify,
    read_alignment,
    read_optimizer,
    read_parametrization,
)


def exponents_command(
    parametrization: Annotated[str, typer.Argument(help="SP, NTK, muP, MF, or a=..,..,..;b=..,..,..[;c=..,..,..].")],
    optimizer: Annotated[str, typer.Option(help=f"One of {', '.join(OPTIMIZERS)}.")] = "adam",
    alignment: Annotated[str, typer.Option(help="full, readout, none, or alpha=..,omega_readout=..,u=..")] = "full",
    depth: Annotated[int, typer.Option(help="Hidden layers in the chain.")] = 2,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Exact exponents per role: init, multiplier, largest stable learning rate; exit code 1 when unstable."""
    entry = read_parametrization(parametrization)
    verdict = classify(entry, read_optimizer(optimizer), read_alignment(alignment), depth)
    if json:
        typer.echo(json_format.dumps(_data(entry, verdict, optimizer, alignment), indent=1))
    else:
        _print(entry, verdict, f"{entry.name}, {optimizer}, {alignment} alignment")
    if not verdict.stable:
        raise typer.Exit(1)


def _print(entry: Parametrization, verdict: Classification, title: str) -> None:
    console = output_console()
    table = Table(title=f"{title}: powers of 1/width")
    for heading in ("", "embedding", "hidden", "readout"):
        table.add_column(heading)
    for label, values in (("multiplier a", entry.a), ("init b", entry.b), ("learning rate c", verdict.c)):
        table.add_row(label, *map(str, values))
    console.print(table)
    console.print(f"regime: {verdict.regime}; equivalent to {', '.join(verdict.equivalent) or 'no table entry'}")
    for condition in verdict.failures:
        console.print(str(condition), markup=False)


def _data(entry: Parametrization, verdict: Classification, optimizer: str, alignment: str) -> dict[str, Any]:
    return {
        "parametrization": entry.name,
        "optimizer": optimizer,
        "alignment": alignment,
        **{key: [str(x) for x in values] for key, values in (("a", entry.a), ("b", entry.b), ("c", verdict.c))},
        "stable": verdict.stable,
        "regime": verdict.regime,
        "equivalent": list(verdict.equivalent),
        "failures": [str(condition) for condition in verdict.failures],
        "feature_updates": [str(r) for r in verdict.chain.updates],
    }
