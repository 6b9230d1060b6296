"""The two commands: output, JSON, exit codes, and models from names, configurations and files."""

import json

import pytest
import typer
from typer.testing import CliRunner

from sigprop.cli.coordcheck import coordcheck_command
from sigprop.cli.research.exponents import exponents_command
from sigprop.errors import InputError, UnknownNameError
from sigprop.inputs import open_family

app = typer.Typer()
app.command("coordcheck")(coordcheck_command)
app.command("exponents")(exponents_command)

SMALL = ["--widths", "32,64,128,256", "--seeds", "2", "--steps", "1", "--lr", "0.01"]
FACTORY = """
import torch
from torch import nn

def net(width, depth=1):
    layers = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), *layers, nn.Linear(width, 3))

def batch():
    return torch.randn(16, 6, generator=torch.Generator().manual_seed(0))

def loss(output, batch):
    return (output - batch[:, :3]).square().mean()
"""


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_exponents_table_and_json():
    result = run("exponents", "SP", "--optimizer", "sgd")
    assert result.exit_code == 0
    assert "-1/2" in result.output
    data = json.loads(run("exponents", "muP", "--json").output)
    assert data["c"] == ["1/2", "1", "1/2"]
    assert data["equivalent"] == ["muP", "MF"]
    unstable = run("exponents", "SP", "--alignment", "readout", "--json")
    assert unstable.exit_code == 1
    assert json.loads(unstable.output)["regime"] == "unstable"


def test_coordcheck_of_a_reference_network(tmp_path):
    settings = ["--set", "depth=1", "--set", "heads=2", "--set", "vocabulary=64"]
    result = run("coordcheck", "transformer", *SMALL, *settings, "--json", "--figure", str(tmp_path / "check.png"))
    assert result.exit_code == 0, result.output[-2000:]
    assert json.loads(result.output)["passed"]
    assert (tmp_path / "check.png").stat().st_size > 1000
    bad = run("coordcheck", "transformer", *SMALL, *settings, "--recipe", "none")
    assert bad.exit_code == 1
    assert "repair" in bad.output


def test_coordcheck_of_a_file(tmp_path):
    path = tmp_path / "nets.py"
    path.write_text(FACTORY)
    assert run("coordcheck", f"{path}:net", *SMALL).exit_code == 0
    with pytest.raises(UnknownNameError, match="net"):
        open_family(f"{path}:nett", {})
    (tmp_path / "bare.py").write_text("def net(width): pass")
    with pytest.raises(InputError, match=r"batch\(\)"):
        open_family(f"{tmp_path}/bare.py:net", {})


def test_coordcheck_of_a_configuration(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=256,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    family = open_family(f"{tmp_path}/config.json", {}, batch=2, tokens=8)
    model = family.build(32, 2)
    assert model.config.num_attention_heads == 2
    assert len(model.model.layers) == 2
    assert model(**family.batch).loss.item() > 0


def test_every_reference_network_is_a_family():
    for name in ("mlp", "vit", "mixer", "resnet"):
        family = open_family(name, {"depth": 1})
        assert family.loss(family.build(64)(family.batch), family.batch).item() > 0


def test_bad_input():
    with pytest.raises(UnknownNameError, match="transformer"):
        open_family("transfromer", {})
    with pytest.raises(InputError, match="no config at"):
        open_family("nowhere/config.json", {})
    assert isinstance(run("coordcheck", "mlp", "--widths", "a,b").exception, InputError)
