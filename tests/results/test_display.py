"""Results show themselves: short, in 80 columns, one row per block, names never obeyed."""

import math

import pytest
import torch
from torch import nn

import sigprop
from sigprop.blueprints import Transformer
from sigprop.errors import UnsupportedError
from sigprop.grid import Grid, counted, filled
from sigprop.models import build
from sigprop.results import ParameterRow, Profile, SiteRow
from sigprop.results.coordinates import CoordinateReport, Culprit, Exponent
from sigprop.results.profile import streams
from sigprop.results.report import Margin


def stack(names, variances):
    return Profile(
        [SiteRow(name, i, 0.0, v, 0.5, 2 * v) for i, (name, v) in enumerate(zip(names, variances, strict=True))]
    )


@pytest.fixture(scope="module")
def profile():
    return sigprop.predict(Transformer(depth=30, width=64, heads=2))


def fits(text):
    return max(map(len, text.splitlines())) <= 80


def test_a_profile(profile):
    assert len(repr(profile)) < 120
    text = str(profile)
    assert fits(text)
    assert len(text.splitlines()) < 30
    assert "30 blocks" in text.replace("\n", " ")
    assert "blocks.29" in text
    assert len(profile.table(all=True).rows) == len(profile.sites)
    assert fits(str(profile.table(all=True)))
    assert "<table" in profile._repr_html_()


def test_ratios_run_along_one_stream():
    names = ["embedding", "encoder.0", "encoder.0.mlp", "encoder.1", "decoder.0", "decoder.1", "head"]
    rows = stack(names, [9.0, 1.0, 5.0, 2.0, 4.0, 12.0, 7.0]).table().rows
    assert [(row[0], row[2]) for row in rows] == [
        ("encoder.0", "1x"), ("encoder.1", "2x"), ("decoder.0", "1x"), ("decoder.1", "3x"),
    ]  # fmt: skip


def test_streams_are_lists_of_blocks_not_lists_inside_them():
    found = streams(stack(["layers.0.experts.0", "layers.0", "layers.0.experts.1", "layers.1", "x.0"], [1.0] * 5))
    assert list(found) == ["layers"]


def test_a_comparison(profile):
    compared = profile.compare(profile)
    assert "variance to 0.0 %" in compared.summary()
    assert fits(str(compared))
    assert len(compared.table(all=True).rows) == len(compared.differences)


def test_a_single_draw_has_no_standard_error_rather_than_none_at_all():
    model, batch = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)), torch.randn(4, 8)
    predicted = sigprop.predict(model, batch, verify=0)
    once = predicted.compare(sigprop.measure(model, batch))
    assert all(math.isnan(item.standard_error) for item in once.differences)
    assert "0.0 %" not in " ".join(row[3] for row in once.table().rows)
    assert "seeds=8" in str(once)
    often = predicted.compare(sigprop.measure(model, batch, seeds=3, build=lambda: nn.Sequential(*model)))
    assert "seeds=8" not in str(often)


def test_gradients_that_are_rounding_are_not_compared():
    def profile(weight, bias):
        rows = [ParameterRow("key.weight", (2, 2), grad_second_moment=weight)]
        return Profile([], [*rows, ParameterRow("key.bias", (2,), grad_second_moment=bias)])

    found = profile(1.0, 1e-9).compare(profile(1.1, 1e-15))
    assert {item.name for item in found.column("grad_second_moment")} == {"key.weight"}
    found = profile(1.0, 0.5).compare(profile(1.1, 1e-15))
    assert {item.name for item in found.column("grad_second_moment")} == {"key.weight", "key.bias"}


def test_every_result_has_a_figure_and_a_page_of_a_notebook(tmp_path):
    model, batch = build("mlp", depth=3, width=8, inputs=4), torch.randn(4, 4)
    predicted = sigprop.predict(model, batch, verify=0)
    report = sigprop.check(model, batch, prescription=False)
    plan = sigprop.plan(model, "xavier", batch=batch)
    for result in (predicted, plan, report, predicted.compare(sigprop.measure(model, batch))):
        path = tmp_path / f"{type(result).__name__}.png"
        result.plot(path)
        assert path.stat().st_size > 5000
        assert "<" in result._repr_html_()


def test_counts_are_words():
    assert [counted(n) for n in (75, 102_400, 1_240_000, 70_600_000_000)] == [
        "75", "102 thousand", "1.24 million", "70.6 billion",
    ]  # fmt: skip


def test_a_plan():
    model = build("transformer", depth=6, width=16, heads=2, vocabulary=32)
    plan = sigprop.plan(model, "xavier", batch=torch.arange(8)[None])
    assert fits(str(plan))
    assert len(str(plan).splitlines()) < 40
    assert len(plan.table(all=True).rows) >= len(plan.parameters)
    assert str(plan.explain()) == str(plan.table())
    assert len(repr(plan)) < 160


def test_a_coordinate_report_is_a_verdict_and_ten_lines():
    rows = [
        Exponent(f"site{i}", "activation", step, "width", (1.0, 2.0), i / 100, 0.0, 1.0, 0.0, i < 90)
        for i in range(100)
        for step in (0, 3)
    ]
    report = CoordinateReport(rows, [Culprit("site99", "init", 0.9)], [64, 128], [], {"expect": "mup"})
    assert len(str(report).splitlines()) <= 12
    assert str(report).startswith("FAIL: 20 of 200")
    assert "repair site99" in str(report)
    assert len(report.table(all=True).rows) == 200


EVIL = "a\x1b[31mb[red]c<script>alert(1)</script>\n"


def test_names_are_shown_and_not_obeyed():
    shown = stack([EVIL], [1.0]).table(all=True)
    assert "\x1b" not in shown.text()
    assert "[red]" in shown.text(200)
    assert "<script>" not in shown.html()
    assert "&lt;script&gt;" in shown.html()
    assert "\x1b" not in repr(stack([EVIL], [1.0]))
    assert "\x1b" not in str(stack([f"{EVIL}.0", f"{EVIL}.1"], [1.0, 2.0]))


def test_a_grid_of_any_shape_keeps_its_width():
    long = "module." * 30
    grid = Grid(["name", "number", "why"], [[long, "1.5", "because " * 30]], wrapped=(2,), title="title " * 30)
    for width in (60, 80, 120):
        assert max(map(len, grid.text(width).splitlines())) <= width
    assert "…" in grid.text()
    assert filled("word " * 40).count("\n") >= 2
    assert Grid(["a"], []).text().startswith("a")


def test_missing_numbers_are_dashes():
    row = stack(["blocks.0", "blocks.1"], [math.nan, 0.0]).table().rows
    assert row[0][1] == "-"
    assert row[1][2] == "-"


def test_frames_need_pandas_and_say_so(profile):
    try:
        import pandas  # noqa: F401
    except ImportError:
        with pytest.raises(UnsupportedError, match="pip install pandas"):
            profile.to_dataframe()
    else:
        assert list(profile.to_dataframe()["name"]) == [row.name for row in profile.sites]
    assert profile.records()[0]["name"] == profile.sites[0].name


def test_figures_are_made_and_constant_lines_span_enough(profile, tmp_path):
    figure = stack(["blocks.0", "blocks.1"], [1.0, 1.00001]).plot(tmp_path / "flat.png", measured=profile)
    low, high = stack(["blocks.0", "blocks.1"], [1.0, 1.00001]).plot().axes[0].get_ylim()
    assert high / low > 3
    assert (tmp_path / "flat.png").stat().st_size > 1000
    assert figure.axes
    plan = sigprop.plan(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), "xavier", batch=torch.ones(2, 4))
    assert plan.plot(tmp_path / "plan.png").axes


@pytest.mark.parametrize(
    ("margin", "words"),
    [
        (Margin("ratio", 0.288, 0.01), "ratio 0.288 (at least 0.01)"),
        (Margin("ratio", 0.003, 0.01, True), "ratio 0.003 (beyond its limit: at least 0.01)"),
        (Margin("logits", 0.5, 2.0), "logits 0.5 (at most 2)"),
        (Margin("logits", 159.0, 2.0, True), "logits 159 (beyond its limit: at most 2)"),
    ],
)
def test_a_margin_says_on_which_side_of_it_its_limit_is(margin, words):
    assert str(margin) == words
