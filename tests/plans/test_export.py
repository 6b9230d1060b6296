"""A plan as code of another trainer does what the plan does, and names every row that it cannot express."""

import ast
import copy
import importlib.util
import re

import pytest
import torch

import sigprop as sp
from sigprop.errors import InputError, UnknownNameError
from sigprop.models import build
from sigprop.plans import Plan
from sigprop.plans.rows import ScalePlan
from studies import plan_exports


@pytest.fixture(scope="module")
def unit():
    return plan_exports.made("unit, muP, AdamW")


@pytest.mark.parametrize("name", ["unit, muP, AdamW", "deepnorm", "ReZero", "kaiming, MLP, SGD"])
def test_the_python_file_makes_the_same_numbers_and_groups(name, tmp_path):
    model, plan = plan_exports.made(name)
    module, missing = plan_exports.loaded(plan, "python", tmp_path)
    assert "bitwise equal" in plan_exports.run_python(model, plan, module)
    assert bool(missing) == (name == "ReZero")


def test_the_python_file_needs_torch_alone(unit):
    tree = ast.parse(unit[1].export("python").text)
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names == {"math", "torch"}


def test_scales_of_the_forward_pass_are_in_the_python_file(tmp_path):
    model = build("transformer", depth=2, width=32, heads=2)
    drawn = sp.plan(model, "gpt2", batch=plan_exports.ids())
    scales = [
        ScalePlan("token_embedding", 3.0, "output"),
        ScalePlan("head", 0.5),
        ScalePlan("blocks.0.mlp", 2.0, "output"),
    ]
    plan = Plan(list(drawn), scales=scales)
    module, _ = plan_exports.loaded(plan, "python", tmp_path)
    one, other = build("transformer", depth=2, width=32, heads=2), build("transformer", depth=2, width=32, heads=2)
    plan.apply_(one, torch.Generator().manual_seed(0))
    module.init_(other, torch.Generator().manual_seed(0))
    assert len(module.SCALES) == 3
    assert torch.equal(one(plan_exports.ids()), other(plan_exports.ids()))


@pytest.mark.parametrize("target", ["torchtitan", "nanochat"])
def test_initializers_by_name_have_the_plans_distributions(unit, target, tmp_path):
    model, plan = unit
    module, missing = plan_exports.loaded(plan, target, tmp_path)
    torch.manual_seed(0)
    for row in plan.parameters:
        parameter = model.get_parameter(row.name)
        owner, _, leaf = row.name.rpartition(".")
        init = module.param_inits(owner)[leaf] if target == "torchtitan" else _nanochat(module, row.name)
        init(parameter)
        assert plan_exports.same_distribution(parameter.detach(), row), row.name
    assert bool(missing) == (target == "nanochat")


def _nanochat(module, name):
    starred = ".".join("*" if part.isdigit() else part for part in name.split("."))
    return module.INIT.get(name) or module.INIT[starred]


def test_patterns_of_torchtitan_match_every_parameter_once(unit, tmp_path):
    model, plan = unit
    module, _ = plan_exports.loaded(plan, "torchtitan", tmp_path)
    for group in plan.param_groups(model, 1.0, 1.0):
        for name in group["param_names"]:
            found = [row for row in module.GROUPS if re.search(row[0], name)]
            assert len(found) == 1
            assert found[0][2] == pytest.approx(group["lr"])
            assert found[0][3] == pytest.approx(group["weight_decay"])


def test_nanochats_initializer_runs_on_a_stand_in(unit, tmp_path):
    module, _ = plan_exports.loaded(unit[1], "nanochat", tmp_path)
    assert "stand-in" in plan_exports.run_nanochat(copy.deepcopy(unit[0]), unit[1], module)


@pytest.mark.parametrize(
    ("package", "run"), [("torchtitan", "run_torchtitan"), ("optax", "run_optax"), ("megatron", "run_megatron")]
)
def test_run_by_the_trainer_itself(unit, package, run, tmp_path):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; studies.plan_exports runs it in an environment that has it")
    model, plan = unit
    module, _ = plan_exports.loaded(plan, package, tmp_path)
    assert "run" in getattr(plan_exports, run)(model, plan, module)


def test_what_megatron_cannot_express_is_named_row_by_row(unit, tmp_path):
    _, plan = unit
    module, missing = plan_exports.loaded(plan, "megatron", tmp_path)
    assert module.ARGUMENTS["--init-method-std"] == 0.125
    assert any(row.startswith("blocks.2.mlp.down.weight: initialized as") for row in missing)
    assert all(f"    {row}" in plan.export("megatron").text for row in missing)
    assert "position_embedding.weight: learning rate times 8, Megatron has 2" in missing
    assert not plan_exports.made("GPT-2")[1].export("megatron").not_expressed


@pytest.mark.parametrize("target", ["python", "torchtitan", "megatron", "nanochat", "optax"])
@pytest.mark.parametrize("recipe", ["orthogonal", "mitchell"])
def test_long_initializations_are_written_whole(recipe, target):
    """Blocks of a fused matrix, and a truncated normal with its bounds, are wider than a line."""
    model = build("transformer", depth=2, width=32, heads=2, fused_qkv=True)
    ast.parse(sp.plan(model, recipe, batch=plan_exports.ids()).export(target).text)


@pytest.mark.parametrize(("target", "optimizer"), [("python", "normuon"), ("python", "adamh"), ("nanochat", "adamw")])
def test_an_optimizer_that_the_target_lacks_is_named(target, optimizer):
    model = build("transformer", depth=2, width=32, heads=2)
    plan = sp.plan(model, "unit", width="mup", optimizer=optimizer, batch=plan_exports.ids())
    assert any(row.startswith(f"optimizer {optimizer}:") for row in plan.export(target).not_expressed)


def test_bad_input_is_one_line(unit):
    with pytest.raises(UnknownNameError, match="unknown export target 'torchtitn'; nearest: torchtitan"):
        unit[1].export("torchtitn")
    with pytest.raises(InputError, match="has no parameters"):
        Plan([]).export("python")
