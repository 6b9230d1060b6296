"""The programs of the page on where people train, as they stand there."""

import os
import runpy
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from sigprop.monitoring import read_samples
from tests.documents import steps

ROOT = Path(__file__).parents[2]
FILES = {step.name: step.text for step in steps(ROOT / "docs" / "do" / "places.md") if step.kind == "file"}
TEST, PLUGIN = "test_model.py", "sigprop.integrations.pytest"
PROGRAMS = {name: text for name, text in FILES.items() if name != TEST}
NEEDS = {
    "with_trainer.py": ("transformers", "accelerate"),
    "with_lightning.py": ("lightning",),
    "with_accelerate.py": ("accelerate",),
    "with_torchrun.py": (),
}
TORCHRUN = "with_torchrun.py"
FOLDER = {"with_trainer.py": "out/sigprop-watch"}


def test_every_program_has_a_test():
    assert set(PROGRAMS) == set(NEEDS)


def test_the_test_of_the_page_passes(tmp_path):
    (tmp_path / TEST).write_text(FILES[TEST])
    loaded = any(item.value == PLUGIN for item in entry_points(group="pytest11"))
    command = [sys.executable, "-m", "pytest", "-q", *(() if loaded else ("-p", PLUGIN)), TEST]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.parametrize("name", [name for name in NEEDS if name != TORCHRUN])
def test_a_program_runs_and_leaves_its_history(name, tmp_path, monkeypatch):
    for package in NEEDS[name]:
        pytest.importorskip(package, reason=f"{package} is not installed")
    (tmp_path / name).write_text(PROGRAMS[name])
    monkeypatch.chdir(tmp_path)
    runpy.run_path(name)
    samples = read_samples(tmp_path / FOLDER.get(name, "sigprop-watch"))
    assert [sample.step for sample in samples] == [0, 2]


@pytest.mark.slow
def test_the_program_for_torchrun_runs_and_leaves_its_history(tmp_path):
    (tmp_path / TORCHRUN).write_text(PROGRAMS[TORCHRUN])
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", TORCHRUN]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(launch, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [sample.step for sample in read_samples(tmp_path / "sigprop-watch")] == [0, 2]
