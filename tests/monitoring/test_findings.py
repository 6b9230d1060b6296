"""Faulty runs are named, healthy ones are not, and each rule by itself."""

import math

import pytest
import torch

from sigprop.monitoring.findings.base import RULES, RunContext, findings_of
from sigprop.monitoring.findings.steps import expert_of
from sigprop.monitoring.history import History, Sample
from sigprop.monitoring.watching import Watch
from sigprop.results import Profile, SiteRow
from tests.monitoring.runs import FAULTY, HEALTHY, named_right


@pytest.mark.parametrize("fault", FAULTY)
def test_a_faulty_run_is_named(fault, tmp_path):
    run = FAULTY[fault](7)
    findings = run.findings(tmp_path, 55 if fault == "nan in a batch" else 25)
    assert named_right(run, findings), [finding.title for finding in findings]


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_said_of_a_healthy_run(name, tmp_path):
    assert HEALTHY[name](7).findings(tmp_path, 40) == []


def history(rows, table: str = "sites", losses=()) -> History:
    found = History()
    for step, row in enumerate(rows):
        sample = Sample(step)
        getattr(sample, table).update(row)
        found.add(sample)
    for step, loss in enumerate(losses):
        found.add_loss(step, loss)
    return found


def names(found: History, **context) -> list[str]:
    return [finding.name for finding in findings_of(found, RunContext(**context))]


def test_each_finding_is_told_once():
    context = RunContext()
    found = history([{}], losses=[1.0, math.nan])
    assert [finding.name for finding in findings_of(found, context)] == ["nonfinite"]
    assert findings_of(found, context) == []


def test_every_rule_is_silent_without_a_history():
    for rule in RULES.values():
        assert list(rule(History(), RunContext())) == []


def test_a_run_that_breaks_after_its_loss_has_risen_far_had_too_high_a_rate():
    row = {"w.weight": {"lr": 1.0, "update_ratio": 0.1}}
    for losses in ([1.0, 1.2, 9.0], [1.0, 1.2, 9.0, math.nan]):
        found = history([row, {}], "parameters", losses)
        found.samples[-1].bad = ("backward", "w")
        assert names(found)[0] == "rate_too_high"
    calm = history([row, {}], "parameters", [1.0, 0.9, 0.95])
    calm.samples[-1].bad = ("backward", "w")
    assert names(calm) == ["nonfinite"]


def test_entropy_counts_only_where_attention_had_a_choice_and_scores_grew():
    open_row = {"a.scores": {"entropy": 2.0, "uniform_entropy": 2.5, "largest_score": 1.0}}
    shut_row = {"a.scores": {"entropy": 0.05, "uniform_entropy": 2.5, "largest_score": 60.0}}
    sharp_row = {"a.scores": {"entropy": 0.05, "uniform_entropy": 2.5, "largest_score": 4.0}}
    assert names(history([open_row, shut_row])) == ["attention_collapse"]
    assert names(history([shut_row, shut_row])) == []
    assert names(history([open_row, sharp_row])) == []


def test_a_jump_is_told_at_the_first_place_that_leaves_its_history():
    calm = [{"a": {"variance": 1.0}, "b": {"variance": 2.0 + 0.1 * i}, "c": {"variance": 1.0}} for i in range(8)]
    jumped = {"a": {"variance": 1.0}, "b": {"variance": 900.0}, "c": {"variance": 800.0}}
    found = findings_of(history([*calm, jumped]), RunContext())
    assert [(finding.name, finding.sites) for finding in found] == [("jump", ("b",))]
    assert names(history([*calm, {**jumped, "b": {"variance": 8.0}, "c": {"variance": 1.0}}])) == []


def test_gradients_that_overflow_now_and_then_are_a_scaler_at_work():
    row = lambda share: {"a": {"grad_fp16_overflow": share}}  # noqa: E731
    assert names(history([row(0.1), row(0.0), row(0.1)])) == []
    assert names(history([row(0.1), row(0.1), row(0.1)])) == ["overflow"]


def test_the_first_sample_is_held_against_the_prediction():
    predicted = Profile([SiteRow("a", 0, variance=1.0, status="exact"), SiteRow("b", 0, variance=1.0, status="exact")])
    measured = {"a": {"variance": 1.2}, "b": {"variance": 4.0}}
    found = findings_of(history([measured]), RunContext(predicted=predicted))
    assert [(finding.name, finding.sites) for finding in found] == [("off_prediction", ("b",))]
    assert names(history([measured]), predicted=predicted, fresh=False) == []
    assert names(history([{"a": {"variance": 1.2}, "b": {"variance": 0.9}}]), predicted=predicted) == []


def test_gains_shrink_by_decay_only_where_the_step_points_at_zero():
    def rows(against: float, decay: float):
        moments = (1.0, 0.5, 0.3, 0.2)
        common = {"against": against, "weight_decay": decay, "lr": 1e-3}
        return [{"norm.weight": {"second_moment": moment, **common}} for moment in moments]

    norms = frozenset({"norm.weight"})
    assert names(history(rows(0.9, 0.1), "parameters"), norms=norms) == ["decayed_gain"]
    assert names(history(rows(0.9, 0.0), "parameters"), norms=norms) == []
    assert names(history(rows(0.1, 0.1), "parameters"), norms=norms) == []
    assert names(history(rows(0.9, 0.1), "parameters")) == []


def test_a_task_that_is_learned_has_small_gradients_and_no_finding():
    row = {"w.weight": {"lr": 1e-3, "eps": 1e-8, "denominator": 1e-9, "grad_second_moment": 1e-20, "unmoved": 0.0}}
    assert names(history([row, row], "parameters", losses=[3.0] * 10)) == ["epsilon_too_large"]
    assert names(history([row, row], "parameters", losses=[3.0, *[0.001] * 10])) == []


@pytest.mark.parametrize(
    ("parameter", "expert"),
    [
        ("layers.1.moe.experts.3.up.weight", "layers.1.moe.experts.3"),
        ("layers.1.mlp.experts.gate_up_proj[2]", "layers.1.mlp.experts.2"),
        ("layers.1.mlp.up.weight", None),
        ("layers.1.mlp.experts.gate_up_proj", None),
    ],
)
def test_experts_are_read_from_names(parameter, expert):
    assert expert_of(parameter) == expert


def test_a_rate_raised_in_a_run_that_has_learned_is_named(tmp_path):
    """The rate goes up a hundredfold at step 220, between samples: the loss asks for the sample, the rate is named."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    teacher = torch.randn(8)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with Watch(model, every=50, folder=tmp_path) as watch:
        for step in range(240):
            if step == 220:
                optimizer.param_groups[0]["lr"] = 0.3
            x = torch.randn(64, 8)
            loss = (model(x).squeeze(-1) - torch.tanh(x @ teacher)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.step(loss)
    (found,) = [item for item in watch.findings if item.name == "rate_too_high"]
    assert "from 0.003 to 0.3 after step 200" in found.title
    assert watch.history.samples[-1].step < 228
    assert not {"jump", "attention_collapse", "exploding_branch"} & {item.name for item in watch.findings}
