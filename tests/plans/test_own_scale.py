"""Few groups with factors against one group for every setting: the same trajectory, states, schedules and hooks."""

import copy
import functools
import io
import pickle

import pytest
import torch
from torch.nn import functional as F

import sigprop as sp
from sigprop.models import build
from sigprop.plans import own_scale
from tests.plans.shared import SHARDED_STEPS

IDS = torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(0))
PLAIN = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}
RATES, DECAYS = {"sgd": 0.1, "momentum": 0.02}, {"adam": 0.0}


def planned(optimizer="adamw"):
    """A fresh planned model, without biases: the gradient of a key's bias is rounding alone, and so its sign."""
    model, plan = made(optimizer)
    return copy.deepcopy(model), plan


@functools.cache
def made(optimizer):
    torch.manual_seed(0)
    model = build("transformer", depth=3, width=16, heads=2, vocabulary=64, context=12, bias=False).double()
    plan = sp.plan(model, "unit", width="mup", optimizer=optimizer, batch=IDS)
    torch.manual_seed(1)
    return plan.apply_(model), plan


def many_groups(plan, model, optimizer, **options):
    groups = plan.param_groups(model, lr=RATES.get(optimizer, 0.01), weight_decay=DECAYS.get(optimizer, 0.1), eps=1e-4)
    if optimizer in ("sgd", "momentum"):
        for group in groups:
            group.pop("eps")
        return torch.optim.SGD(groups, lr=1.0, momentum=0.9 if optimizer == "momentum" else 0.0)
    if optimizer == "lion":
        from sigprop.plans.own_scale import Lion

        return Lion([{k: v for k, v in group.items() if k != "eps"} for group in groups])
    return PLAIN[optimizer](groups, **options)


def few_groups(plan, model, optimizer, **options):
    eps = {"eps": 1e-4} if optimizer in ("adam", "adamw") else {}
    decay = DECAYS.get(optimizer, 0.1)
    return plan.optimizers(model, lr=RATES.get(optimizer, 0.01), weight_decay=decay, **eps, **options)[0]


def train(model, optimizer, steps=6, schedule=None):
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(IDS)[:, :-1].flatten(0, 1), IDS[:, 1:].flatten()).backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def same(left, right):
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "momentum", "lion"])
def test_few_groups_train_as_one_group_for_every_setting(optimizer):
    model, plan = planned(optimizer)
    other = copy.deepcopy(model)
    few, many = few_groups(plan, model, optimizer), many_groups(plan, other, optimizer)
    assert len(few.param_groups) < len(many.param_groups)
    assert any(scale != 1.0 for group in few.param_groups for scale in group.get(own_scale.KEY, ()))
    before = train(copy.deepcopy(model), few_groups(plan, copy.deepcopy(model), optimizer), steps=0)
    after = train(model, few)
    assert (after - before).abs().max() > 1e-3
    same(after, train(other, many))


@pytest.mark.parametrize("way", ["foreach", "fused"])
def test_every_way_of_stepping(way):
    model, plan = planned()
    other = copy.deepcopy(model)
    options = {"foreach": way == "foreach", "fused": way == "fused"}
    same(train(model, few_groups(plan, model, "adamw", **options)), train(other, many_groups(plan, other, "adamw")))


@pytest.mark.parametrize("kind", ["lambda", "one cycle"])
def test_schedules_multiply_every_rate(kind):
    def scheduled(optimizer):
        if kind == "lambda":
            return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        peaks = [group["lr"] for group in optimizer.param_groups]
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=peaks, total_steps=8, cycle_momentum=False)

    model, plan = planned()
    other = copy.deepcopy(model)
    few, many = few_groups(plan, model, "adamw"), many_groups(plan, other, "adamw")
    same(train(model, few, schedule=scheduled(few)), train(other, many, schedule=scheduled(many)))


@pytest.mark.parametrize("how", ["state_dict", "pickle", "deepcopy"])
def test_a_run_goes_on_from_what_was_kept(how):
    model, plan = planned()
    optimizer = few_groups(plan, model, "adamw")
    train(model, optimizer, steps=3)
    if how == "state_dict":
        buffer = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
        buffer.seek(0)
        kept = torch.load(buffer, weights_only=True)
        resumed, _ = planned()
        resumed.load_state_dict(kept["model"])
        again = few_groups(plan, resumed, "adamw")
        again.load_state_dict(kept["optimizer"])
    elif how == "pickle":
        resumed, again = pickle.loads(pickle.dumps((model, optimizer)))
    else:
        resumed, again = copy.deepcopy((model, optimizer))
    assert torch.equal(train(model, optimizer, steps=3), train(resumed, again, steps=3))


def test_gradients_stay_hooks_run_once_and_closures_see_the_model():
    model, plan = planned()
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])  # torch now wraps AdamW.step
    optimizer = few_groups(plan, model, "adamw")
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    expected = F.cross_entropy(model(IDS)[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(IDS)[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())
        loss.backward()
        closure.gradients = [parameter.grad.clone() for parameter in model.parameters()]
        return loss

    assert torch.equal(optimizer.step(closure), expected)
    assert seen == ["before", "after"]
    for parameter, gradient in zip(model.parameters(), closure.gradients, strict=True):
        assert torch.equal(parameter.grad, gradient)


def test_a_step_that_fails_leaves_weights_and_gradients():
    model, plan = planned()
    optimizer = few_groups(plan, model, "adamw")
    F.cross_entropy(model(IDS)[:, :-1].flatten(0, 1), IDS[:, 1:].flatten()).backward()
    optimizer.param_groups[0]["betas"] = None
    before = [(parameter.detach().clone(), parameter.grad) for parameter in model.parameters()]
    with pytest.raises(TypeError):
        optimizer.step()
    for parameter, (weight, gradient) in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), weight, rtol=1e-14, atol=0)
        assert parameter.grad is gradient


def test_short_floats_keep_their_groups():
    """A division and a product cost a bf16 weight a digit it does not have."""
    model, plan = planned()
    model.to(torch.bfloat16)
    optimizer = few_groups(plan, model, "adamw")
    assert len(optimizer.param_groups) == len(many_groups(plan, model, "adamw").param_groups)
    assert not any(own_scale.KEY in group for group in optimizer.param_groups)


def test_twelve_layers_have_as_many_groups_as_four():
    def groups(depth):
        torch.manual_seed(0)
        model = build("transformer", depth=depth, width=16, heads=2, vocabulary=64, context=12)
        plan = sp.plan(model, "unit", width="mup", batch=IDS)
        return len(plan.optimizers(model, lr=0.01, weight_decay=0.1)[0].param_groups)

    assert groups(12) == groups(4) <= 8


@SHARDED_STEPS
def test_sharded_parameters_train_as_whole_ones(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, plan = planned()
    sharded = copy.deepcopy(model)
    train(model, few_groups(plan, model, "adamw"), steps=3)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
        optimizer = few_groups(plan, sharded, "adamw")
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(sharded(IDS)[:, :-1].flatten(0, 1), IDS[:, 1:].flatten()).backward()
            optimizer.step()
        for whole, part in zip(model.parameters(), sharded.parameters(), strict=True):
            same(part.full_tensor(), whole.detach())
    finally:
        torch.distributed.destroy_process_group()
