"""The page of a run: all sections, names that stay text, bounded size."""

import html.parser
import re

from torch import nn

from sigprop.monitoring import Watch
from sigprop.results.report import Report
from tests.monitoring.shared import batches, small_model, train


class Sections(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.sections, self.scripts, self.charts = [], 0, 0

    def handle_starttag(self, tag, attributes):
        self.sections += [value for key, value in attributes if key == "id"]
        self.scripts += tag == "script"
        self.charts += tag == "svg"


def test_a_run_becomes_one_page_without_scripts_or_network(tmp_path):
    model = small_model(depth=6)
    model.add_module("<b>odd</b>", nn.Identity())
    nn.init.zeros_(model.head.weight)
    model.head.weight.requires_grad_(True)
    with Watch(model, every=2, folder=tmp_path) as watch:
        train(model, batches(9), watch, weight_decay=0.0)
    report = watch.report(tmp_path / "page" / "run.html")
    assert isinstance(report, Report)
    assert report.meta["samples"] == 5
    text = (tmp_path / "page" / "run.html").read_text()
    page = Sections()
    page.feed(text)
    assert page.sections == ["verdict", "findings", "run", "sites", "last", "reproduce"]
    assert page.scripts == 0
    assert page.charts > 20
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert len(text) < 1_000_000
    assert Report.from_json(report.to_json()).meta == report.meta
