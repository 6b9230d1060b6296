"""Shortcuts of the tests of independence give what the whole would."""

import pytest
import torch

from sigprop.distributions.distribution import ORTHOGONAL, STRUCTURED, Distribution
from sigprop.distributions.independence import _different, kind_of

GENERATOR = torch.Generator().manual_seed(0)


@pytest.mark.parametrize("times", [1, 2, 3, 50])
def test_numbers_that_stand_there_several_times_are_counted(times):
    numbers = torch.randn(60_000 // times, generator=GENERATOR).repeat(times)
    counted = _different(numbers[torch.randperm(len(numbers), generator=GENERATOR)])
    assert counted == pytest.approx(len(numbers) / times, rel=1e-3)


def test_a_block_of_orthogonal_rows_is_not_taken_for_the_whole():
    matrix = torch.nn.init.orthogonal_(torch.empty(256, 256), generator=GENERATOR)
    assert kind_of(matrix) == ORTHOGONAL
    matrix[200:] = matrix[:56]
    assert kind_of(matrix) == STRUCTURED


def test_moments_are_exact_for_constants_and_far_from_zero():
    assert Distribution.measured(torch.full((100, 100), 0.1)).variance == 0.0
    values = 1e3 + 1e-3 * torch.randn(200, 200, dtype=torch.float64, generator=GENERATOR)
    found = Distribution.measured(values)
    assert found.mean == pytest.approx(float(values.mean()))
    assert found.variance == pytest.approx(float(values.var(correction=0)), rel=1e-6)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("back", [False, True])
def test_draws_saved_in_a_short_type_are_still_draws(kind, back):
    generator = torch.Generator().manual_seed(0)
    for drawn in (torch.randn(256, 384, generator=generator), torch.rand(200, 40, generator=generator) - 0.5):
        rounded = (0.02 * drawn).to(kind)
        assert kind_of(rounded.float() if back else rounded) == "independent"
    table = torch.randint(-1, 2, (64, 64), generator=generator).to(kind)
    assert kind_of(table.float() if back else table) == "structured"


def test_rows_of_one_length_do_no_harm():
    """The tables of nGPT: every number below was a guess."""
    matrix = torch.randn(128, 64, generator=torch.Generator().manual_seed(0))
    assert kind_of(torch.nn.functional.normalize(matrix, dim=1)) == "independent"
    assert kind_of(matrix * torch.linspace(0.5, 2.0, 128)[:, None]) == STRUCTURED
