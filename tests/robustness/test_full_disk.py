"""A disk that is full: the old file stays, nothing else is left, and it is said in one line."""

import errno
import os

import pytest
import torch
from torch import nn

import sigprop as sp
from sigprop.cli.app import app, exit_code
from sigprop.errors import SigpropError, WriteError

SMALL = ("--set", "depth=1", "--set", "width=8")
COMMANDS = {
    "plan.json": ("plan", "mlp", *SMALL, "--recipe", "xavier", "--out", "plan.json"),
    "figure.png": ("predict", "mlp", *SMALL, "--figure", "figure.png"),
    "report.html": ("check", "mlp", *SMALL, "--html", "report.html", "--quiet"),
}


@pytest.fixture
def full_disk(monkeypatch):
    def refuse(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return lambda: monkeypatch.setattr("sigprop.results.files.os.replace", refuse)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_keeps_the_old_file(name, full_disk, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("old")
    full_disk()
    assert exit_code(app, list(COMMANDS[name])) == 2
    assert f"{name} cannot be written: No space left on device" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "old")]


def test_what_is_raised_is_ours_and_an_oserror(full_disk, tmp_path):
    profile = sp.measure(nn.Linear(3, 2), torch.ones(2, 3))
    full_disk()
    for kind in (SigpropError, OSError, WriteError):
        with pytest.raises(kind, match="No space left"):
            profile.to_json(tmp_path / "profile.json")
    assert list(tmp_path.iterdir()) == []
