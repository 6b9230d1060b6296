"""Malformed command lines and damaged files are refused in words: no traceback, no hang. Long form: `make stress`."""

import pytest

from tests.robustness.commands import FILES, LINES, fault, judged_files, lines, outcome, prepared
from tests.robustness.scale import cases

pytest.importorskip("transformers")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    prepared(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_malformed_command_lines(folder):
    found = [(line, fault(code, err)) for line in lines(cases(60, LINES)) for code, _, err in [outcome(line)]]
    assert [item for item in found if item[1]] == []


def test_damaged_files(folder):
    runs = judged_files(folder, cases(48, FILES))
    found = [(command, fault(code, err)) for command, (code, _, err), _ in runs]
    assert [item for item in found if item[1]] == []
