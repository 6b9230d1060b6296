"""Two processes train the model that one process trains, and go on from its checkpoint."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sigprop.errors import InputError
from sigprop.research.lab.ranks import Ranks
from tests.research.lab import distributed_run

ROOT = Path(__file__).parents[3]


def losses(kind: str, folder: Path, stop: int = -1) -> list[float] | None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    command = [*torchrun, distributed_run.__name__, kind, str(folder), str(stop)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = [line for line in done.stdout.splitlines() if line.startswith("LOSSES")]
    return json.loads(found[0].removeprefix("LOSSES")) if found else None


def test_two_ranks_are_one(tmp_path):
    assert losses("ddp", tmp_path / "two") == pytest.approx(distributed_run.run("none", tmp_path, -1), abs=1e-6)


def test_sharded_parameters_are_saved_whole_and_taken_up_again(tmp_path):
    assert losses("fsdp", tmp_path / "two", stop=4) is None
    assert losses("fsdp", tmp_path / "two") == pytest.approx(distributed_run.run("none", tmp_path, -1), abs=1e-6)


def test_a_batch_that_cannot_be_shared_is_named():
    with pytest.raises(InputError, match="3 entries: 2 ranks"):
        Ranks(0, 2).share({"input_ids": torch.zeros(3, 2)})
