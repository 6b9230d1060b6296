"""The prescription, applied, makes the measured fault disappear: the model is checked again, on its weights."""

import gc
import weakref

import pytest
import torch
from torch import nn

from sigprop.checks import check, checks
from sigprop.checks.evaluation import Experiment
from sigprop.checks.subject import Subject, repair_plan
from sigprop.inputs import made_up_batch
from sigprop.models.layers import initialize_
from sigprop.plans import Plan
from sigprop.plans.rows import ParameterPlan
from sigprop.results import Init
from sigprop.results.parameters import KEEP
from tests.checks.models import changed, tanh_mlp, transformer


def exploding():
    return initialize_(transformer(norm_placement="none", depth=6, width=32), "he", embedding_std=1.0)


def vanishing():
    return torch.nn.Sequential(*(m for _ in range(12) for m in (torch.nn.Linear(64, 64), torch.nn.ReLU())))


def collapsing():
    return initialize_(
        transformer(kind="encoder", norm_placement="post", depth=12, width=32), "xavier", embedding_std=1.0
    )


def saturated():
    model = transformer(depth=3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("query.weight", "key.weight")):
                weight.mul_(4.0)
    return model


CASES = {
    "gradient_explodes": exploding,
    "gradient_vanishes": vanishing,
    "rank_collapse": collapsing,
    "attention_saturated": saturated,
    "criticality": lambda: tanh_mlp(20, gain=3.0),
    "odd_sibling": lambda: changed(transformer(depth=4), "blocks.2.mlp.up.weight", lambda w: w.mul_(3.0)),
    "zeros_among_siblings": lambda: changed(transformer(depth=4), "blocks.1.mlp.down.weight", lambda w: w.zero_()),
    "initial_loss": lambda: changed(transformer(depth=2), "head.weight", lambda w: w.mul_(30.0)),
    "tied_readout": lambda: transformer(depth=2, tied_head=True, width=128),
}


@pytest.mark.parametrize("name", CASES)
def test_the_prescription_mends_what_was_measured(name):
    torch.manual_seed(0)
    model = CASES[name]()
    report = check(model, tokens=24)
    assert report[name], [item.name for item in report.findings]
    assert report.plan is not None
    prescription = report[name][0].prescription
    assert prescription is not None
    assert prescription.evaluated
    report.plan.apply_(model, torch.Generator().manual_seed(1))
    again = check(model, tokens=24, prescription=False)
    assert again.healthy, [(item.name, item.title) for item in again.findings if item.severity != "note"]


def test_a_repair_touches_only_what_was_odd():
    torch.manual_seed(0)
    model = CASES["odd_sibling"]()
    subject = Subject(model, made_up_batch(model, 32))
    (finding,) = checks()["odd_sibling"](subject)
    plan = repair_plan(subject.draws, finding.edits[0].inits)
    changed_rows = [row.name for row in plan if row.init.kind != "keep" or row.init.value != 1.0]
    assert changed_rows == ["blocks.2.mlp.up.weight"]


def test_a_fix_is_tried_on_a_copy_of_what_it_changes_alone():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    rows = [
        ParameterPlan(name, tuple(value.shape), init=Init("constant", value=0.5) if name == "1.weight" else KEEP)
        for name, value in model.named_parameters()
    ]
    before = model[1].weight.clone()
    copied = Experiment(model, torch.ones(2, 4)).applied(Plan(rows))
    assert copied[0].weight is model[0].weight
    assert bool((copied[1].weight == 0.5).all())
    assert torch.equal(model[1].weight, before)


def test_one_trial_keeps_weights_of_its_own(monkeypatch):
    """Whatever is tried, and however often: the weights of one trial are in memory."""
    made, alive = [], []
    applied = Experiment.applied

    def counted(self, plan):
        model = applied(self, plan)
        gc.collect()
        made.append(weakref.ref(model))
        alive.append(sum(item() is not None for item in made))
        return model

    monkeypatch.setattr(Experiment, "applied", counted)
    torch.manual_seed(0)
    check(tanh_mlp(20, gain=3.0), tokens=24)
    assert len(made) > 2
    assert max(alive) == 1, alive
