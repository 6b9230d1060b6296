"""`sigprop train` and `sigprop sweep` from the command line."""

import json

import pytest
from typer.testing import CliRunner

from sigprop.cli.app import app
from sigprop.errors import InputError, UnknownNameError

SMALL = ["--set", "kind=decoder", "--set", "depth=2", "--set", "width=16", "--set", "heads=2", "--set", "context=16"]
SHEET = """
[model]
source = "transformer"
kind = "decoder"
depth = 2
width = 16
heads = 2
context = 16
[data]
passages = 2
length = 16
[train]
steps = 2
[grid]
"train.lr" = [0.01, 0.02, 0.04]
"train.seed" = [0, 1]
"""


def invoke(*arguments):
    return CliRunner().invoke(app, ["research", *(str(item) for item in arguments)], catch_exceptions=True)


def test_train_resumes_where_it_was(tmp_path):
    given = ["train", "transformer", *SMALL, "--passages", 2, "--length", 16, "--folder", tmp_path, "-q"]
    settings = ["--train", "steps=4", "--train", "checkpoint_every=2", "--recipe", "xavier"]
    first, again = (invoke(*given, *settings) for _ in range(2))
    assert first.exit_code == again.exit_code == 0, first.output
    assert first.output == again.output
    assert "last tenth" in first.output


def test_sweep_runs_once_and_shows_the_best_rate(tmp_path):
    (tmp_path / "sheet.toml").write_text(SHEET)
    for _ in range(2):
        made = invoke("sweep", "run", tmp_path / "sheet.toml", tmp_path / "out", "-q")
        assert made.exit_code == 0, made.output
        assert "6 of 6 trials" in made.output
    shown = invoke("sweep", "show", tmp_path / "out", "--json", "--figure", tmp_path / "rates.png")
    (row,) = json.loads(shown.output)
    assert row["seeds"] == 2
    assert (tmp_path / "rates.png").stat().st_size > 1000
    counted = invoke("sweep", "show", tmp_path / "out", "--sql", "select count(*) as trials from trials", "--json")
    assert json.loads(counted.output) == [{"trials": 6}]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["train", "transformer", "--train", "lrr=1"], UnknownNameError, "lrr"),
        (["train", "transformer", "--train", "lr=-1"], InputError, "lr"),
        (["train", "transformer", "--text", "nowhere.txt"], InputError, "nowhere.txt"),
        (["sweep", "run", "nowhere.toml", "out"], InputError, "nowhere.toml"),
    ],
)
def test_wrong_inputs(arguments, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        CliRunner().invoke(app, ["research", *arguments], catch_exceptions=False)
