"""Random networks: no confident row that fresh initializations contradict."""

import pytest

from studies.random_networks.judging import contradicted

SHORT = range(6)
LONG = range(1000, 1200)


@pytest.mark.parametrize("number", SHORT)
def test_no_confident_row_is_contradicted(number):
    assert not contradicted(number)


@pytest.mark.slow
@pytest.mark.parametrize("number", LONG)
def test_no_confident_row_is_contradicted_in_two_hundred_networks(number):
    assert not contradicted(number)
