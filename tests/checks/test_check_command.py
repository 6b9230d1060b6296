"""`sigprop check`, as a person or a CI step runs it."""

import json

import pytest

from sigprop.cli.app import app, exit_code
from sigprop.plans import Plan
from sigprop.results import Report

SMALL = ["--set", "width=32", "--set", "depth=3", "--set", "heads=2", "--set", "context=32", "--tokens", "32"]
SICK = """
import torch
from torch import nn

def model(gain=30.0):
    layers = [nn.Linear(32, 32) for _ in range(6)]
    for layer in layers:
        nn.init.normal_(layer.weight, 0.0, gain / 32**0.5)
    return nn.Sequential(*layers)

def batch():
    return torch.randn(16, 32)

def broken():
    raise RuntimeError("no such data")

def wide_batch():
    return torch.randn(16, 99)

def needs(width):
    return nn.Linear(width, width)

def nothing():
    return 3
"""


def run(*arguments):
    return exit_code(app, ["check", *arguments])


@pytest.fixture
def sick(tmp_path):
    path = tmp_path / "sick.py"
    path.write_text(SICK)
    return path


def test_a_healthy_model_exits_with_0_and_says_so(capsys):
    assert run("transformer", *SMALL) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("No problems found")
    assert "Margins:" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_sick_model_exits_with_1_and_writes_report_and_plan(sick, tmp_path, capsys):
    page, plan = tmp_path / "report.html", tmp_path / "plan.json"
    assert run(f"{sick}:model", "--html", str(page), "--fix", str(plan)) == 1
    shown = capsys.readouterr().out
    assert shown.startswith(("1 problem", "2 problems", "3 problems"))
    assert "gradient_explodes" in shown
    assert len(shown.splitlines()) <= 40
    assert "<h2>Findings</h2>" in page.read_text()
    assert len(Plan.from_json(plan)) == 12


def test_the_level_that_fails_can_be_chosen(sick):
    assert run(f"{sick}:model", "--fail-on", "never", "-q") == 0
    assert run(f"{sick}:model(gain=0.9)", "--fail-on", "problem", "-q") == 0


def test_json_is_a_report(sick, capsys):
    assert run(f"{sick}:model", "--json") == 1
    text = capsys.readouterr().out
    data = json.loads(text)
    assert data["kind"] == "sigprop report"
    assert data["findings"][0]["severity"] == "problem"
    assert Report.from_json(text).problems


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing.py:model"], "nothing.py"),
        (["SICK:missing"], "missing"),
        (["SICK:broken"], "no such data"),
        (["SICK:broken"], "sick.py, line 15"),
        (["SICK:model(colour=3)"], "colour"),
        (["SICK:needs"], "width"),
        (["SICK:nothing"], "int"),
        (["SICK:model", "--data", "SICK:broken"], "no such data"),
        (["SICK:model", "--data", "SICK:broken"], "sick.py, line 15"),
        (["SICK:model", "--data", "SICK:absent"], "absent"),
        (["SICK:model", "--data", "SICK:wide_batch"], "99"),
        (["SICK:model", "--html", "/proc/no/report.html"], "report.html"),
        (["SICK:model", "--fix", "FOLDER"], "is a folder"),
        (["SICK:model", "--optimizer", "madam"], "madam"),
        (["SICK:model", "--lr", "-1"], "lr"),
        (["SICK:model", "--tokens", "1"], "tokens"),
        (["SICK:model", "--html", "FOLDER"], "is a folder"),
        (["SICK:model", "--fail-on", "sometimes"], "sometimes"),
        (["SICK:model", "--plan", "absent.json"], "absent.json"),
        (["transformer", "--text", "absent.txt"], "absent.txt"),
        (["tranformer"], "transformer"),
        (["SICK"], "it holds model, batch, broken"),
        (["SICK:model", "--ignore", "gradients_explode"], "gradient_explodes"),
        (["SICK:model", "--baseline", "absent.json"], "absent.json"),
    ],
)
def test_what_the_user_got_wrong_is_one_line(arguments, words, sick, tmp_path, capsys):
    given = [item.replace("SICK", str(sick)).replace("FOLDER", str(tmp_path)) for item in arguments]
    assert run(*given) == 2
    told = capsys.readouterr().err
    assert words in told
    assert len(told.strip().splitlines()) == 1
    assert "Traceback" not in told


def test_what_is_known_is_left_out(sick, tmp_path, capsys):
    assert run(f"{sick}:model", "--json", "--quick") == 1
    text = capsys.readouterr().out
    names = {item["name"] for item in json.loads(text)["findings"] if item["severity"] != "note"}
    known = tmp_path / "known.json"
    known.write_text(text)
    assert run(f"{sick}:model", "-q", "--quick", "--baseline", str(known)) == 0
    assert run(f"{sick}:model(gain=1e4)", "-q", "--quick", "--ignore", min(names) + ":absent*") == 1
    assert run(f"{sick}:model", "-q", "--quick", *(word for name in names for word in ("--ignore", name))) == 0


def test_a_quick_check_predicts_nothing_and_finds_what_weights_and_one_pass_show(sick, capsys):
    assert run(f"{sick}:model", "--quick", "--json") == 1
    data = json.loads(capsys.readouterr().out)
    assert not data["meta"]["predicted"]
    assert data["meta"]["measured"]
    assert data["findings"]
