"""`plan` and `recipes` on the command line: tables, JSON, files, and errors that say what to do."""

import json

import pytest
import typer
from typer.testing import CliRunner

from sigprop.cli.plan import plan_command, recipes_command
from sigprop.errors import InputError, UnknownNameError
from sigprop.plans import Plan
from sigprop.plans.recipes import RECIPES

app = typer.Typer()
app.command("plan")(plan_command)
app.command("recipes")(recipes_command)
MODEL = ["transformer", "--set", "depth=3", "--set", "width=32", "--tokens", "16"]


def run(*arguments):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


def test_recipes_lists_all():
    table, data = run("recipes"), run("recipes", "--json")
    assert table.exit_code == data.exit_code == 0
    assert {row["name"] for row in json.loads(data.output)} == set(RECIPES)
    assert "DeepNet" in table.output


def test_plan_compares_predictions(tmp_path):
    path = tmp_path / "plan.json"
    result = run("plan", *MODEL, "--recipe", "unit", "--compare", "xavier,deepnorm", "--out", str(path))
    assert result.exit_code == 0, result.output
    assert "as it is" in result.output
    assert "xavier" in result.output
    assert "deepnorm is for models with Post-LN" in result.output
    assert Plan.from_json(path).meta["recipe"] == "unit"


def test_plan_as_json_with_options():
    result = run("plan", *MODEL, "--recipe", "depth_scaling", "--option", "k=1.5", "--json")
    found = json.loads(result.output)
    assert found["plan"]["junctions"][0]["branch"] == pytest.approx(0.5**0.5)
    names = [item["recipe"] for item in found["predicted"]]
    assert names == ["as it is", "depth_scaling"]


def test_data_driven_recipe_builds_the_model():
    model = [*MODEL, "--set", "norm_placement=post"]
    result = run("plan", *model, "--recipe", "admin", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["plan"]["junctions"][1]["skip"] > 1


def test_errors_reach_the_user():
    assert isinstance(run("plan", *MODEL, "--recipe", "unti").exception, UnknownNameError)
    assert isinstance(run("plan", *MODEL, "--recipe", "mup").exception, InputError)
