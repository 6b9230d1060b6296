"""What the page of trainings claims follows from its data; commit 4adf60b9 has the study that wrote both."""

import json
import math
from collections import defaultdict
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
LAYERS, WIDTHS = (4, 16, 64), (128, 256, 512, 1024)
EVEN = "ours:shaped=0"
USUAL = {"optimizer": "adamw", "steps": 300, "tokens": 256}


def rows_of(name: str) -> list[dict]:
    return json.loads((DOCS / f"data/{name}.json").read_text())["rows"]


@pytest.fixture(scope="module")
def curves():
    """Final losses of the usual runs by model and size, scheme, rate and seed."""
    found = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for row in rows_of("prescription_training"):
        if all(row.get(key, value) == value for key, value in USUAL.items()):
            found[row["family"], row["layers"], row["width"]][row["scheme"]][row["rate"]][row["seed"]] = row["last"]
    return found


def means(rates: dict[float, dict[int, float]]) -> dict[float, float]:
    """By rate, over the seeds that all rates were run with: other means would compare seeds too."""
    seeds = set.intersection(*map(set, rates.values()))
    return {rate: mean([found[seed] for seed in seeds]) for rate, found in sorted(rates.items())}


def best(rates: dict[float, dict[int, float]]) -> tuple[float, list[float]]:
    """The rate with the lowest loss, and its losses; neighbours are told apart by all seeds that they share."""
    losses = means(rates)
    first = min(losses, key=losses.__getitem__)
    near = means({rate: found for rate, found in rates.items() if first / 2.1 < rate < 2.1 * first})
    rate = min(near, key=near.__getitem__)
    return rate, list(rates[rate].values())


def mean(losses: list[float]) -> float:
    return sum(losses) / len(losses)


def error(losses: list[float]) -> float:
    """Standard error of the mean."""
    return math.sqrt(sum((x - mean(losses)) ** 2 for x in losses) / (len(losses) - 1) / len(losses))


def llamas(curves):
    return {(layers, width): curves["llama", layers, width] for layers in LAYERS for width in WIDTHS}


def test_one_rate_serves_every_llama(curves):
    """The best rate stays within one step of two over the whole grid, and is not the last that was tried."""
    rates = {size: best(schemes["ours"])[0] for size, schemes in llamas(curves).items()}
    assert set(map(math.log2, rates.values())) == {-7.0, -8.0}


def test_the_loss_is_below_that_of_every_other_scheme(curves):
    leads = {}
    for size, schemes in llamas(curves).items():
        others = [best(schemes[scheme])[1] for scheme in ("default", "mup", "mup+linear") if schemes[scheme]]
        leads[size] = 1 - mean(best(schemes["ours"])[1]) / min(map(mean, others))
    assert min(leads.values()) > 0
    told = f"{100 * min(leads.values()):.0f} to {100 * max(leads.values()):.0f} %"
    assert f"by {told}, in all twelve sizes" in (DOCS / "evidence/prescription.md").read_text()
    assert f"It is {told} below" in (DOCS / "do/plan.md").read_text()


def test_tables_at_the_rate_of_their_size_are_no_worse_anywhere(curves):
    """Beyond two standard errors, where both have several seeds."""
    found = [schemes for schemes in curves.values() if {"ours", EVEN} <= set(schemes)]
    pairs = [(best(schemes["ours"])[1], best(schemes[EVEN])[1]) for schemes in found]
    pairs = [(now, before) for now, before in pairs if min(len(now), len(before)) > 2]
    assert len(pairs) >= 10
    for now, before in pairs:
        assert mean(now) < mean(before) + 2 * math.hypot(error(now), error(before))


def test_the_lead_of_48_layers_lasts():
    ends = {
        scheme: [row["last"] for row in rows_of("prescription_long") if (row["layers"], row["scheme"]) == (48, scheme)]
        for scheme in ("default", "ours")
    }
    assert len(ends["ours"]) == len(ends["default"]) == 3
    assert max(ends["ours"]) < min(ends["default"])
