"""`sigprop predict` and `sigprop demo`, as a person runs them."""

import json
import subprocess
import sys

import pytest


def sigprop(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "from sigprop.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_json_rows_carry_the_promised_columns():
    done = sigprop("predict", "transformer", "--set", "depth=2", "--set", "kind=decoder", "--json")
    assert done.returncode == 0, done.stderr
    profile = json.loads(done.stdout)
    site, parameter = profile["sites"][0], profile["parameters"][0]
    for column in ("name", "depth", "mean", "variance", "token_correlation", "grad_variance"):
        assert column in site
    assert {"grad_token_correlation", "status"} <= set(site)
    assert {"name", "shape", "role", "init_std", "grad_second_moment"} <= set(parameter)


def test_figure_and_table(tmp_path):
    done = sigprop("predict", "mlp", "--set", "depth=5", "--figure", str(tmp_path / "mlp.png"))
    assert done.returncode == 0, done.stderr
    assert "blocks.4" in done.stdout
    assert (tmp_path / "mlp.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("predict", "transfromer"), ("transfromer", "transformer")),
        (("predict", "transformer", "--set", "heads=7"), ("heads = 7", "divisor")),
        (("predict", "transformer", "--set", "dropout=1.5"), ("dropout = 1.5", "below 1")),
        (("predict", "transformer", "--set", "depth"), ("key=value",)),
        (("predict", "transformer", "--set", "depth=2", "--set", "depth=3"), ("twice",)),
        (("predict", "mlp", "--set", "sigma_w=nan"), ("sigma_w", "finite")),
        (("predict", "mlp", "--set", "activation=rleu"), ("rleu", "relu")),
    ],
)
def test_bad_input_is_one_clear_message_and_exit_code_2(arguments, words):
    done = sigprop(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    message = " ".join(done.stderr.split())
    for word in words:
        assert word in message


def test_demo(tmp_path):
    done = sigprop("demo", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").exists()
    before, after = done.stdout.split("checked again")
    assert "rank_collapse" in before
    assert "No problems found" in after
