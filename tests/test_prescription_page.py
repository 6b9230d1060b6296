"""The page of trainings says what its data say."""

import json
import math

import pytest

pytest.importorskip("matplotlib", reason="the study draws figures")

from studies.prescription_page import EVEN, PAGE, best, curves, deviation, long_runs, mean, with_tables

LAYERS, WIDTHS = (4, 16, 64), (128, 256, 512, 1024)


@pytest.fixture(scope="module")
def llamas():
    found = curves()
    return {(layers, width): found["llama", layers, width] for layers in LAYERS for width in WIDTHS}


def test_the_tables_are_made_from_the_data():
    text = PAGE.read_text()
    assert with_tables(text) == text


def test_one_rate_serves_every_llama(llamas):
    """The best rate stays within one step of two over the whole grid, and is not the last that was tried."""
    rates = {size: best(schemes["ours"])[0] for size, schemes in llamas.items()}
    assert set(map(math.log2, rates.values())) == {-7.0, -8.0}


def test_the_loss_is_below_that_of_every_other_scheme(llamas):
    leads = {}
    for size, schemes in llamas.items():
        lowest = min(mean(best(schemes[scheme])[1]) for scheme in ("default", "mup", "mup+linear"))
        leads[size] = 1 - mean(best(schemes["ours"])[1]) / lowest
    assert min(leads.values()) > 0
    told = f"{100 * min(leads.values()):.0f} to {100 * max(leads.values()):.0f} %"
    assert f"by {told}, in all twelve sizes" in PAGE.read_text()
    assert f"It is {told} below" in (PAGE.parents[1] / "do/plan.md").read_text()


def test_tables_at_the_rate_of_their_size_are_no_worse_anywhere():
    """Beyond two standard errors, where both have several seeds."""
    found = [schemes for schemes in curves().values() if {"ours", EVEN} <= set(schemes)]
    pairs = [(best(schemes["ours"])[1], best(schemes[EVEN])[1]) for schemes in found]
    pairs = [(now, before) for now, before in pairs if min(len(now), len(before)) > 2]
    assert len(pairs) >= 10
    for now, before in pairs:
        error = math.sqrt(sum(deviation(losses) ** 2 / len(losses) for losses in (now, before)))
        assert mean(now) < mean(before) + 2 * error


def test_the_lead_of_48_layers_lasts():
    ends = {
        scheme: [row["last"] for row in long_runs() if (row["layers"], row["scheme"]) == (48, scheme)]
        for scheme in ("default", "ours")
    }
    assert len(ends["ours"]) == len(ends["default"]) == 3
    assert max(ends["ours"]) < min(ends["default"])


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["gpt2,64,1,ours,2^-7,0", "mixtral,64,1,default,2^-7,0"])
def test_one_cell_is_trained(cell, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    from studies import prescription_training

    text, out = tmp_path / "text.txt", tmp_path / "rows.jsonl"
    text.write_text("the cat sat on the mat. " * 50)
    words = ["x", str(text), "--cells", cell, "--steps", "3", "--tokens", "16", "--batch", "2", "--out", str(out)]
    monkeypatch.setattr("sys.argv", [*words, "--device", "cpu"])
    prescription_training.main()
    row = json.loads(out.read_text())
    assert (row["done"], row["steps"], row["family"]) == (3, 3, cell.split(",")[0])
    assert math.isfinite(row["last"])
