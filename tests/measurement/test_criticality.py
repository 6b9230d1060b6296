"""The criticality test of a user's model."""

import importlib
import itertools
import math

import pytest
import torch
from scipy.optimize import brentq
from torch import nn

from sigprop.errors import InputError, UnknownNameError
from sigprop.measurement.criticality import check_criticality
from sigprop.models import mlp
from sigprop.theory import activations


def network(sigma_w, sigma_b=0.0, **settings):
    torch.manual_seed(1)
    return mlp(depth=24, width=256, activation="tanh", sigma_w=sigma_w, sigma_b=sigma_b, inputs=64, **settings)


def settled_logarithm(sigma_w, sigma_b, depth=24):
    """Mean log chi_J over the later half of the chain. Without biases the signal dies as one over depth at the critical
    point of an infinitely deep stack, so that 24 layers are critical at a sigma_w of 1.09."""
    function, level, found = activations.get("tanh"), torch.tensor(sigma_w**2 + sigma_b**2, dtype=torch.float64), []
    for _ in range(1, depth):
        level = sigma_w**2 * function.second_moment(level, 0.0) + sigma_b**2
        found.append(math.log(sigma_w**2 * float(function.derivative_second_moment(level, 0.0))))
    return sum(found[len(found) // 2 :]) / len(found[len(found) // 2 :])


X = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("sigma_w", "sigma_b", "verdict"), [(0.6, 0.0, "ordered"), (2.5, 0.3, "chaotic")])
def test_verdict_and_gain(sigma_w, sigma_b, verdict):
    report = check_criticality(network(sigma_w, sigma_b), X)
    assert report.verdict == verdict
    assert len(report.blocks) == 23
    assert report.depth_scale == pytest.approx(1 / abs(math.log(report.factor)))
    assert math.prod(row["factor"] for row in report.blocks) == pytest.approx(report.growth)
    # biases are not scaled: sigma_w at which a stack of this depth has chi_J = 1 at this sigma_b
    want = brentq(lambda sigma: settled_logarithm(sigma, sigma_b), 1.0, 3.0)
    assert report.gain * sigma_w == pytest.approx(want, rel=0.05)  # one network of width 256, eight probes: 0.014
    repaired = check_criticality(network(sigma_w * report.gain, sigma_b), X, find_gain=False)
    assert repaired.depth_scale > 3 * report.depth_scale


def test_model_is_left_as_it_was():
    model = network(1.3)
    before = [p.detach().clone() for p in model.parameters()]
    check_criticality(model, X, probes=2)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())


def test_full_residual_with_norm_is_critical_and_has_no_gain():
    report = check_criticality(network(1.4, norm_placement="preactivation", mu=1.0), X)
    assert report.verdict == "critical"
    assert any("depth^" in note for note in report.notes)


def test_gain_is_not_read_from_noise(monkeypatch):
    """Crossings of chi_J = 1 by amounts that no gradient would notice are none."""
    module = importlib.import_module("sigprop.measurement.criticality")
    for size, found in ((1e-4, False), (0.5, True)):
        signs = itertools.cycle((1, -1))
        monkeypatch.setattr(module, "_settled", lambda profile, size=size, signs=signs: (size * next(signs), 0.0))
        report = check_criticality(network(1.0), X, probes=1)
        assert (report.gain is not None) == found


def test_named_blocks_and_errors():
    model = network(1.0)
    report = check_criticality(model, X, blocks=["blocks.1?"], find_gain=False)
    assert [row["name"] for row in report.blocks] == [f"blocks.{i}" for i in range(11, 20)]
    assert report.to_dict()["verdict"] in ("ordered", "critical", "chaotic")
    with pytest.raises(UnknownNameError):
        check_criticality(model, X, blocks=["layers.*"])
    with pytest.raises(InputError, match="no list of like blocks"):
        check_criticality(nn.Linear(64, 3), X)
    dead = nn.Sequential(nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]))
    with torch.no_grad():
        for p in dead.parameters():
            p.zero_()
    with pytest.raises(InputError, match="died"):
        check_criticality(dead, X)
