"""The HTML report: opened in Chromium, with hostile names, and at 200 layers."""

import math
import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from sigprop.checks import check
from sigprop.checks.tables import _deviation
from sigprop.models import build
from sigprop.models.layers import initialize_
from sigprop.report.html import html_page, write_html
from sigprop.report.svg import Line, _ends, chart
from sigprop.results import Report
from sigprop.results.report import Curve, Datum, Finding, ModuleNode, ParameterLine, Prescription
from tests.report.chromium import CHROMIUM, browser

SECTIONS = ("verdict", "findings", "stream", "prescription", "modules", "parameters", "reproduce")
HOSTILE = ("<script>alert(1)</script>", "[red]x", '"><img src=x onerror=alert(2)>', "\x1b[31mred")


class Hostile(nn.Module):
    """Layers whose names would run, colour or load something where they are not shown as text."""

    def __init__(self):
        super().__init__()
        for name in HOSTILE:
            self._modules[name] = nn.Linear(16, 16)

    def forward(self, x):
        for name in HOSTILE:
            x = self._modules[name](x)
        return x


@pytest.fixture(scope="module")
def report():
    torch.manual_seed(0)
    model = Hostile()
    with torch.no_grad():
        model._modules[HOSTILE[0]].weight.fill_(torch.nan)
        model._modules[HOSTILE[1]].weight.view(-1)[0] = 1e3
    return check(model, torch.randn(32, 16), prescription=False)


def test_hostile_names_stay_text(report):
    page = html_page(report)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;.weight" in page
    assert "<img" not in page
    text = report.text(verbose=True)
    assert "<script>alert(1)</script>.weight" in text
    assert "[red]x.weight" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_code_of_a_fix_keeps_its_lines(report):
    fix = Prescription("do it", code="first()\nfor i in range(2): <b>\x1b(i)")
    found = Finding("loss_at_start", "loss", "problem", "bad", "why", prescription=fix)
    assert "<pre>first()\nfor i in range(2): &lt;b&gt;\\x1b(i)</pre>" in html_page(replace(report, findings=[found]))


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_page_opens_in_chromium_with_all_sections(report, tmp_path):
    path = write_html(report, tmp_path / "report.html")
    with browser(tmp_path / "profile") as page:
        page.open(path.as_uri())
        for section in SECTIONS:
            assert page.evaluate(f"document.getElementById('{section}').innerText.length") > 5, section
        assert "<script>alert(1)</script>.weight" in page.evaluate("document.body.innerText")
        assert page.evaluate("document.querySelectorAll('script, img').length") == 0
        assert page.evaluate("document.querySelectorAll('article').length") == len(report.findings)
        assert page.complaints == []
        assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []


def large_report(layers=200):
    """As many of everything as a 200-layer model can give."""
    finding = Finding(
        "stream_growth", "signal", "problem", "grows", "because",
        sites=tuple(f"layers.{i}" for i in range(layers)), evidence=(Datum("ratio", 1e9, "measured"),),
    )  # fmt: skip
    depth = tuple(range(1, layers + 1))
    curves = [
        Curve(column, kind, depth, tuple(1.01**i for i in depth), tuple(0.1 for _ in depth))
        for column in ("variance", "grad_variance", "token_correlation", "score_variance", "entropy", "largest_weight")
        for kind in ("predicted", "measured", "prescribed")
    ]
    leaves = tuple(ModuleNode(f"layers.0.part.{i}", "Linear", "healthy", 1, 10) for i in range(40))
    tree = ModuleNode(
        "", "Deep", "healthy", 1, 10, (ModuleNode("layers.0 … 199", "Block", "problem", 200, 10, leaves),)
    )
    lines = [ParameterLine(f"layers.*.{i}", (64, 64), "hidden", 200, (0.02, 0.02), (1.0, 1.0)) for i in range(300)]
    meta = {"model": "Deep", "parameters": 10**9, "layers": layers, "batch": "given", "predicted": True,
            "measured": True, "notes": [], "seconds": 1.0, "sigprop": "0", "torch": "2"}  # fmt: skip
    return Report([finding] * 40, curves=curves, modules=tree, parameters=lines, meta=meta)


def test_a_report_of_200_layers_stays_small():
    report = large_report()
    assert len(html_page(report).encode()) < 1_000_000
    assert len(report.to_json()) < 1_000_000
    assert len(report.findings[0].sites) + report.findings[0].more == 200
    assert Report.from_json(report.to_json()).to_json() == report.to_json()


def test_real_blocks_are_folded():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(200)))
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.orthogonal_(module.weight, 2**0.5)
                module.bias.zero_()
    report = check(model, torch.randn(16, 8), prescription=False)
    page = html_page(report)
    assert len(page.encode()) < 300_000
    assert len(report.parameters) < 10


def test_a_band_is_where_a_single_initialization_lies():
    """Of a lognormal with this mean and deviation: 95 % of what is drawn lies within."""
    draws = torch.randn(20_000, generator=torch.Generator().manual_seed(0)).double().mul(1.2).exp()
    mean, error = float(draws.mean()), float(draws.std())
    low, high = _ends(mean, error, True)
    inside = float(((draws > low) & (draws < high)).double().mean())
    assert 0.93 < inside < 0.97
    assert _ends(3.0, 0.5, False) == (2.0, 4.0)


def test_a_measurement_far_from_its_prediction_has_the_band_of_others():
    """Twelve Post-LN blocks of width 32: gradients of two initializations differ by a factor of ten."""
    torch.manual_seed(0)
    model = build("transformer", kind="encoder", norm_placement="post", depth=12, width=32, heads=4, context=16)
    report = check(initialize_(model, "xavier", embedding_std=1.0), prescription=False)
    curve = next(item for item in report.curves if (item.kind, item.column) == ("predicted", "grad_variance"))
    measured = next(item for item in report.curves if (item.kind, item.column) == ("measured", "grad_variance"))
    assert all(error > 0.3 * value for value, error in zip(curve.values[:4], curve.errors[:4], strict=True))
    ends = [_ends(value, error, True) for value, error in zip(curve.values, curve.errors, strict=True)]
    inside = [low < value < high for (low, high), value in zip(ends, measured.values, strict=True)]
    assert sum(inside) >= 9
    assert "a single initialization lies" in html_page(report)


def test_initializations_that_lie_powers_of_ten_apart_have_a_band():
    """Branches at full scale without norms: one gradient is 1e10 and the next 1e200."""
    assert math.isfinite(_deviation([1e-100, 1e200, 1.0], 1e3))
    assert math.isnan(_deviation([1.0, math.inf], 1.0))
    assert _deviation([-0.1, 0.1], 0.0) == pytest.approx(0.2 / 2**0.5)


def test_an_axis_does_not_magnify_what_is_nearly_constant_and_its_ends_differ():
    """1.01 to 1.03 is no growth: the curve spans a small part of the chart."""
    page = chart("variance", [Line("predicted", "predicted", (1, 2), (1.01e-5, 1.03e-5))], logarithmic=True)
    (points,) = re.findall(r'<polyline class="line predicted" points="([^"]+)"', page)
    heights = [float(point.split(",")[1]) for point in points.split()]
    assert abs(heights[0] - heights[1]) < 0.1 * 220
    ticks = re.findall(r'text-anchor="end">([^<]+)<', page)
    assert len(set(ticks)) == len(ticks) > 1
