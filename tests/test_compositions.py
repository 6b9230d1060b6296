"""The ablation table: every correction earns its place in whole networks, not op by op."""

from __future__ import annotations

import pytest

from studies.compositions.compositions import DEVELOPMENT, HELD_OUT
from studies.compositions.table import CHOICES, judged, predicted, read_table
from studies.compositions.witness import read_witness

TABLE = read_table()
SMALL = ("layer relu mlp 64x16 noise", "rms gelu mlp 64x12 cross_entropy", "residual mlp 64x16 noise")


def test_the_halves_share_no_network():
    names = [item.name for item in (*DEVELOPMENT, *HELD_OUT)]
    assert len(set(names)) == len(names) >= 24


@pytest.mark.parametrize("name", TABLE)
def test_no_number_of_a_composition_is_exact_and_wrong(name):
    assert TABLE[name]["all"]["wrong and exact"] == 0


WORSE = {
    "cnn group 64x8 noise": "gradients 5.1 % off with the corrections, 2.0 % without",
    "cnn batch 32x8 cross_entropy": "gradients 4.4 % off with the corrections, 3.0 % without (and eight rows outside)",
}
"""Networks that the corrections are known to make worse: strict, so that one that is mended leaves the list."""


def _judged():
    """Networks of which at least half of the numbers are no guesses."""
    for name, row in TABLE.items():
        if 2 * row["all"]["stated"] >= row["all"]["rows"]:
            marks = [pytest.mark.xfail(reason=WORSE[name], strict=True)] if name in WORSE else []
            yield pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", list(_judged()))
def test_the_corrections_make_no_composition_worse_than_its_standard_error(name):
    row = TABLE[name]
    assert row["all"]["gradient"] <= row["none"]["gradient"] + row["all"]["noise"]


@pytest.mark.parametrize("name", SMALL)
def test_what_is_stored_is_what_theory_says_now(name):
    (item,) = (item for item in DEVELOPMENT if item.name == name)
    found = judged(predicted(item, CHOICES["all"]), read_witness()[name])
    stored = TABLE[name]["all"]
    for column in ("variance", "gradient", "weights"):
        assert found[column] == pytest.approx(stored[column], abs=0.003)
    assert found["outside"] == stored["outside"]
