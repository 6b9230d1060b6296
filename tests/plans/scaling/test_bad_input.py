"""Bad input to a plan: one line that says what to do, and nothing in the model changed."""

import pytest
import torch
from torch import nn

import sigprop as sp
from sigprop.errors import InputError, SigpropError
from sigprop.models import build
from sigprop.plans.scaling import coord_check
from sigprop.plans.scaling import plan as prescribe

IDS = torch.randint(0, 19, (2, 12), generator=torch.Generator().manual_seed(0))


def gpt(width=32, depth=2, **settings):
    return build("transformer", vocabulary=19, context=12, width=width, depth=depth, heads=4, **settings)


def plan(model, **options):
    return sp.plan(model, "unit", **({"width": "mup", "batch": IDS} | options))


def twice(model):
    made = sp.plan(model, "own", width="mup", batch=IDS)
    made.apply_(model)
    made.apply_(model)


CASES = {
    "a plan for another width": (lambda model: plan(gpt(64)).apply_(model), "another shape at"),
    "a plan for another depth": (lambda model: plan(gpt(depth=3)).apply_(model), "name no parameter of the model"),
    "a plan for another architecture": (lambda model: plan(gpt()).apply_(nn.Linear(3, 3)), "no row for weight"),
    "groups of another model": (lambda model: plan(gpt(64)).param_groups(model, lr=1e-3), "does not fit the model"),
    "another optimizer than the plan's": (
        lambda model: plan(model).param_groups(model, lr=1e-3, optimizer="sgd"),
        "this plan is for adamw, not for sgd",
    ),
    "a rate of zero": (lambda model: plan(model).param_groups(model, lr=0.0), "a positive number"),
    "a rate below zero": (lambda model: plan(model).optimizers(model, lr=-1e-3), "a positive number"),
    "a rate that is no number": (lambda model: plan(model).param_groups(model, lr=float("nan")), "a positive number"),
    "a decay below zero": (lambda model: plan(model).param_groups(model, lr=1e-3, weight_decay=-1), "not negative"),
    "an unknown recipe": (lambda model: sp.plan(model, "unitt", batch=IDS), "unit"),
    "an unknown width rule": (lambda model: plan(model, width="mupp"), "mup"),
    "an unknown depth rule": (lambda model: plan(model, depth="cubic"), "linear"),
    "an unknown optimizer": (lambda model: plan(model, optimizer="adamv"), "adamw"),
    "an unknown option": (lambda model: plan(model, kk=2.0), "kk"),
    "two width rules": (lambda model: sp.plan(model, "mup", width="sp", batch=IDS), "give one"),
    "roles without a base": (lambda model: plan(model, roles={"head.weight": "readout"}), "base="),
    "a base of another architecture": (
        lambda model: prescribe(model, "mup", base=build("mlp", width=8, depth=2), batch=IDS),
        "only in the model",
    ),
    "a base of another depth, by width rule alone": (
        lambda model: plan(model, base=gpt(16, fused_qkv=True)),
        "only in the",
    ),
    "a reference of no width": (lambda model: plan(model, reference_width=0), "a positive number"),
    "targets of no number": (lambda model: plan(model).suggested_lr(0), "one or more"),
    "one width to check": (lambda model: coord_check(gpt, [32], batch=IDS), "two or more different widths"),
    "widths that are ignored": (lambda model: coord_check(lambda width: gpt(), [16, 32], batch=IDS), "ignores"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_line_and_nothing_changed(case):
    work, told = CASES[case]
    torch.manual_seed(3)
    model = gpt()
    before = {name: values.clone() for name, values in model.state_dict().items()}
    with pytest.raises(SigpropError, match=told) as error:
        work(model)
    assert "\n" not in str(error.value)
    assert all(torch.equal(before[name], values) for name, values in model.state_dict().items())
    hooks = [module for module in model.modules() if module._forward_hooks or module._forward_pre_hooks]
    assert not hooks


def test_a_plan_that_rescales_is_not_applied_twice():
    with pytest.raises(SigpropError, match="already applied: build the model anew") as error:
        twice(gpt(256))
    assert "\n" not in str(error.value)


def test_a_factory_that_returns_nothing_is_told():
    with pytest.raises(InputError, match="factory returned NoneType"):
        coord_check(lambda width: None, [16, 32], batch=IDS)


def test_a_batch_that_the_builds_do_not_take_is_told():
    """As in `measure`, by the model's own error; it had been called a fault of sigprop."""
    with pytest.raises(InputError, match="EncoderDecoder failed on the batch"):
        coord_check(lambda width: gpt(width, 1, kind="encoder_decoder"), [16, 32], batch=IDS, steps=1, seeds=1)
