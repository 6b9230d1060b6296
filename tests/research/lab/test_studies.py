"""The pieces that reproductions are made of: rates compared fairly, casts, spikes, depths, parametrizations."""

import json
import math

import pytest
import torch
from torch import nn

from sigprop.research.criticality import architecture, factor_at_depth
from studies import abc, apjn_start, dslm_training, effective
from studies.reproduction import UNSEEN, VERDICTS, Setting
from studies.reproductions import reproductions
from studies.trainings import Method, Program, best_of


def runs(*cells):
    return {"runs": [{"rate": rate, "seed": seed, "last": loss} for rate, seed, loss in cells]}


def test_a_rate_tried_with_one_seed_is_not_compared_with_one_of_three():
    best = best_of(runs((0.1, 0, 2.0), (0.2, 0, 1.9), (0.2, 1, 2.3), (0.2, 2, 2.2)))
    assert (best.rate, best.losses) == (0.2, [1.9, 2.3, 2.2])
    assert best_of(runs((0.1, 0, 2.0), (0.2, 0, None))).rate == 0.1


def test_rates_go_up_until_the_best_is_inside(monkeypatch):
    asked = []

    def train(self, method, setting, cells=(), name="", **options):
        chosen = list(cells) or [(rate, 0) for rate in (0.1, 0.2)]
        asked.append([rate for rate, _ in chosen])
        return runs(*((rate, seed, abs(math.log2(rate / 0.4))) for rate, seed in chosen))

    monkeypatch.setattr(Program, "train", train)
    method = Method("x", "xavier", "pre", 1, 8)
    found = Program((-3, -2), (0,), 1, 8, 1).search(method, Setting())
    assert asked == [[0.1, 0.2], [0.4, 0.8]]
    assert best_of(found).rate == 0.4


@pytest.mark.parametrize("kind", dslm_training.FORMATS.values(), ids=str)
def test_a_cast_layer_multiplies_8_bit_numbers(kind):
    layer = nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.3, -1e9, 0.0], [1.0, 2.2, -0.7]]))
        dslm_training.cast_(nn.Sequential(layer), kind)
        x = torch.tensor([[0.33, 1.0, -5.1]])
        rounded = x.to(kind).to(x.dtype)
        assert layer.weight[0, 1] == -torch.finfo(kind).max
        assert torch.equal(layer.weight, layer.weight.to(kind).float())
        assert torch.equal(layer(x), rounded @ layer.weight.T)


def test_the_hybrid_is_the_geometric_mean_of_the_papers_other_two():
    tangent, hybrid, maximal = (effective.factors(name, 256) for name in effective.STRATEGIES[1:])
    for group in hybrid:
        assert hybrid[group] == pytest.approx(math.sqrt(tangent[group] * maximal[group]))
    assert tangent["position"] == pytest.approx(256)


def test_a_spike_that_lasts_counts_once():
    calm = [1.0] * 100
    assert effective.spikes(calm, 10) == 0
    assert effective.spikes([*calm[:50], 2.0, 2.0, *calm[52:80], float("nan"), *calm[81:]], 10) == 2
    assert effective.spikes([9.0, *calm], 10) == 0


@pytest.mark.parametrize("square", apjn_start.SQUARES)
def test_the_correlation_length_is_that_of_the_theory(square):
    network = architecture("erf", "preactivation", 0.0)
    factor = float(factor_at_depth(network, square**0.5, apjn_start.BIAS**0.5, 50))
    assert apjn_start.correlation_length(square) == pytest.approx(-1 / math.log(factor), rel=1e-9)


def test_the_reach_is_where_accuracy_is_half_lost():
    assert apjn_start.reach([10, 20, 30], [0.9, 0.9, 0.1]) == pytest.approx(25)
    assert apjn_start.reach([10, 20], [0.9, 0.8]) == math.inf


@pytest.mark.parametrize(("one", "other"), [("SP", "NTK"), ("muP", "MF")])
def test_equivalent_parametrizations_start_alike_and_move_alike(one, other):
    x = torch.randn(5, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    (first, plan), (second, same) = (abc.made(name, 64, 32, 0) for name in (one, other))
    for left, right in zip(first.features(x), second.features(x), strict=True):
        assert torch.allclose(left, right, rtol=1e-4, atol=1e-6)
    for a, b, f, g in zip(plan, same, first.multipliers, second.multipliers, strict=True):
        assert a.lr * f == pytest.approx(b.lr * g)


TEXT = {"seeds": (0,), "powers": (-7,), "passages": 2, "length": 16, "steps": 3}
PAIR = {"shallow": (1, 16), "deep": (2, 8)}
ONE = {"depth": 2, "width": 16}
TINY = {
    "dslm-table7": PAIR | TEXT,
    "dslm-masked-pieces": PAIR | TEXT | {"dropout": 0.1, "objective": "masked", "vocabulary": 300},
    "dslm-table10": ONE | TEXT,
    "dslm-table4": {"shapes": ((1, 16), (2, 8), (4, 8))} | TEXT,
    "dslm-table5": {"shapes": ((1, 16), (2, 8), (4, 8))} | TEXT,
    "dslm-table8": PAIR | TEXT | {"powers": {"pre": (-7,), "post": (-7,)}},
    "dslm-table11": ONE | TEXT,
    "dslm-table12": ONE | {"depth": 3} | TEXT,
    "dslm-table13": ONE | {"depth": 3} | TEXT,
    "dslm-figures7-10": {"depth": 3, "width": 16} | TEXT,
    "preln-warmup": ONE | TEXT | {"objectives": ("spans", "masked"), "warmup": 1, "clip": 0.0, "dropout": 0.1},
    "effective-spans": ONE | TEXT | {"width": 32},
    "others-mup-rates": {"widths": (32, 64), "powers": (-7,), "steps": 2, "seeds": (0,), "passages": 1},
}
FAST = ("dslm-table11",)


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in TINY]
)
def test_a_dry_run_goes_through_and_is_too_small_to_tell(name):
    """What one command starts on a GPU, at the size of a toy."""
    item = reproductions()[name]
    found = item.judged(json.loads(json.dumps(item.run(Setting(), **TINY[name]))))
    assert found.verdict == VERDICTS[3]
    assert found.why.startswith("Too small to tell (")
    assert found.rows


def test_the_protocols_that_settle_are_the_papers():
    for name in ("dslm-table7", "dslm-masked-pieces", "dslm-table10", "dslm-table12", "dslm-table13", "preln-warmup"):
        full = reproductions()[name].full
        settings = {key: full[key] for key in ("betas", "warmup", "decay", "final", "steps", "seeds")}
        wanted = {"betas": (0.9, 0.999), "warmup": 1000, "decay": "linear", "final": 0.0, "steps": 5000}
        assert settings == wanted | {"seeds": (UNSEEN, UNSEEN + 1, UNSEEN + 2)}
