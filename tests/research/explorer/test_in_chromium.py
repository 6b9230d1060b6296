"""The explorer as a person uses it: sliders moved, lists chosen, and what the page then says."""

import threading
import time

import pytest

from sigprop.research.explorer import Explorer
from tests.report.chromium import CHROMIUM, browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
ANSWERED = "!document.body.classList.contains('busy') && document.getElementById('charts').children.length"


def until(page, expression):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if found := page.evaluate(expression):
            return found
        time.sleep(0.05)
    raise AssertionError(f"never: {expression}")


def choose(page, name, value, event="change"):
    page.evaluate(
        f"(() => {{ const it = document.getElementById('{name}'); it.value = '{value}'; "
        f"it.dispatchEvent(new Event('{event}')); }})()"
    )


def text(page, name):
    return page.evaluate(f"document.getElementById('{name}').innerText")


def test_the_explorer_answers_what_is_chosen(tmp_path):
    with Explorer(0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with browser(tmp_path / "profile") as page:
            page.open(server.address + "?a.depth=6&a.width=128")
            assert until(page, ANSWERED) == 4
            assert "healthy" in text(page, "a")
            assert page.evaluate("document.getElementById('a.depth').nextSibling.innerText") == "6"

            choose(page, "a.depth", 20, "input")
            until(page, "document.getElementById('python').innerText.includes('depth=20')")
            ticks = page.evaluate(
                "[...document.querySelectorAll('#charts svg')[0].querySelectorAll('.tick')].map(t => t.textContent)"
            )
            assert "20" in ticks

            choose(page, "a.norm", "post")
            until(page, "document.getElementById('a').innerText.includes('rank collapse')")

            page.evaluate("document.getElementById('compare').click()")
            until(page, "document.getElementById('planes').children.length == 2")
            choose(page, "b.architecture", "mlp")
            until(page, "document.getElementById('python').innerText.includes('b = MLP(')")
            assert page.evaluate("document.getElementById('b.query_key')") is None
            assert page.evaluate("document.querySelectorAll('#charts svg')[0].querySelectorAll('polyline').length") == 2
            assert "ms" in text(page, "time")
            assert text(page, "error") == ""
            assert "b.architecture=mlp" in page.evaluate("location.search")

            assert page.complaints == []
            assert {url.split("/")[2] for url in page.requests} == {server.address.split("/")[2]}
            page.send(
                "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0
            )
            choose(page, "a.depth", 9, "input")
            until(page, "document.getElementById('error').innerText.includes('still running')")
        server.shutdown()
