"""What the README and the pages show is run, and prints what they say."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sigprop
from sigprop.cli.app import COMMANDS, app, exit_code
from tests.documents import EXTRAS, FENCE, ROOT, agrees, extras, pages, steps

PAGES = ["README.md", *sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md"))]
ELSEWHERE = {"docs/do/places.md": "tests/integrations/test_examples.py runs its programs and reads what they leave"}
RUN = [page for page in pages() if page not in ELSEWHERE]
BEFORE = re.compile(r"pip install |make \w+( |$)|python -m studies\.\w+|sigprop explore$")
"""What a `shell` block may hold: what comes before the package, studies, whose results are stored, and a server."""
SLOW = {
    "docs/do/situations.md": "a check of 48 layers, a Llama of width 2048",
    "docs/learn/tutorial.md": "several predictions of deep models",
    "docs/do/scaling.md": "trains at several widths",
    "docs/evidence/blueprints.md": "stacks of 192 layers",
}


@pytest.mark.parametrize("page", [page for page in RUN if page not in SLOW])
def test_a_page_does_what_it_shows(page, tmp_path, monkeypatch, capsys):
    run_page(page, tmp_path, monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in RUN if page in SLOW])
def test_a_slow_page_does_what_it_shows(page, tmp_path, monkeypatch, capsys):
    run_page(page, tmp_path, monkeypatch, capsys)


def run_page(page, folder, monkeypatch, capsys):
    for name, extra in EXTRAS.items():
        if extra in extras(page):
            pytest.importorskip(name)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    names: dict = {"__name__": "page"}
    for step in steps(ROOT / page):
        if step.kind == "file":
            (folder / step.name).write_text(step.text)
            sys.modules.pop(Path(step.name).stem, None)
            continue
        if step.kind == "python":
            exec(compile(step.text, page, "exec"), names)
        else:
            words = shlex.split(step.text, comments=True)
            assert words[0] == "sigprop", step.text
            code = exit_code(app, words[1:])
            assert code in (0, 1, 2), step.text
        printed = capsys.readouterr()
        if step.shown is not None:
            assert agrees(step.shown, printed.out + printed.err), f"{step.text}\n{printed.out}{printed.err}"


@pytest.mark.parametrize("page", pages())
def test_a_page_that_needs_an_extra_says_how_to_install_it(page):
    named = {
        extra for found in re.findall(r"sigprop\[([\w,]+)\]", (ROOT / page).read_text()) for extra in found.split(",")
    }
    assert set(extras(page)) <= named


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run_or_is_an_output(page):
    for language, options, body in FENCE.findall((ROOT / page).read_text()):
        if language == "shell":
            assert all(BEFORE.match(line) for line in body.splitlines()), body
        elif "title=" not in options:
            assert language in {"python", "console", "text", "yaml"}, body


def test_eight_situations_in_three_commands_or_ten_lines():
    """The user's own files (with a title) are not counted, empty lines neither."""
    text = (ROOT / "docs/do/situations.md").read_text()
    situations = re.split(r"(?m)^## ", text)[1:]
    assert len(situations) == 8
    for situation in situations:
        blocks = [(language, body) for language, options, body in FENCE.findall(situation) if "title" not in options]
        commands = [
            line for language, body in blocks if language == "console" for line in re.findall(r"(?m)^\$ ", body)
        ]
        commands += [line for language, body in blocks if language == "shell" for line in body.splitlines()]
        lines = [
            line for language, body in blocks if language == "python" for line in body.splitlines() if line.strip()
        ]
        assert commands or lines, situation
        assert len(commands) <= 3, situation
        assert len(lines) <= 10, situation


def test_the_reference_names_everything_public():
    shown = re.findall(r"^::: (\S+)$", (ROOT / "docs/reference/api.md").read_text(), re.M)
    missing = [name for name in sigprop.__all__ if not any(path.split(".")[-1] == name for path in shown)]
    assert missing == []


def test_the_readme_heads_with_its_two_commands():
    first = FENCE.findall((ROOT / "README.md").read_text())[0][2]
    makefile = (ROOT / "Makefile").read_text()
    for target in ("demo", "test"):
        assert f"make {target}" in first
        assert f"\n{target}:" in makefile


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist_with_their_options(page):
    """Also those that are only mentioned: `sigprop NAME --option`."""
    text = (ROOT / page).read_text()
    for line in re.findall(r"sigprop (?:[a-z]+ )[^`\n|]*", text):
        words = line.split("#")[0].replace("$ ", "").split()
        if words[1] not in COMMANDS:
            continue
        shown = CliRunner().invoke(app, [words[1], "--help"], env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"}).output
        for option in (word.rstrip(".,;)") for word in words if word.startswith("--")):
            assert option in shown, f"{option} of {line}"


def test_every_page_is_in_the_navigation():
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    shown = set(re.findall(r"([\w/-]+\.md)", (ROOT / "mkdocs.yml").read_text()))
    assert pages == shown


@pytest.mark.parametrize("page", PAGES)
def test_links_and_figures_exist(page):
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[\w-]+)?\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


NUMBER = re.compile(r"(?<![\w.`^])\d[\d,]*(?:\.\d+)?(?![\w`])")


WRITTEN = ("atlas", "calibration", "compositions", "coverage", "planted-bugs", "stock", "threads")
"""Pages whose answers a study writes, or wrote when it was last run."""


@pytest.mark.parametrize("page", sorted((ROOT / "docs/evidence").glob("*.md")), ids=lambda page: page.stem)
def test_an_evidence_page_begins_with_its_answer_and_says_of_which_code(page):
    """At most five points; their numbers stand in what is behind them, or are written with the tables by the study."""
    opening = re.fullmatch(r"(# [^\n]*)\n\n(.*?)\n\n(Code: .*?)\n\n(.*)", page.read_text(), re.S)
    assert opening is not None, "a title, points, a line that begins with Code:"
    _, answer, code, rest = opening.groups()
    points = [line for line in answer.splitlines() if line.startswith("- ")]
    assert 2 <= len(points) <= 5
    assert re.search(r"\d{4}-\d\d-\d\d|commit", code)
    if page.stem not in WRITTEN:
        told, known = ({number.replace(",", "") for number in NUMBER.findall(text)} for text in (answer, rest))
        assert told <= known, told - known


def test_outputs_are_compared():
    assert agrees("a 1.00 b\n...\nend", "a 1.05 b\nx\ny\nend\n")
    assert agrees("value 3 and...", "value 3 and more")
    assert not agrees("a 1.00 b", "a 1.20 b")
    assert not agrees("a\n...\nend", "a\nend\nmore")
