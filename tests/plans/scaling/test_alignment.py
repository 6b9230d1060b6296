"""Measured alignment against constructed cases and the known behaviour of a linear readout."""

from fractions import Fraction

import pytest
import torch
from torch import nn

from sigprop.errors import InputError
from sigprop.models import build
from sigprop.plans.exponents import solve
from sigprop.plans.scaling import measure_alignment
from sigprop.plans.scaling import plan as prescribe
from sigprop.plans.scaling.alignment import AlignmentReport, AlignmentRow, _ratio


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
