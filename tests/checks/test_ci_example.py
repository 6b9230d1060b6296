"""The workflow step and the pre-commit hook of docs/do/check.md, taken from the page and run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sigprop.cli.app import app, exit_code

PAGE = Path(__file__).parents[2] / "docs/do/check.md"
MODEL = """
from torch import nn

def Model(gain={gain}):
    layers = [nn.Linear(32, 32) for _ in range(8)]
    for layer in layers:
        nn.init.normal_(layer.weight, 0.0, gain / 32**0.5)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)
"""


def examples():
    yaml = pytest.importorskip("yaml")
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)]


@pytest.mark.parametrize(("gain", "code"), [(1.0, 0), (30.0, 1)])
def test_the_workflow_step_passes_a_healthy_model_and_stops_a_sick_one(gain, code, tmp_path, monkeypatch):
    steps = next(found for found in examples() if "run" in found[0])
    command = next(step["run"].split() for step in steps if step["run"].startswith("sigprop"))
    (tmp_path / "model.py").write_text(MODEL.format(gain=gain))
    monkeypatch.chdir(tmp_path)
    assert exit_code(app, command[1:]) == code
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_the_hook_stops_the_commit_of_a_sick_model(tmp_path):
    yaml = pytest.importorskip("yaml")
    if shutil.which("pre-commit") is None or shutil.which("git") is None:
        pytest.skip("pre-commit and git are needed to run the hook")
    hooks = next(found for found in examples() if "repo" in found[0])
    (tmp_path / "model.py").write_text(MODEL.format(gain=30.0))
    (tmp_path / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": hooks}))
    command = tmp_path / "bin/sigprop"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sigprop "$@"\n')
    command.chmod(0o755)
    search = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    around = os.environ | {"PATH": search, "PRE_COMMIT_HOME": str(tmp_path / "cache")}
    around["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PAGE.parents[2]), os.environ.get("PYTHONPATH")]))
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "model.py", ".pre-commit-config.yaml"], cwd=tmp_path, check=True)
    ran = subprocess.run(["pre-commit", "run"], cwd=tmp_path, env=around, capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "exit code: 1" in ran.stdout
    assert "gradient_explodes" in ran.stdout
