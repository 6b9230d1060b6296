"""Measured alignment against constructed cases and the known behaviour of a linear readout."""

import copy
import math
from fractions import Fraction

import pytest
import torch
from torch import nn

from sigprop.errors import InputError
from sigprop.measurement import measure
from sigprop.models import build
from sigprop.plans.exponents import solve
from sigprop.plans.scaling import contributions, expected_contributions, measure_alignment
from sigprop.plans.scaling import plan as prescribe
from sigprop.plans.scaling.alignment import AlignmentReport, AlignmentRow, _ratio
from sigprop.results.parameters import WIDTH_CLASSES


def gpt(width):
    return build("transformer", vocabulary=32, context=16, width=width, depth=1, heads=2)


def tokens():
    return torch.randint(0, 32, (4, 16), generator=torch.Generator().manual_seed(0))


def bigram(width):
    model = nn.Sequential(
        nn.Embedding(16, width), nn.Linear(width, width, bias=False), nn.Linear(width, 16, bias=False)
    )
    for weight, std in ((model[0].weight, 1.0), (model[1].weight, width**-0.5), (model[2].weight, width**-0.5)):
        nn.init.normal_(weight, 0.0, std)
    return model


def next_token(output, batch):
    return nn.functional.cross_entropy(output.flatten(0, -2), (batch.flatten() * 5 + 3) % 16)


def test_ratios_of_constructed_matrices():
    layer = nn.Linear(4096, 1024, bias=False).double()
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(1024, 4096, generator=generator, dtype=torch.float64)
    vector = torch.randn(64, 4096, generator=generator, dtype=torch.float64)
    assert _ratio(layer, matrix, vector) == pytest.approx(64.0, rel=5 * (0.5 / (1024 * 64)) ** 0.5)
    assert _ratio(layer, torch.ones_like(matrix), torch.ones_like(vector)) == pytest.approx(4096.0)


def test_linear_model_is_fully_aligned_at_the_readout():
    report = measure_alignment(
        bigram, [64, 128, 256, 512], batch=torch.arange(16), loss=next_token, plan="sp", optimizer="sign", lr=1e-2,
        steps=1, seeds=3,
    )  # fmt: skip
    rows = {row.role: row for row in report.rows}
    assert rows["hidden"].alpha[0] > 0.85
    assert rows["readout"].omega[1] > 0.5
    found = report.alignment()
    assert found.omega_hidden <= Fraction(1, 2)
    assert solve("SP", "adam", found).feature_change > 0
    assert len(report.table().rows) == 2


def test_measured_alignment_feeds_a_plan():
    row = AlignmentRow("x", "hidden", (0.52, 0.4, 0.6), (0.75, 0.7, 0.8), (0.7, 0.6, 0.8))
    out = AlignmentRow("y", "readout", (1.1, 1.0, 1.2), (0.9, 0.8, 1.0), (0.8, 0.7, 0.9))
    found = AlignmentReport([row, out], [64, 128], 3).alignment()
    assert (found.omega_hidden, found.omega_readout) == (Fraction(1, 2), 1)
    plan = prescribe(gpt(64), "mup", base=16, alignment=found)
    assert plan["blocks.0.mlp.up.weight"].lr == pytest.approx(4.0**-0.75)
    with pytest.raises(InputError, match="no readout layer"):
        AlignmentReport([row], [64, 128], 3).alignment()


def test_contributions_add_up_to_first_order_and_leave_the_model():
    torch.manual_seed(0)
    model = gpt(32).double()
    before = copy.deepcopy(model.state_dict())
    rows = contributions(model, tokens(), optimizer="sgd", lr=1e-4)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    by_name = {row.group: row for row in rows}
    total = by_name.pop("all")
    assert sum(row.predicted for row in by_name.values()) == pytest.approx(total.predicted)
    for row in rows:
        if abs(row.predicted) > 1e-9:
            assert row.loss == pytest.approx(row.predicted, rel=0.05)
    assert total.loss < 0


@pytest.mark.parametrize("optimizer", ["sgd", "sign"])
def test_a_profile_tells_the_contributions(optimizer):
    """Exact for SGD; for sign updates up to the shape of the gradient's distribution, which only lowers E|g|."""
    torch.manual_seed(0)
    model = gpt(32).double()

    def loss(output):
        return nn.functional.cross_entropy(output[:, :-1].flatten(0, 1), tokens()[:, 1:].flatten())

    profile = measure(model, tokens(), loss)
    expected = expected_contributions(profile, lr=1e-5, optimizer=optimizer)
    for row in contributions(model, tokens(), optimizer=optimizer, lr=1e-5):
        if row.group == "all" or "key.bias" in row.group:
            continue
        if optimizer == "sgd":
            assert -row.predicted == pytest.approx(expected[row.group], rel=1e-6)
        else:
            assert -row.predicted < expected[row.group] * (math.pi / 2) ** 0.5


def test_contributions_by_role_follow_the_plan():
    torch.manual_seed(0)
    model = gpt(64)
    plan = prescribe(model, "mup", base=16)
    rows = contributions(plan.apply_(model), tokens(), plan=plan, by="role")
    assert {row.group for row in rows} == {row.role for row in plan} | {"all"}
    assert {WIDTH_CLASSES[row.role] for row in plan} == {"embedding", "hidden", "readout", "vector"}
    assert sum(row.parameters for row in rows) == 2 * sum(p.numel() for p in model.parameters())
    with pytest.raises(InputError, match="roles"):
        contributions(model, tokens(), by="role")
