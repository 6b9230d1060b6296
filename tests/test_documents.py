"""What the README and the pages show is run, and prints what they say."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sigprop.cli.app import COMMANDS, app
from sigprop.cli.exits import exit_code
from tests.documents import FENCE, agrees, steps

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md"))]
RUN = [page for page in PAGES if steps(ROOT / page)]
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
    for extra in ("transformers", "lightning", "accelerate", "tensorboard"):
        if re.search(rf"^(import|from) {extra}\b", (ROOT / page).read_text(), re.M):
            pytest.importorskip(extra)
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


def test_outputs_are_compared():
    assert agrees("a 1.00 b\n...\nend", "a 1.05 b\nx\ny\nend\n")
    assert agrees("value 3 and...", "value 3 and more")
    assert not agrees("a 1.00 b", "a 1.20 b")
    assert not agrees("a\n...\nend", "a\nend\nmore")
