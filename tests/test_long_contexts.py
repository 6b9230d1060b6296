"""Contexts longer than theory follows, in models that are small enough to be run."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sigprop as sp
from sigprop import prediction
from sigprop.verification import long_contexts

LENGTH = 1100
IDS = torch.randint(50, (1, LENGTH), generator=torch.Generator().manual_seed(3))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.parts, self.head = nn.Embedding(50, 16), nn.Linear(16, 48), nn.Linear(16, 8)

    def forward(self, ids):
        x = self.embedding(ids)
        return self.head(x + F.scaled_dot_product_attention(*self.parts(x).chunk(3, -1), is_causal=True))


def test_an_affordable_context_is_simulated_and_theory_is_not_asked(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("theory costs more than the simulation and its rows are not shown")

    monkeypatch.setattr(prediction, "predict_by_theory", refuse)
    found = sp.predict(Attention, IDS)
    actual = sp.measure(None, IDS, build=Attention, seeds=range(40, 48))
    assert found.meta["verification"] == {"draws": 2, "tokens": LENGTH}
    assert {row.name for row in found.sites} == {row.name for row in actual.sites}
    for row in found.sites:
        assert row.status == "simulated"
        assert "1100 tokens are more than theory follows" in row.reason
        for column in ("variance", "grad_variance"):
            error = math.hypot(row.errors[column], actual[row.name].errors[column])
            assert abs(getattr(row, column) - getattr(actual[row.name], column)) < 5 * error, row.name


def test_a_context_that_costs_too_much_is_continued_from_shorter_ones(monkeypatch):
    monkeypatch.setattr(long_contexts, "OPERATIONS", 6e8)
    found = sp.predict(Attention, IDS)
    assert found.meta["verification"] == {"draws": 2, "tokens": 512}
    assert {row.status for row in (*found.sites, *found.parameters)} == {"assumed"}
    assert "continued from simulations of 256 and 512 tokens to 1100" in found["head"].reason


@pytest.mark.parametrize("options", [{"verify": 0}, {"networks": 2}])
def test_what_is_asked_of_theory_is_answered_by_theory(options):
    assert "continued from 64 and 128" in sp.predict(Attention, IDS, **options)["head"].reason


def test_a_model_that_does_not_run_at_its_length_is_left_to_theory(monkeypatch):
    def fail(self):
        raise MemoryError("too long")

    monkeypatch.setattr(long_contexts.LongContext, "simulated", fail)
    found = sp.predict(Attention, IDS)
    assert found.meta["verification"] == "not possible: too long"
    assert "continued from 64 and 128" in found["head"].reason
