"""What a team's CI runs: the Action's summary, the pre-commit hook, and the pytest plugin."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

import sigprop as sp
from sigprop.integrations.action import LONGEST
from sigprop.integrations.pytest import assert_healthy as healthy
from sigprop.integrations.pytest import assert_same_init as same_init
from tests.integrations.test_mcp import NET

ROOT = Path(__file__).parents[2]

HOOK = "from sigprop.integrations.action import hook; hook()"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "ci_net.py").write_text(NET)
    return tmp_path


def run(folder, *arguments):
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "GITHUB_STEP_SUMMARY": str(folder / "summary"),
                "GITHUB_OUTPUT": str(folder / "output")}  # fmt: skip
    hook = arguments[0] == "hook"
    started = ["-c", HOOK, *arguments[1:]] if hook else ["-m", "sigprop.integrations.action", *arguments]
    command = [sys.executable, *started]
    return subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False)


def test_the_action_leaves_a_report_and_a_summary(folder):
    done = run(folder, "ci_net.py:Net(depth=6)", "")
    assert done.returncode == 1
    text = (folder / "summary").read_text()
    assert text.startswith("### sigprop check:")
    assert "| ❌ |" in text
    assert "(beyond its limit: at least 0.01)" in text
    assert "0 notes" not in text
    assert len(text) <= LONGEST + 10
    assert (folder / "output").read_text().startswith("verdict=")
    assert (folder / "sigprop-report" / "report.html").is_file()
    assert json.loads((folder / "sigprop-report" / "report.json").read_text())["findings"]


def test_a_baseline_leaves_out_what_it_holds_and_no_more(folder):
    model, baseline = "ci_net.py:Net(depth=6)", ("--baseline", "known.json", "--quick")
    run(folder, model, "", "--quick")
    accepted = (folder / "sigprop-report" / "report.json").read_text()
    (folder / "known.json").write_text(accepted)
    (folder / "summary").unlink()
    assert run(folder, model, "", *baseline).returncode == 0
    summary = (folder / "summary").read_text()
    assert "| ❌ |" not in summary
    assert f"{len(json.loads(accepted)['findings'])} findings are left out" in summary
    assert run(folder, "hook", model, *baseline).returncode == 0
    (folder / "known.json").write_text(json.dumps(json.loads(accepted) | {"findings": []}))
    assert run(folder, "hook", model, *baseline).returncode == 1
    assert run(folder, "hook", "--quick").returncode == 2


def test_the_action_compares(folder):
    done = run(folder, "ci_net.py:Net", "ci_net.py:Net(std=0.3)")
    assert done.returncode == 1
    assert "| `blocks.*.weight` |" in (folder / "summary").read_text()
    assert run(folder, "nowhere.py:Net", "").returncode == 2


def test_the_action_and_the_hooks_are_what_the_documents_say():
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    used = "".join(str(step) for step in action["runs"]["steps"])
    assert all(f"inputs.{name}" in used for name in action["inputs"])
    assert yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())[0]["entry"] == "sigprop-check"


def test_assert_healthy(tmp_path):
    torch.manual_seed(0)
    good = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    nn.init.kaiming_normal_(good[0].weight, nonlinearity="relu")
    healthy(good, torch.randn(16, 64))
    bad = nn.Sequential(*[nn.Linear(64, 64) for _ in range(12)])
    for layer in bad:
        nn.init.normal_(layer.weight, 0.0, 0.02)
    batch = torch.randn(16, 64)
    with pytest.raises(pytest.fail.Exception, match="gradient"):
        healthy(bad, batch)
    known = tmp_path / "known.json"
    sp.check(bad, batch, prescription=False).to_json(known)
    assert healthy(bad, batch, baseline=known).meta["ignored"]
    for layer in bad:
        nn.init.normal_(layer.weight, 0.0, 2.0)
    with pytest.raises(pytest.fail.Exception):
        healthy(bad, batch, baseline=known)


def test_assert_same_init():
    make = lambda: nn.Linear(32, 32)  # noqa: E731
    assert same_init(make, make, torch.randn(4, 32)).equal
    with pytest.raises(pytest.fail.Exception, match="DIFFERENT: weight"):
        same_init(make, lambda: _zero(make()), torch.randn(4, 32))


def _zero(layer):
    nn.init.zeros_(layer.weight)
    return layer
