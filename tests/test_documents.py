"""What the README and the pages show is run."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sigprop.cli.app import COMMANDS, app

ROOT = Path(__file__).parents[1]


def blocks(path: str, language: str) -> list[str]:
    """Fenced blocks of one language; no language is a shell block."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / path).read_text(), re.S | re.M)
    return [text for name, text in fenced if name == language]


@pytest.mark.parametrize("path", ["README.md", "docs/do/blueprints.md"])
def test_python_blocks_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = blocks(path, "python")
    assert code
    names: dict = {}
    for block in code:
        exec(compile(block, path, "exec"), names)


def test_the_readme_heads_with_its_two_commands():
    first = blocks("README.md", "")[0]
    assert "make demo" in first
    assert "make test" in first
    makefile = (ROOT / "Makefile").read_text()
    assert "\ndemo:" in makefile
    assert "\ntest:" in makefile


def test_commands_in_the_readme_exist_with_their_options():
    lines = [line for block in blocks("README.md", "") for line in block.splitlines() if line.startswith("sigprop ")]
    assert len(lines) >= 8
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        assert words[0] in COMMANDS, line
        shown = CliRunner().invoke(app, [words[0], "--help"], terminal_width=200).output
        for option in (word for word in words if word.startswith("--")):
            assert option in shown, f"{option} of {line}"


def test_every_page_is_in_the_navigation():
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    shown = set(re.findall(r"([\w/-]+\.md)", (ROOT / "mkdocs.yml").read_text()))
    assert pages == shown
