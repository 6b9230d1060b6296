"""The pieces that reproductions are made of."""

import math

import pytest

from sigprop.research.criticality import architecture, factor_at_depth
from studies import apjn_start


@pytest.mark.parametrize("square", apjn_start.SQUARES)
def test_the_correlation_length_is_that_of_the_theory(square):
    network = architecture("erf", "preactivation", 0.0)
    factor = float(factor_at_depth(network, square**0.5, apjn_start.BIAS**0.5, 50))
    assert apjn_start.correlation_length(square) == pytest.approx(-1 / math.log(factor), rel=1e-9)


def test_the_reach_is_where_accuracy_is_half_lost():
    assert apjn_start.reach([10, 20, 30], [0.9, 0.9, 0.1]) == pytest.approx(25)
    assert apjn_start.reach([10, 20], [0.9, 0.8]) == math.inf
