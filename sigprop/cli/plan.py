"""`sigprop plan`: a recipe for a model, and what it would change, predicted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sigprop.cli.options import Json, Model, Quiet, Settings, Tokens, show, writable
from sigprop.errors import InputError, SigpropError
from sigprop.grid import Grid, number, thinned

if TYPE_CHECKING:
    from sigprop.inputs import ModelSource
    from sigprop.plans import Plan
    from sigprop.plans.recipes.planned_states import PredictedPlan
    from sigprop.structure import Structure

SHOWN = 9


def plan_command(
    model: Model,
    recipe: Annotated[str, typer.Option(help="A recipe (`sigprop recipes`) or a parametrization (mup, sp, ...).")],
    settings: Settings = None,
    option: Annotated[list[str] | None, typer.Option(help="An option of the recipe, key=value.")] = None,
    compare: Annotated[str, typer.Option(help="Other recipes, comma-separated, predicted beside it.")] = "",
    width: Annotated[str | None, typer.Option(help="A width rule for the learning rates: mup, sp, ...")] = None,
    depth: Annotated[str, typer.Option(help="A depth rule: none, sqrt, linear or dslm.")] = "none",
    base_width: Annotated[
        int | None, typer.Option(min=1, max=2**24, help="The width that a learning rate was tuned at.")
    ] = None,
    optimizer: Annotated[
        str, typer.Option(help="The optimizer whose learning rates and decays are multiplied.")
    ] = "adamw",
    surgery: Annotated[bool, typer.Option(help="Scale the junctions by hooks instead of folding.")] = False,
    tokens: Tokens = 64,
    json: Json = False,
    quiet: Quiet = False,
    export: Annotated[
        str | None, typer.Option(help="Write --out as python, torchtitan, megatron, nanochat, optax.")
    ] = None,
    out: Annotated[Path | None, typer.Option(callback=writable, help="Write the plan to this file.")] = None,
) -> None:
    """Prescribe std, residual scales and learning rates.

    Shows what changes, and what the model would do before and after, predicted.
    """
    from sigprop.inputs import open_source, parse_settings
    from sigprop.plans.scaling import WIDTH_RULES

    source = open_source(model, parse_settings(settings or []), batch=1, tokens=tokens)
    options = parse_settings(option or [])
    parts: dict[str, Any] = {"depth": depth, "base": base_width, "optimizer": optimizer}
    if recipe.partition(":")[0] in WIDTH_RULES:
        made, predicted = _parametrized(source, recipe, parts, options), []
    else:
        others = [name for name in compare.split(",") if name]
        parts |= {"width": width, "surgery": surgery}
        made, predicted = _prescribed(source, recipe, parts, options, others)
    exported = None if export is None else made.export(export, out)
    if out is not None and exported is None:
        made.to_json(out)
    if exported is not None and not json:
        typer.echo(exported.text if out is None else f"{export}: {out}")
        show(*(f"not expressed: {row}" for row in exported.not_expressed) if out is not None else ())
        return
    if json:
        show({"plan": made.to_dict(), "predicted": [item.to_dict() for item in predicted]})
        return
    _show(made, predicted, out)


def _parametrized(source: ModelSource, rule: str, parts: dict[str, Any], options: dict[str, Any]) -> Plan:
    from sigprop.plans.scaling import plan

    if parts["base"] is None:
        raise InputError(f"recipe {rule} needs --base-width, the width that was tuned")
    return plan(source.build(), rule, **parts, **options)


def _prescribed(
    source: ModelSource, recipe: str, parts: dict[str, Any], options: dict[str, Any], others: list[str]
) -> tuple[Plan, list[PredictedPlan]]:
    """A recipe's plan, and what it and the others would do; recipes that read data get the model itself."""
    from sigprop.distributions import build
    from sigprop.plans.recipes import RECIPES
    from sigprop.plans.scaling import plan
    from sigprop.structure import structure_of

    needs_weights = any(RECIPES[name].data for name in (recipe, *others))
    built = source.build() if needs_weights else build(source.build)
    structure = structure_of(built, source.batch)
    made = plan(built, recipe, structure=structure, **parts, **options)
    predicted, refused = _predicted(structure, recipe, options, others)
    made.meta |= {"refused": refused} if refused else {}
    return made, predicted


def _predicted(
    structure: Structure, recipe: str, options: dict[str, Any], others: list[str]
) -> tuple[list[PredictedPlan], dict[str, str]]:
    """The model as it is, under the recipe and under the others; with those that refused, and why."""
    from sigprop.plans.recipes.planned_states import predict_plan

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
    show(made.summary(), "", made.table())
    if predicted:
        show("", _profile(predicted), "", _summary(predicted))
    show(*(f"{name}: {reason}" for name, reason in made.meta.get("refused", {}).items()))
    if out is not None:
        show(f"plan: {out}")


def _profile(predicted: list[PredictedPlan]) -> Grid:
    """Variance and gradient variance along the stream, side by side."""
    rows = [
        [str(at + 1), *(f"{number(item.variance[at])} | {number(item.grad_variance[at])}" for item in predicted)]
        for at in thinned(range(len(predicted[0].variance)), SHOWN)
    ]
    title = "predicted along the residual stream: variance | gradient variance"
    return Grid(["sum", *(item.recipe for item in predicted)], rows, title=title, names=())


def _summary(predicted: list[PredictedPlan]) -> Grid:
    rows = []
    for item in predicted:
        values = (item.forward_growth, item.gradient_growth, item.token_correlation[-1], item.sensitivity)
        rows.append([item.recipe, *map(number, values)])
    headings = ["recipe", "variance last/first", "gradient first/last", "token corr", "sensitivity"]
    return Grid(headings, rows, title="predicted from end to end")


KEYS = ("name", "paper", "applies_to", "effect", "data")


def recipes_command(json: Json = False) -> None:
    """List the recipes that `sigprop plan` knows."""
    from sigprop.plans.recipes import RECIPES

    found = [{key: getattr(item, key) for key in KEYS} for item in RECIPES.values()]
    if json:
        show(found)
        return
    rows = [[str(item[key]) for key in KEYS[:4]] for item in found]
    show(Grid(["name", "paper", "applies to", "effect"], rows, title="recipes", wrapped=(1, 2, 3)))
