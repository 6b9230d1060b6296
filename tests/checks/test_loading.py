"""Weights of a folder that did not get into the model are a finding and an exit code."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import sigprop as sp
from sigprop.cli.app import app, exit_code
from sigprop.inputs import hugging_face

transformers = pytest.importorskip("transformers")


@pytest.fixture
def folder(tmp_path):
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=16, vocab_size=32, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    return tmp_path


def rewritten(folder, change):
    file = folder / "model.safetensors"
    save_file(dict(change(load_file(file))), file, {"format": "pt"})


def found(folder, capsys):
    code = exit_code(app, ["check", str(folder), "--tokens", "8", "--json"])
    shown = capsys.readouterr()
    assert code in (0, 1), shown.err
    report = json.loads(shown.out)
    return code, [item for item in report["findings"] if item["name"] == "weights_not_loaded"]


def test_a_whole_folder_is_loaded(folder, capsys):
    assert found(folder, capsys)[1] == []


def test_all_names_differ(folder, capsys):
    rewritten(folder, lambda weights: {f"other.{name}": value for name, value in weights.items()})
    code, [finding] = found(folder, capsys)
    assert (code, finding["severity"]) == (1, "problem")
    counts = {datum["what"]: datum["value"] for datum in finding["evidence"]}
    assert counts["names that the model lacks"] > 20
    assert counts["names that the folder lacks"] > 20


def test_one_name_is_missing(folder, capsys):
    rewritten(folder, lambda weights: {k: v for k, v in weights.items() if "h.1.mlp.c_fc.weight" not in k})
    code, [finding] = found(folder, capsys)
    assert (code, finding["severity"]) == (1, "problem")
    assert finding["parameters"] == ["transformer.h.1.mlp.c_fc.weight"]


def test_one_shape_differs(folder, capsys):
    rewritten(
        folder, lambda weights: {k: v[:, :7].clone() if "h.0.mlp.c_fc.weight" in k else v for k, v in weights.items()}
    )
    code, [finding] = found(folder, capsys)
    assert (code, finding["severity"]) == (1, "problem")
    assert "transformer.h.0.mlp.c_fc.weight" in finding["title"]


def test_one_name_is_too_many(folder, capsys):
    rewritten(folder, lambda weights: {**weights, "transformer.h.7.mlp.c_fc.weight": torch.ones(2)})
    code, [finding] = found(folder, capsys)
    assert (code, finding["severity"]) == (1, "warning")


def test_python_judges_the_weights_of_a_folder(folder):
    rewritten(folder, lambda weights: {f"other.{name}": value for name, value in weights.items()})
    report = sp.check(str(folder), tokens=8)
    assert report.measured is not None
    assert "weights_not_loaded" in [finding.name for finding in report.findings]


def test_bfloat16_stays_bfloat16(folder):
    from sigprop.inputs import open_source

    transformers.GPT2LMHeadModel.from_pretrained(folder).to(torch.bfloat16).save_pretrained(folder)
    assert {value.dtype for value in open_source(str(folder)).build().parameters()} == {torch.bfloat16}


def test_a_folder_of_more_layers_than_can_be_built_is_refused(folder, capsys, monkeypatch):
    monkeypatch.setattr(hugging_face, "LAYERS", 1)
    assert exit_code(app, ["check", str(folder)]) == 2
    assert "num_hidden_layers" in capsys.readouterr().err
