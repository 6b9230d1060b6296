"""Every planted mistake is found by its name and at its place; every kind of finding has one planted."""

import gc
import math
import weakref

import pytest
import torch

from sigprop.checks import check, checks
from sigprop.checks.ends import gradient_ends
from sigprop.checks.evaluation import Experiment
from sigprop.checks.subject import Subject
from sigprop.inputs import made_up_batch
from sigprop.models.layers import initialize_
from tests.checks.models import HEALTHY, MISTAKES, TOKENS, gpt2, transformer
from tests.checks.test_answers import PLANTED
from tests.checks.test_operations import INFLUENCES, OPERATIONS

UNPLANTED = set(OPERATIONS) | {kind for _, kind, _ in INFLUENCES.values() if kind}
UNPLANTED |= {
    "mixed_axes",
    "signed_divisor",
    "missing_skip",
    "drowned_part",
    "lost_modules",
    "unread_parts",
    "codes",
    "frozen_readout",
    "branch_factor",
    "equal_examples",
    "steps_grow",
    "summed_term",
    "flat_derivative",
} | {
    "frozen_silenced",
    "trained",
    "disagreement",
    "equal_positions",
    "weights_not_loaded",
}
"""Those have tests of their own."""


def examined(model, measured, **options):
    """A subject with its measurement alone, which is all that most findings look at."""
    batch = made_up_batch(model, TOKENS)
    subject = Subject(model, batch, **options)
    if measured:
        subject.measured = Experiment(model, batch).measured()
    return subject


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda item: item.title)
def test_planted_mistake_is_found(mistake):
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = mistake.make()
    kind = checks()[mistake.finding]
    options = mistake.options(model) if mistake.options is not None else {}
    found = list(kind(examined(model, kind.group != "draw", **options)))
    named = [name for item in found for name in (*item.sites, *item.parameters)]
    assert any(mistake.place in name for name in named), named
    for item in found:
        assert item.name == mistake.finding
        assert item.evidence
        assert item.cause
        assert all(math.isfinite(number.value) for number in item.evidence)


def test_every_kind_of_finding_is_planted():
    planted = {item.finding for item in MISTAKES} | {finding for finding, _, _ in PLANTED.values()}
    assert set(checks()) == planted | UNPLANTED


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_draws_have_no_finding(name):
    """The draw of every healthy model; 300 whole checks of them are on the page `check` of the evidence."""
    pytest.importorskip("transformers")
    torch.manual_seed(2)
    subject = Subject(HEALTHY[name](), None)
    subject.batch = made_up_batch(subject.model, TOKENS)
    found = [item for kind in checks().values() if kind.group == "draw" for item in kind(subject)]
    assert not [(item.severity, item.title) for item in found if item.severity != "note"]


def test_a_healthy_model_is_one_line_with_margins():
    torch.manual_seed(0)
    report = check(transformer(depth=3))
    assert report.verdict == "no problems found"
    assert report.plan is None
    assert report.margins
    assert all(math.isfinite(item.value) for item in report.margins)


def test_a_trained_model_is_said_to_be_one():
    torch.manual_seed(0)
    model = gpt2(3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "ln" in name and name.endswith("weight"):
                weight.mul_(1 + 0.1 * torch.randn_like(weight))
    subject = examined(model, measured=False)
    assert [item.name for item in checks()["trained"](subject)] == ["trained"]
    assert not list(checks()["not_its_law"](subject))


def test_theory_and_measurement_disagree_on_structured_weights():
    """One symmetric matrix in all layers: its powers grow by Catalan numbers where independent ones keep the scale."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(8)))
    matrix = torch.randn(64, 64) / 8
    with torch.no_grad():
        for layer in model:
            layer.weight.copy_((matrix + matrix.T) / 2**0.5)
    subject = examined(model, measured=True)
    subject.predicted = Experiment(model, subject.batch).predicted()
    found = list(checks()["disagreement"](subject))
    assert [item.name for item in found] == ["disagreement"]


def test_a_fan_in_rule_is_no_depth_scaling():
    """Four layers and an mlp four times as wide: 1/sqrt(fan_in) looks like 1/sqrt(L) on the mlp's output."""
    torch.manual_seed(0)
    subject = examined(transformer(depth=4), measured=False)
    assert not list(checks()["depth_scaling"](subject))


def test_equal_tokens_do_not_end_a_prediction():
    """Post-LN with Xavier: after some layers all tokens are one, and their differences are rounding."""
    torch.manual_seed(0)
    model = initialize_(transformer(kind="encoder", norm_placement="post", depth=40, width=32), "xavier")
    profile = Experiment(model, made_up_batch(model, 16)).predicted()
    assert all(math.isfinite(row.variance) for row in profile)


def test_layers_are_counted_inside_a_container():
    encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32), 3, enable_nested_tensor=False)
    assert Subject(torch.nn.Sequential(torch.nn.Embedding(8, 16), encoder), None).layers == 3
    assert Subject(torch.nn.Sequential(torch.nn.Embedding(8, 16)), None).layers == 1
    assert Subject(torch.nn.Linear(4, 4), None).layers == 0
    assert Subject(transformer(depth=1), None).layers == 1
    assert Subject(transformer(depth=5), None).layers == 5


def test_the_tape_of_gradients_lets_the_graph_go():
    """A hook that held the tape would be a circle through the graph, which nothing collects (Swin-T: 161 MB)."""
    made = []
    linear = torch.nn.Linear(4, 4)
    linear.register_forward_hook(lambda *given: made.append(weakref.ref(given[-1])))
    gradient_ends(torch.nn.Sequential(linear, torch.nn.ReLU()), torch.randn(3, 4), None)
    gc.collect()
    assert made
    assert all(item() is None for item in made)
