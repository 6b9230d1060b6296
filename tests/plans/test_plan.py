"""A plan is data that fits a model exactly once, survives every wrapper, and does what its rows say."""

import copy
import math

import pytest
import torch
from torch import nn

from sigprop.errors import InputError, UnknownNameError, UnsupportedError
from sigprop.plans import Plan
from sigprop.plans.rows import JunctionPlan, ParameterPlan, ScalePlan
from sigprop.results import Init
from tests.plans.shared import SHARDED_STEPS


class Tied(nn.Module):
    """Embedding, two linear layers with a residual branch, a norm, and a readout tied to the embedding."""

    def __init__(self, vocabulary=11, width=8):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, padding_idx=0)
        self.first = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        hidden = self.embed(ids)
        return self.head(self.norm(hidden + self.first(hidden)))


def keep_plan(model, **changes):
    rows = []
    for name, parameter in model.named_parameters():
        rows.append(ParameterPlan(name, tuple(parameter.shape), **changes.get(name.replace(".", "_"), {})))
    return Plan(rows)


def ids():
    return torch.arange(1, 9).reshape(2, 4)


def test_json_round_trip_and_diff(tmp_path):
    model = Tied()
    blocks = Init("blocks", axis=1, sizes=(3, 5), parts=(Init("normal", std=0.1), Init("constant", value=0.0)))
    plan = keep_plan(model, first_weight={"init": blocks, "lr": 0.25, "why": "because"})
    plan.junctions.append(JunctionPlan("first", skip=0.9, branch=0.1))
    plan.scales.append(ScalePlan("head", 0.5))
    plan.to_json(tmp_path / "plan.json")
    again = Plan.from_json(tmp_path / "plan.json")
    assert again == plan
    assert again.diff(plan) == []
    other = keep_plan(model)
    fields = {(item.name, item.field) for item in plan.diff(other)}
    assert fields == {
        ("first.weight", "init"),
        ("first.weight", "lr"),
        ("first", "row"),
        ("head input", "row"),
    }


def test_rejects_other_schema_versions():
    with pytest.raises(InputError, match="schema_version 99"):
        Plan.from_json('{"schema_version": 99}')


def test_covers_every_parameter_exactly_once():
    model = Tied()
    plan = keep_plan(model)
    plan.check(model)
    with pytest.raises(InputError, match=r"no row for embed\.weight"):
        Plan(plan.parameters[1:]).check(model)
    with pytest.raises(InputError, match=r"name no parameter of the model: ghost"):
        Plan([*plan.parameters, ParameterPlan("ghost", (1,))]).check(model)
    with pytest.raises(InputError, match=r"tied embed\.weight = head\.weight"):
        Plan([*plan.parameters, ParameterPlan("head.weight", (11, 8))]).check(model)
    with pytest.raises(InputError, match=r"more than one row for embed\.weight"):
        Plan([*plan.parameters, plan.parameters[0]])
    with pytest.raises(InputError, match=r"embed\.weight \(11, 16\) \(plan: \(11, 8\)\)"):
        plan.check(Tied(width=16))
    with pytest.raises(UnknownNameError, match=r"norm\.weight"):
        plan["norm.weigth"]


def test_a_tied_parameter_answers_to_either_name():
    model = Tied()
    rows = [ParameterPlan("head.weight", (11, 8), lr=0.5), *keep_plan(model).parameters[1:]]
    groups = Plan(rows).param_groups(model, lr=1.0)
    assert [group["param_names"] for group in groups if group["lr"] == 0.5] == [["head.weight"]]


@pytest.mark.parametrize("kind", ["normal", "uniform", "orthogonal"])
def test_drawn_entries_have_the_std_of_the_row(kind):
    layer = nn.Linear(192, 96, bias=False)
    plan = Plan([ParameterPlan("weight", (96, 192), Init(kind, std=0.3))])
    plan.apply_(layer, generator=torch.Generator().manual_seed(1))
    count = layer.weight.numel()
    measured = layer.weight.detach().square().mean().sqrt().item()
    # Relative standard error of an rms: sqrt((kurtosis - 1) / 4n); at most sqrt(2 / 4n). Orthogonal is exact.
    assert abs(measured / 0.3 - 1) < 5 * math.sqrt(0.5 / count)
    if kind == "uniform":
        assert layer.weight.abs().max() <= 0.3 * math.sqrt(3)
    if kind == "orthogonal":
        gram = layer.weight @ layer.weight.T
        torch.testing.assert_close(gram, torch.eye(96) * 0.09 * 192, atol=1e-4, rtol=0)


def test_blocks_draw_each_part_and_repeat_with_the_seed():
    layer = nn.Linear(6, 9, bias=False)
    parts = (Init("normal", std=1.0), Init("constant", value=0.0), Init("constant", value=7.0))
    plan = Plan([ParameterPlan("weight", (9, 6), Init("blocks", axis=0, sizes=(3, 3, 3), parts=parts))])
    plan.apply_(layer, generator=torch.Generator().manual_seed(3))
    first = layer.weight.detach().clone()
    assert first[:3].std() > 0.3
    assert (first[3:6] == 0).all()
    assert (first[6:] == 7).all()
    plan.apply_(layer, generator=torch.Generator().manual_seed(3))
    assert torch.equal(first, layer.weight)
    bad = Plan([ParameterPlan("weight", (9, 6), Init("blocks", axis=0, sizes=(3, 3), parts=parts[:2]))])
    with pytest.raises(InputError, match="do not add up"):
        bad.apply_(layer)


def test_redrawn_embedding_keeps_its_padding_row_zero():
    model = Tied()
    keep_plan(model, embed_weight={"init": Init("normal", std=1.0)}).apply_(model)
    assert (model.embed.weight[0] == 0).all()
    assert (model.embed.weight[1:] != 0).all()


def test_keep_is_bitwise_and_a_factor_is_applied_once():
    model = Tied()
    before = copy.deepcopy(model.state_dict())
    keep_plan(model).apply_(model)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    plan = keep_plan(fresh := Tied(), first_weight={"init": Init("keep", value=0.5)})
    weight = fresh.first.weight.detach().clone()
    plan.apply_(fresh)
    assert torch.equal(fresh.first.weight, 0.5 * weight)
    with pytest.raises(InputError, match="already applied"):
        plan.apply_(copy.deepcopy(fresh))


def test_meta_parameters_must_be_materialized():
    with torch.device("meta"):
        model = Tied()
    plan = keep_plan(model, first_weight={"init": Init("normal", std=1.0)})
    with pytest.raises(InputError, match="to_empty"):
        plan.apply_(model)
    plan.param_groups(model, lr=1.0)


def test_groups_are_few_and_carry_the_products():
    model = Tied()
    plan = keep_plan(
        model,
        first_weight={"lr": 0.5, "weight_decay": 2.0, "eps": 0.1},
        first_bias={"lr": 0.5},
        embed_weight={},
    )
    assert {group["eps"] for group in plan.param_groups(model, lr=1.0)} == {1e-8, 1e-9}
    assert all("eps" not in group for group in keep_plan(model).param_groups(model, lr=1.0))
    settings = {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-8, "betas": (0.9, 0.95)}
    kept = [group["param_names"] for group in plan.param_groups(model, **settings) if group["weight_decay"] == 0.0]
    assert sorted(kept) == [["first.bias"], ["norm.weight", "norm.bias"]]
    groups = plan.param_groups(model, **settings, decay_vectors=True)
    found = {tuple(g["param_names"]): (g["lr"], g["weight_decay"], g["eps"], g["betas"]) for g in groups}
    assert found == {
        ("embed.weight", "norm.weight", "norm.bias"): (0.01, 0.1, 1e-8, (0.9, 0.95)),
        ("first.weight",): (0.005, 0.2, 1e-9, (0.9, 0.95)),
        ("first.bias",): (0.005, 0.1, 1e-8, (0.9, 0.95)),
    }
    model.norm.requires_grad_(False)
    names = [name for group in plan.param_groups(model, lr=1.0, eps=1e-8) for name in group["param_names"]]
    assert "norm.weight" not in names


def test_groups_of_some_roles():
    model = Tied()
    plan = keep_plan(model, first_weight={"role": "hidden"})
    (group,) = plan.param_groups(model, lr=1.0, roles=["hidden"])
    assert group["param_names"] == ["first.weight"]


def test_groups_that_are_nearly_alike_can_be_merged():
    model = Tied()
    plan = keep_plan(model, first_weight={"lr": 0.52}, embed_weight={"lr": 0.5}, norm_weight={"lr": 0.25})
    assert len(plan.param_groups(model, lr=1.0)) == 4
    merged = plan.param_groups(model, lr=1.0, merge=0.1)
    assert len(merged) == 3
    rates = {name: group["lr"] for group in merged for name in group["param_names"]}
    assert rates == pytest.approx({row.name: row.lr for row in plan}, rel=0.05)


@pytest.mark.parametrize("lr", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_not_positive_is_refused(lr):
    with pytest.raises(InputError, match="lr"):
        keep_plan(Tied()).param_groups(Tied(), lr=lr)


def test_another_optimizer_and_unknown_roles_are_refused():
    model = Tied()
    with pytest.raises(InputError, match="this plan is for adamw, not for muon"):
        keep_plan(model).param_groups(model, lr=1.0, optimizer="muon")
    with pytest.raises(UnknownNameError, match="hidden"):
        keep_plan(model).param_groups(model, lr=1.0, roles=["hiden"])


def test_groups_drive_an_optimizer_and_a_scheduler():
    model = Tied()
    plan = keep_plan(model, first_weight={"lr": 0.0})
    frozen = model.first.weight.detach().clone()
    optimizer = torch.optim.AdamW(plan.param_groups(model, lr=0.1))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    model(ids()).square().mean().backward()
    optimizer.step()
    scheduler.step()
    assert torch.equal(model.first.weight, frozen)
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.0]


def test_scaled_inputs_equal_scaled_weights():
    model = Tied().double()
    plan = keep_plan(model)
    plan.scales += [ScalePlan("first", 0.5), ScalePlan("head", 0.25)]
    expected = copy.deepcopy(model)
    with torch.no_grad():
        expected.first.weight.mul_(0.5)
    reference = 0.25 * expected(ids())
    plan.apply_(model)
    torch.testing.assert_close(model(ids()), reference)
    plan.apply_(model)
    torch.testing.assert_close(model(ids()), reference)
    torch.testing.assert_close(copy.deepcopy(model)(ids()), reference)
    assert set(model.state_dict()) == set(expected.state_dict())


def test_scales_for_output_and_attribute():
    model = Tied().double()
    model.first.scaling = 4.0
    plan = keep_plan(model)
    plan.scales += [ScalePlan("first", 0.5, "attribute:scaling"), ScalePlan("head", 3.0, "output")]
    expected = 3.0 * model(ids())
    plan.apply_(model)
    plan.apply_(model)
    assert model.first.scaling == 2.0
    torch.testing.assert_close(model(ids()), expected)
    plan.scales.append(ScalePlan("heda", 1.0))
    with pytest.raises(UnknownNameError, match="head"):
        plan.apply_(model)


def test_junctions_folded_or_branch_scale_but_never_a_silent_skip_scale():
    model = Tied().double()
    hidden = model.embed(ids())
    expected = model.head(model.norm(hidden + 0.1 * model.first(hidden)))
    plan = keep_plan(model)
    plan.junctions.append(JunctionPlan("first", branch=0.1, folded=False))
    torch.testing.assert_close(plan.apply_(model)(ids()), expected)
    plan.junctions[0] = JunctionPlan("first", skip=0.5, branch=0.1, folded=False)
    with pytest.raises(UnsupportedError, match="skip scale"):
        plan.apply_(model)


def test_names_survive_compile_and_deepcopy():
    model = Tied()
    plan = keep_plan(model, first_weight={"lr": 0.5}).apply_(model) and keep_plan(model, first_weight={"lr": 0.5})
    plain = [group["param_names"] for group in plan.param_groups(model, lr=1.0)]
    compiled = torch.compile(copy.deepcopy(model), backend="eager")
    assert next(iter(dict(compiled.named_parameters()))).startswith("_orig_mod.")
    assert [group["param_names"] for group in plan.param_groups(compiled, lr=1.0)] == plain
    inner = nn.Sequential(torch.compile(nn.Linear(3, 3), backend="eager"))
    keep_plan(nn.Sequential(nn.Linear(3, 3))).check(inner)


def test_compiled_model_runs_with_scales():
    model = Tied().double()
    plan = keep_plan(model)
    plan.scales.append(ScalePlan("first", 0.5))
    plan.apply_(model)
    expected = model(ids())
    torch.testing.assert_close(torch.compile(model, backend="eager")(ids()), expected)


@pytest.fixture
def one_process(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@SHARDED_STEPS
def test_fully_sharded_parameters_are_drawn_as_if_whole(one_process):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    plain = Tied()
    plan = keep_plan(
        plain,
        embed_weight={"init": Init("normal", std=0.1)},
        first_weight={"init": Init("orthogonal", std=0.5), "lr": 0.5},
        first_bias={"init": Init("keep", value=3.0)},
    )
    sharded = copy.deepcopy(plain)
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    fully_shard(sharded.first, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    plan.apply_(plain, generator=torch.Generator().manual_seed(5))
    plan.apply_(sharded, generator=torch.Generator().manual_seed(5))
    for (name, left), (_, right) in zip(plain.named_parameters(), sharded.named_parameters(), strict=True):
        assert isinstance(right, DTensor)
        torch.testing.assert_close(right.full_tensor(), left.detach(), msg=name)
    torch.testing.assert_close(sharded(ids()), plain(ids()))
    groups = plan.param_groups(sharded, lr=1e-2)
    assert [g["lr"] for g in groups] == [1e-2, 5e-3]
    torch.optim.AdamW(groups).step()


def test_explain_collapses_numbered_rows():
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
    plan = keep_plan(model)
    plan.junctions += [
        JunctionPlan("0", branch=0.5, folded=False),
        JunctionPlan("1", branch=0.5, folded=False),
    ]
    text = plan.table().text(160)
    assert "6 more parameters keep what they have" in text
    assert str(plan.explain()) == str(plan.table())
    assert "junction * (2)" in text


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Init("gaussian"), "one of normal"),
        (lambda: Init("normal", std=-1.0), "not negative"),
        (lambda: Init("blocks", sizes=(1, 2), parts=(Init(),)), "one size per part"),
        (lambda: ScalePlan("x", 1.0, "middle"), "attribute:NAME"),
    ],
)
def test_bad_rows_are_refused(build, message):
    with pytest.raises(InputError, match=message):
        build()
