"""`sigprop plan`: a recipe for a model, and what it would change, predicted."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from sigprop.api import plan
from sigprop.cli.console import output_console
from sigprop.errors import InputError, SigpropError
from sigprop.recipes import Structure, get_recipe, read_structure
from sigprop.recipes.predicted_plan import PredictedPlan, predict_plan
from sigprop.report.terminal import number
from sigprop.results import Plan
from sigprop.scaling import WIDTH_RULES
from sigprop.sources import open_source, parse_settings
from sigprop.trace.skeleton import build

SHOWN = 8


def plan_command(
    model: Annotated[str, typer.Argument(help="A reference network, a config.json, or file.py:factory.")],
    recipe: Annotated[str, typer.Option(help="A recipe (`sigprop recipes`) or a parametrization (mup, sp, ...).")],
    settings: Annotated[list[str] | None, typer.Option("--set", help="A setting of the model, key=value.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="An option of the recipe, key=value.")] = None,
    compare: Annotated[str, typer.Option(help="Other recipes, comma-separated, predicted beside it.")] = "",
    base_width: Annotated[int | None, typer.Option(help="Width of the base model (parametrizations).")] = None,
    optimizer: Annotated[str, typer.Option(help="Whose settings the plan multiplies.")] = "adamw",
    surgery: Annotated[bool, typer.Option(help="Scale the junctions by hooks instead of folding.")] = False,
    tokens: Annotated[int, typer.Option(help="Tokens of the example batch.")] = 64,
    json: Annotated[bool, typer.Option("--json", help="Print plan and prediction as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the plan to this file.")] = None,
) -> None:
    """Prescribe initialization, residual scales and optimizer multipliers; predict before and after."""
    source = open_source(model, parse_settings(settings or []), batch=1, tokens=tokens)
    options = parse_settings(option or [])
    if recipe in WIDTH_RULES or recipe.startswith("meta:"):
        if base_width is None:
            raise InputError(f"recipe {recipe} needs --base-width, the width that was tuned")
        made = plan(source.build(), recipe, base=base_width, optimizer=optimizer, **options)
        predicted: list[PredictedPlan] = []
    else:
        others = [name for name in compare.split(",") if name]
        real = any(get_recipe(name).data for name in (recipe, *others))
        built = source.build() if real else build(source.build)
        structure = read_structure(built, source.batch)
        made = plan(built, recipe, structure=structure, optimizer=optimizer, surgery=surgery, **options)
        predicted, refused = _predicted(structure, recipe, options, others)
        made.meta |= {"refused": refused} if refused else {}
    if out is not None:
        made.to_json(out)
    if json:
        found = {"plan": made.to_dict(), "predicted": [item.to_dict() for item in predicted]}
        typer.echo(json_module.dumps(found, indent=1))
        return
    _show(made, predicted, out)


def _predicted(
    structure: Structure, recipe: str, options: dict[str, Any], others: list[str]
) -> tuple[list[PredictedPlan], dict[str, str]]:
    """The model as it is, under the recipe and under the others; with those that refused, and why."""
    if not structure.junctions:
        return [], {}
    found, refused = [predict_plan(structure, None)], {}
    for name, given in [(recipe, options), *((other, {}) for other in others)]:
        try:
            found.append(predict_plan(structure, name, **given))
        except SigpropError as error:
            refused[name] = str(error)
    return found, refused


def _show(made: Plan, predicted: list[PredictedPlan], out: Path | None) -> None:
    console = output_console()
    console.print(made.explain())
    if predicted:
        console.print(_profile(predicted))
        console.print(_summary(predicted))
    for name, reason in made.meta.get("refused", {}).items():
        console.print(f"{name}: {reason}", markup=False)
    if out is not None:
        console.print(f"plan: {out}")


def _profile(predicted: list[PredictedPlan]) -> Table:
    """Variance and gradient variance along the stream, side by side."""
    table = Table(title="predicted along the residual stream: variance | gradient variance")
    table.add_column("sum", justify="right")
    for item in predicted:
        table.add_column(item.recipe, justify="right")
    count = len(predicted[0].variance)
    step = max(1, (count - 1) // SHOWN)
    for place in sorted({*range(0, count, step), count - 1}):
        cells = [f"{number(item.variance[place])} | {number(item.grad_variance[place])}" for item in predicted]
        table.add_row(str(place + 1), *cells)
    return table


def _summary(predicted: list[PredictedPlan]) -> Table:
    table = Table(title="predicted from end to end")
    for heading in ("recipe", "variance last/first", "gradient first/last", "token correlation", "sensitivity"):
        table.add_column(heading, justify="right")
    for item in predicted:
        values = (item.forward_growth, item.gradient_growth, item.token_correlation[-1], item.sensitivity)
        table.add_row(item.recipe, *(number(value) for value in values))
    return table
