"""Nothing is lost on a reload, and loading is all or nothing."""

import copy
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import sigprop as sp
from sigprop.errors import InputError, SigpropError
from sigprop.models import build
from sigprop.plans import Plan
from sigprop.plans.rows import JunctionPlan, ParameterPlan, ScalePlan
from sigprop.results import Init
from tests.plans.shared import SHARDED_STEPS


def gpt():
    return build("transformer", vocabulary=19, context=12, width=32, depth=2, heads=4)


def tokens():
    return torch.randint(0, 19, (2, 12), generator=torch.Generator().manual_seed(0))


def trained(name):
    """A model whose branch scales have learned something, and its plan."""
    torch.manual_seed(0)
    model = gpt()
    made = sp.plan(model, name, batch=tokens(), surgery=True)
    made.apply_(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        model(tokens()).square().mean().backward()
        optimizer.step()
    return model, made


def state(model):
    values = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return values, {name: (len(m._forward_hooks), sorted(m.__dict__)) for name, m in model.named_modules()}


def same(left, right):
    return left[1] == right[1] and all(torch.equal(value, right[0][name]) for name, value in left[0].items())


@pytest.mark.parametrize("name", ["layer_scale", "rezero"])
def test_learned_scales_that_were_not_loaded_are_missed(name, tmp_path):
    model, made = trained(name)
    wanted = model(tokens())
    again = gpt()
    again.load_state_dict(model.state_dict(), strict=False)  # as from_pretrained does: new names are left out
    made.attach_(again)
    told = made.verify(again)
    assert len(told) == 4
    assert all("branch_scale" in line for line in told)
    assert made.verify(copy.deepcopy(again)) == told
    again.load_state_dict(model.state_dict())
    assert made.verify(again) == []
    assert torch.equal(again(tokens()), wanted)
    made.save_weights(model, tmp_path / "model.safetensors")
    fresh = made.load_weights(gpt(), tmp_path / "model.safetensors")
    assert made.verify(fresh) == []
    assert torch.equal(fresh(tokens()), wanted)
    other = gpt()
    other.load_state_dict(model.state_dict(), strict=False)
    made.attach_(other, weights=tmp_path)
    assert made.verify(other) == []
    assert torch.equal(other(tokens()), wanted)


def missing(values):
    values.pop(next(iter(values)))


def reshaped(values):
    name = next(iter(values))
    values[name] = values[name][:-1].clone()


def unexpected(values):
    values["nobody.weight"] = torch.ones(3)


@pytest.mark.parametrize("damage", [missing, reshaped, unexpected])
def test_a_file_that_does_not_fit_changes_nothing(damage, tmp_path):
    model, made = trained("layer_scale")
    path = tmp_path / "model.safetensors"
    made.save_weights(model, path)
    values = load_file(path)
    damage(values)
    save_file(values, path, metadata={"sigprop_plan": made.digest})
    target = gpt()
    before = state(target)
    with pytest.raises(InputError, match=r"model\.safetensors"):
        made.load_weights(target, path)
    assert same(before, state(target))


@pytest.mark.parametrize("content", [b"", b"not a file of weights", None])
def test_a_damaged_file_is_named(content, tmp_path):
    model, made = trained("rezero")
    path = tmp_path / "model.safetensors"
    made.save_weights(model, path)
    path.write_bytes(path.read_bytes()[:-40] if content is None else content)
    with pytest.raises(InputError, match=r"model\.safetensors"):
        made.load_weights(gpt(), path)
    with pytest.raises(InputError, match="nothing"):
        made.load_weights(gpt(), tmp_path / "nothing.safetensors")


def test_an_own_plan_needs_values():
    """What a plan keeps must be there: nothing to keep on the meta device, or after `to_empty`."""
    made = sp.plan(gpt(), "own", batch=tokens(), width="mup")
    with torch.device("meta"):
        empty = gpt()
    with pytest.raises(InputError, match="meta device"):
        made.apply_(empty)
    model = empty.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    with pytest.raises(InputError, match="keeps"):
        made.apply_(model)
    assert any("not finite" in line for line in made.verify(model))


@SHARDED_STEPS
def test_an_own_plan_needs_values_of_a_sharded_model_too(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    made = sp.plan(gpt(), "own", batch=tokens(), width="mup")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        with torch.device("meta"):
            model = gpt()
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        model.to_empty(device="cpu")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.to_local().fill_(torch.nan)
        with pytest.raises(InputError, match="keeps"):
            made.apply_(model)
        assert any("not finite" in line for line in made.verify(model))
    finally:
        torch.distributed.destroy_process_group()


def rows_of(model):
    return [ParameterPlan(name, tuple(p.shape)) for name, p in model.named_parameters()]


ODD = {
    "axis": lambda rows: [replace(rows[0], init=Init("blocks", axis=7, sizes=(3,), parts=(Init("normal", 1.0),)))],
    "sizes": lambda rows: [replace(rows[0], init=Init("blocks", axis=0, sizes=(1,), parts=(Init("normal", 1.0),)))],
    "words": lambda rows: [replace(rows[0], init=Init("blocks", axis="x", sizes=(3,), parts=(Init("normal", 1.0),)))],
    "orthogonal": lambda rows: [replace(rows[1], init=Init("orthogonal", std=1.0))],
    "inner keep": lambda rows: [replace(rows[0], init=Init("blocks", axis=0, sizes=(3,), parts=(Init(),)))],
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_draw_is_refused_by_name(name):
    model = nn.Linear(4, 3)
    rows = rows_of(model)
    before = state(model)

    def apply():
        odd = ODD[name](rows)
        kept = [row for row in rows if row.name != odd[0].name]
        Plan(kept + odd).apply_(model)

    with pytest.raises(SigpropError):
        apply()
    assert same(before, state(model))


@pytest.mark.parametrize(
    "extra",
    [
        {"scales": [ScalePlan("", 2.0, "attribute:nothing")]},
        {"scales": [ScalePlan("", 2.0, "attribute:weight")]},
        {"scales": [ScalePlan("", 2.0, "attribute:bias")]},
        {"scales": [ScalePlan("", 2.0, "attribute:in_features")]},
        {"junctions": [JunctionPlan("", 0.5, 1.0, folded=False, place="input")]},
        {"junctions": [JunctionPlan("", 1.0, 0.5, folded=False, learnable=True, shape=(7,))]},
        {"junctions": [JunctionPlan("nowhere", 1.0, 0.5, folded=False)]},
    ],
)
def test_odd_scales_and_junctions_are_refused_by_name(extra):
    model = nn.Linear(4, 3)
    before = state(model)
    with pytest.raises(SigpropError):
        Plan(rows_of(model), **extra).apply_(model)
    assert same(before, state(model))
