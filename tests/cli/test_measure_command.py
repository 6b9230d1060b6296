"""`sigprop measure`, as a person runs it."""

import json

import pytest
import typer
from typer.testing import CliRunner

from sigprop.cli.measure import measure_command

SMALL = ["--set", "width=16", "--set", "depth=2", "--tokens", "12", "--batch", "2"]


def run(*arguments):
    app = typer.Typer()
    app.command()(measure_command)
    return CliRunner().invoke(app, list(arguments))


def test_json_rows_carry_the_promised_columns_and_errors():
    done = run("transformer", *SMALL, "--set", "heads=2", "--seeds", "2", "--json")
    assert done.exit_code == 0, done.output
    profile = json.loads(done.stdout)
    site = next(row for row in profile["sites"] if row["name"] == "blocks.1.mlp")
    assert site["variance"] > 0
    assert site["status"] == "measured"
    assert site["errors"]["grad_variance"] > 0
    assert {"name", "shape", "role", "init_std", "grad_second_moment"} <= set(profile["parameters"][0])


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("transformer", ["kind=encoder_decoder", "heads=2"]),
        ("transformer", ["kind=encoder", "heads=2"]),
        ("mlp", ["inputs=9"]),
        ("vit", ["heads=2"]),
        ("resnet", []),
        ("mixer", ["image=8"]),
    ],
)
def test_every_reference_network(name, settings):
    options = [part for setting in settings for part in ("--set", setting)]
    small = [*SMALL[:2], "--set", "depth=1", *SMALL[4:]]
    done = run(name, *small, *options, "--all")
    assert done.exit_code == 0, done.output
    assert "head" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_text_sites_and_options(tmp_path):
    (tmp_path / "words.txt").write_text("to be or not to be " * 20)
    done = run(
        "transformer",
        *SMALL,
        *("--set", "heads=2", "--data", str(tmp_path / "words.txt"), "--sites", "*.scores", "--scores", "--json"),
    )
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["sites"]
    assert [row["name"] for row in rows] == ["blocks.0.attention.scores", "blocks.1.attention.scores"]
    assert 0 < rows[0]["extras"]["entropy"] < 3


def test_extras_are_shown_below_the_moments():
    plain, more = run("transformer", *SMALL), run("transformer", *SMALL, "--scores")
    assert "entropy" not in plain.stdout
    assert "entropy" in more.stdout
    assert "largest weight" in more.stdout


def test_hugging_face_config(tmp_path):
    transformers = pytest.importorskip("transformers")
    transformers.LlamaConfig(
        num_hidden_layers=1, hidden_size=16, intermediate_size=24, num_attention_heads=2, vocab_size=40
    ).save_pretrained(tmp_path)
    done = run(str(tmp_path / "config.json"), "--tokens", "8", "--set", "num_hidden_layers=2", "--json")
    assert done.exit_code == 0, done.output
    names = [row["name"] for row in json.loads(done.stdout)["sites"]]
    assert "model.layers.1.mlp" in names


FILE = """
import torch
from torch import nn

def batch():
    return torch.randn(4, 5)

def loss(output, batch):
    return output.square().mean()

def net(width=8, bad=False):
    model = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 1))
    if bad:
        nn.init.constant_(model[2].weight, float("inf"))
    return model
"""


def test_a_file_with_a_factory_and_exit_code_1_for_a_value_that_is_not_finite(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    name = f"{tmp_path / 'mine.py'}:net"
    assert run(name, "--set", "width=6").exit_code == 0
    done = run(name, "--set", "bad=True")
    assert done.exit_code == 1
    assert "first value that is not finite is at 2" in done.stderr
