"""What is shown says where it comes from: in every row, in the first lines, in JSON."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import sigprop as sp
from sigprop.errors import UnsupportedError
from sigprop.results import Profile


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


X = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))


def test_theory_alone():
    found = sp.predict(net, X, verify=0)
    assert found.provenance == "theory"
    assert {row.source for row in (*found.sites, *found.parameters)} == {"theory"}
    assert "source: theory\n" in found.summary() + "\n"


def test_theory_that_initializations_confirm():
    found = sp.predict(net, X, verify=24)
    count = found.meta["verification"]["draws"]
    assert found.provenance.startswith(f"theory, confirmed by {count} initializations: ")
    assert found.summary().splitlines()[1] == f"source: {found.provenance}"
    for row in found.sites:
        assert (row.source == "confirmed") == (row.status == "verified")


def test_a_simulation_says_why(monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise UnsupportedError("no rule for this")

    monkeypatch.setattr("sigprop.prediction.predict_by_theory", refuse)
    found = sp.predict(net, X)
    count = found.meta["draws"]
    assert found.provenance.startswith("simulated (no rule for this")
    assert found.provenance.endswith(f", {count} initializations)")
    assert {row.source for row in found.sites} == {"simulated"}
    assert {row.status for row in found.sites} <= {"simulated", "assumed"}  # never "sampled", which is theory's own


def test_measured():
    assert sp.measure(net(), X).provenance == "measured (1 initialization)"


def test_json_keeps_it():
    found = sp.predict(net, X, verify=24)
    text = found.to_json()
    assert json.loads(text)["provenance"] == found.provenance
    again = Profile.from_json(text)
    assert [row.source for row in again.sites] == [row.source for row in found.sites]
    assert again.provenance == found.provenance


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_blueprints_are_theory(name):
    assert sp.predict(sp.blueprints.BLUEPRINTS[name].from_settings({"depth": 2})).provenance == "theory"
