"""The pieces that reproductions are made of: rates compared fairly, casts, spikes, depths, parametrizations."""

import math

import pytest
import torch
from torch import nn

from sigprop.research.criticality import architecture, factor_at_depth
from studies import abc_transfer, apjn_figure11, dslm_table11, dslm_table12, effective_vit
from studies.rate_runs import best_of
from studies.reproduction import Setting
from studies.text_runs import Method, Program


def runs(*cells):
    return {"runs": [{"rate": rate, "seed": seed, "last": loss} for rate, seed, loss in cells]}


def test_a_rate_tried_with_one_seed_is_not_compared_with_one_of_three():
    best = best_of(runs((0.1, 0, 2.0), (0.2, 0, 1.9), (0.2, 1, 2.3), (0.2, 2, 2.2)))
    assert (best.rate, best.losses) == (0.2, [1.9, 2.3, 2.2])
    assert best_of(runs((0.1, 0, 2.0), (0.2, 0, None))).rate == 0.1


def test_rates_go_up_until_the_best_is_inside(monkeypatch):
    asked = []

    def train(self, method, batches, setting, cells=(), name="", **options):
        chosen = list(cells) or [(rate, 0) for rate in self.rates]
        asked.append([rate for rate, _ in chosen])
        return runs(*((rate, seed, abs(math.log2(rate / 0.4))) for rate, seed in chosen))

    monkeypatch.setattr(Program, "train", train)
    method = Method("x", "xavier", "pre", 1, 8)
    found = Program((0.1, 0.2), (0,), 1, 8, 1).search(method, None, Setting())
    assert asked == [[0.1, 0.2], [0.4, 0.8]]
    assert best_of(found).rate == 0.4


@pytest.mark.parametrize(
    ("failing", "learned", "verdict"),
    [(3.5, 2.0, "reproduced"), (2.5, 2.0, "in order but not in size"), (1.9, 2.0, "not reproduced")],
)
def test_table_12_is_judged_by_what_trains(failing, learned, verdict):
    methods = [
        {"label": label, "layers": 4, "width": 8, **runs((1e-3, 0, failing if value == math.inf else learned))}
        for label, value in dslm_table12.PAPER.items()
    ]
    assert dslm_table12.judge({"tokens": 10**6, "methods": methods}).verdict == verdict


@pytest.mark.parametrize("kind", dslm_table11.FORMATS.values(), ids=str)
def test_a_cast_layer_multiplies_8_bit_numbers(kind):
    layer = nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.3, -1e9, 0.0], [1.0, 2.2, -0.7]]))
        dslm_table11._cast_(nn.Sequential(layer), kind)
        x = torch.tensor([[0.33, 1.0, -5.1]])
        rounded = x.to(kind).to(x.dtype)
        assert layer.weight[0, 1] == -torch.finfo(kind).max
        assert torch.equal(layer.weight, layer.weight.to(kind).float())
        assert torch.equal(layer(x), rounded @ layer.weight.T)


def test_the_hybrid_is_the_geometric_mean_of_the_papers_other_two():
    tangent, hybrid, maximal = (effective_vit.factors(name, 256) for name in effective_vit.STRATEGIES[1:])
    for group in hybrid:
        assert hybrid[group] == pytest.approx(math.sqrt(tangent[group] * maximal[group]))
    assert tangent["position"] == pytest.approx(256)


def test_a_spike_that_lasts_counts_once():
    calm = [1.0] * 100
    assert effective_vit.spikes(calm, 10) == 0
    assert effective_vit.spikes([*calm[:50], 2.0, 2.0, *calm[52:80], float("nan"), *calm[81:]], 10) == 2
    assert effective_vit.spikes([9.0, *calm], 10) == 0


@pytest.mark.parametrize("square", apjn_figure11.SQUARES)
def test_the_correlation_length_is_that_of_the_theory(square):
    network = architecture("erf", "preactivation", 0.0)
    factor = float(factor_at_depth(network, square**0.5, apjn_figure11.BIAS**0.5, 50))
    assert apjn_figure11.correlation_length(square) == pytest.approx(-1 / math.log(factor), rel=1e-9)


def test_the_reach_is_where_accuracy_is_half_lost():
    assert apjn_figure11.reach([10, 20, 30], [0.9, 0.9, 0.1]) == pytest.approx(25)
    assert apjn_figure11.reach([10, 20], [0.9, 0.8]) == math.inf


@pytest.mark.parametrize(("one", "other"), [("SP", "NTK"), ("muP", "MF")])
def test_equivalent_parametrizations_start_alike_and_move_alike(one, other):
    x = torch.randn(5, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    (first, plan), (second, same) = (abc_transfer.made(name, 64, 32, 0) for name in (one, other))
    for left, right in zip(first.features(x), second.features(x), strict=True):
        assert torch.allclose(left, right, rtol=1e-4, atol=1e-6)
    for a, b, f, g in zip(plan, same, first.multipliers, second.multipliers, strict=True):
        assert a.lr * f == pytest.approx(b.lr * g)
