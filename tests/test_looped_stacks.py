"""The page of looped stacks says what its data say, and theory says today what is stored."""

from __future__ import annotations

import statistics

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from studies.looped_stacks import DATA, FITTED, PAGE, QUANTITIES, WIDTH, Looped, point, slope, tables
from studies.stored import read, replaced

RESULTS = read(DATA)["results"]


def test_the_tables_are_made_from_the_data():
    text = page = PAGE.read_text()
    for name, lines in tables(RESULTS).items():
        text = replaced(text, name, ["", *lines, ""])
    assert text == page


@pytest.mark.parametrize("block", ["MLP", "attention and MLP"])
@pytest.mark.parametrize("weights", ["shared", "separate"])
def test_what_is_stored_is_what_theory_says_now(block, weights):
    for found, stored in zip(point(block, weights, 4, seeds=2), RESULTS[f"{block}, {weights}"]["4"], strict=True):
        assert found[0] == pytest.approx(stored[0], rel=1e-6)
        assert found[1] == (stored[1] and pytest.approx(stored[1], rel=1e-6))


def test_nothing_is_a_guess_and_nothing_is_outside():
    for points in RESULTS.values():
        for rows in points.values():
            for predicted, stated, measured, error in rows:
                assert abs(predicted - measured) <= stated * predicted + 4.0 * error


@pytest.mark.parametrize("number", range(len(QUANTITIES)))
@pytest.mark.parametrize("block", ["MLP", "attention and MLP"])
def test_the_exponents_of_shared_weights_are_those_that_are_measured(block, number):
    """Of separate weights they are near 1; of shared ones, with visits taken as independent, they were as well."""
    predicted, _, real, error = zip(*(RESULTS[f"{block}, shared"][str(n)][number] for n in FITTED), strict=True)
    errors = [error / value for value, error in zip(real, error, strict=True)]
    (told, _), (measured, uncertain) = slope(predicted, errors), slope(real, errors)
    assert told == pytest.approx(measured, abs=0.1 + 4.0 * uncertain)
    assert told > 1.6


@pytest.mark.parametrize("weights", ["shared", "separate"])
def test_visits_of_one_set_of_weights_add_nearly_the_same_vector(weights):
    cosines = [_cosine(weights, seed) for seed in range(8)]
    error = statistics.stdev(cosines) / len(cosines) ** 0.5
    if weights == "shared":
        assert statistics.mean(cosines) - 4.0 * error > 0.9
    else:
        assert abs(statistics.mean(cosines)) < 4.0 * error


def _cosine(weights: str, seed: int) -> float:
    """Between what an MLP block adds at visits 16 and 32."""
    generator = torch.Generator().manual_seed(seed)
    model = Looped("MLP", weights, 32)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, 0.0, (2.0 / WIDTH) ** 0.5, generator=generator)
    added: list[Tensor] = []

    def keep(module: nn.Module, args: object, output: Tensor) -> None:
        added.append(output)

    for branch in model.branches:
        branch.register_forward_hook(keep)
    model(torch.randn(16, WIDTH, generator=generator))
    return float(F.cosine_similarity(added[15], added[31], dim=-1).mean().detach())
