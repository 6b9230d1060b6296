"""Every planted illness is found by its name and at its place; every kind of finding has one planted."""

import math

import pytest
import torch

from sigprop.check import check, checks
from studies.check_models import HEALTHY, ILLNESSES

UNPLANTED = {"trained", "disagreement"}


@pytest.mark.parametrize("illness", ILLNESSES, ids=lambda item: item.title)
def test_planted_illness_is_found(illness):
    torch.manual_seed(0)
    model = illness.make()
    options = illness.options(model) if illness.options is not None else {}
    report = check(model, prescription=False, **options)
    found = report[illness.finding]
    assert found, f"found only {[item.name for item in report.findings]}"
    named = [name for item in found for name in (*item.sites, *item.parameters)]
    assert any(illness.place in name for name in named), named
    assert all(item.evidence and item.cause and item.title for item in found)


def test_every_kind_of_finding_is_planted():
    assert set(checks()) == {item.finding for item in ILLNESSES} | UNPLANTED


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_models_have_no_problem(name):
    torch.manual_seed(1)
    report = check(HEALTHY[name](), prescription=False)
    assert report.healthy, [(item.severity, item.title) for item in report.findings]
    assert report.margins
    assert all(math.isfinite(item.value) for item in report.margins)
