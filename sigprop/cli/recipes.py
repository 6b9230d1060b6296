"""`sigprop recipes`: every recipe with its paper, where it applies and what it does."""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer
from rich.table import Table

from sigprop.cli.console import output_console
from sigprop.recipes import recipes


def recipes_command(
    json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List the initializations and residual scalings that `sigprop plan` knows."""
    found = [
        {
            "name": item.name,
            "paper": item.paper,
            "applies_to": item.applies_to,
            "effect": item.effect,
            "data": item.data,
        }
        for item in recipes().values()
    ]
    if json:
        typer.echo(json_module.dumps(found, indent=1))
        return
    table = Table(title="recipes")
    for heading in ("name", "paper", "applies to", "effect"):
        table.add_column(heading, overflow="fold")
    for item in found:
        table.add_row(item["name"], item["paper"], item["applies_to"], item["effect"])
    output_console().print(table)
