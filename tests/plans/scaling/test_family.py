"""The neural-tangent to maximal-update family against the printed table, and against the width rule."""

import math

import pytest

from sigprop.errors import InputError, UnknownNameError
from sigprop.plans.multipliers import multipliers
from sigprop.plans.scaling.depth import depth_factors
from sigprop.plans.scaling.dimensions import Dimensions
from sigprop.plans.scaling.width_rules import width_rule
from studies.effective import GROUPS, family_factors


def table(n, s, M, n_patch, n_out):
    """(init variance, SGD, AdamW) per group, entry by entry."""
    inner, adam = n**s, n ** (s / 2)
    rows = {
        "patch": (1 / n_patch, inner / n_patch, adam / (n_patch * math.sqrt(n))),
        "vocabulary": (1, inner, adam / math.sqrt(n)),
        "position": (1, inner, adam / math.sqrt(n)),
        "W": (1 / n, inner / n, adam / (n * math.sqrt(M * n))),
        "X": (1 / (M * n), inner / (M * n), adam / (M * n * math.sqrt(n))),
        "head": (n ** -(1 + s), 1 / n, 1 / (n * math.sqrt(n_out))),
        "head_bias": (0, 1, 1 / math.sqrt(n_out)),
    }
    return rows | dict.fromkeys("QKVU", (1 / n, inner / n, adam / (n * math.sqrt(n))))


@pytest.mark.parametrize("s", [0.0, 0.5, 1.0])
def test_factors_are_those_of_the_table(s):
    n, M, n_patch, n_out = 96, 4, 48, 10
    expected = table(n, s, M, n_patch, n_out)
    for group in GROUPS:
        found = family_factors(group, n, s, expansion=M, patch=n_patch, outputs=n_out)
        assert found == pytest.approx(expected[group]), group


def dims(role, m_in, m_out):
    return Dimensions("w", (8, 8), (4, 4), role, m_in, m_out, 1.0, (8, 4), (8, 4), ("w",), "w")


@pytest.mark.parametrize(("name", "s"), [("neural_tangent", 0.0), ("meta:1/2", 0.5), ("mup", 1.0)])
@pytest.mark.parametrize(("group", "role"), [("vocabulary", "embedding"), ("Q", "hidden"), ("head", "readout")])
def test_width_rule_is_the_ratio_of_the_family(name, s, group, role):
    small, large, m = family_factors(group, 64, s), family_factors(group, 256, s), 4.0
    item = dims(role, m if role != "embedding" else 1.0, m if role != "readout" else 1.0)
    factors = width_rule(name).factors(item)
    assert factors.weight**2 == pytest.approx(large[0] / small[0])
    assert multipliers(factors, "adamw").lr == pytest.approx(large[2] / small[2])
    assert multipliers(factors, "sgd").lr == pytest.approx(large[1] / small[1])


def test_bad_settings():
    with pytest.raises(UnknownNameError, match="mup"):
        width_rule("mupp")
    with pytest.raises(InputError, match="meta:1/2"):
        width_rule("meta:7")


def test_depth_rules():
    sqrt, linear = depth_factors("sqrt", 16, 4), depth_factors("linear", 16, 4)
    assert (sqrt.branch, sqrt.update, sqrt.gradient) == (0.5, 0.5, 0.5)
    assert (linear.branch, linear.update, linear.gradient) == (0.25, 1.0, 0.25)
    dslm = depth_factors("dslm", 48, 12)
    assert dslm.branch == pytest.approx(math.sqrt((2 / 46) / (2 / 10)))
    for rule in ("none", "sqrt", "linear", "dslm"):
        same = depth_factors(rule, 12, 12)
        assert (same.branch, same.update, same.gradient) == (1.0, 1.0, 1.0)
    with pytest.raises(UnknownNameError, match="linear"):
        depth_factors("line", 4, 2)
    with pytest.raises(InputError, match="more than 2"):
        depth_factors("dslm", 4, 2)
