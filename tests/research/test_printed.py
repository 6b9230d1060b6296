"""Printed formulas beside corrected ones and real draws."""

import pytest

from sigprop.errors import InputError, UnknownNameError
from sigprop.research import compare_formula


def rows_of(*arguments, **setting):
    return {row.quantity: row for row in compare_formula(*arguments, **setting).rows}


def test_the_corrected_softmax_holds_where_the_printed_one_fails():
    spread = rows_of("softmax", count=64, variance=2.0)["variance of weights"]
    assert abs(spread.corrected - spread.measured) < 4 * spread.error
    assert spread.printed > 1.5 * spread.measured
    gradient = rows_of("softmax", count=256, variance=0.25, rho=0.5)["gradient, mean square"]
    assert abs(gradient.corrected - gradient.measured) < 4 * gradient.error
    assert gradient.printed > 1.9 * gradient.measured


def test_the_printed_gradient_of_attention_leaves_out_queries_and_keys():
    rows = rows_of("attention", tokens=96, width=96, head=48, variance=1.0)
    for row in rows.values():
        assert abs(row.corrected - row.measured) < 4 * row.error, row
    gradient = rows["gradient variance"]
    assert gradient.measured - gradient.printed > 10 * gradient.error


def test_printed_and_corrected_agree_where_scores_are_small():
    rows = rows_of("softmax", count=2048, variance=0.01, draws=8)
    for row in rows.values():
        assert row.printed == pytest.approx(row.corrected, rel=0.01)


def test_the_channels_of_a_token_keep_the_printed_covariance():
    """dslm Table 18, the covariance along the hidden dimension."""
    rows = rows_of("channels", width=48, correlation=0.6)
    for row in rows.values():
        assert row.printed == pytest.approx(row.corrected, abs=1e-10)
        assert abs(row.printed - row.measured) < 4 * row.error + 1e-12
    assert rows["after ReLU"].measured > 0.1
    assert rows["after LayerNorm"].printed == pytest.approx(-1 / 47)


def test_a_comparison_is_a_table_and_wrong_names_are_told():
    assert "printed" in str(compare_formula("softmax", draws=2))
    with pytest.raises(UnknownNameError, match="softmax"):
        compare_formula("softmacks")
    with pytest.raises(InputError, match="at least 2"):
        compare_formula("softmax", draws=1)
