"""Two processes train the model that one process trains, and go on from its checkpoint."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sigprop.errors import InputError
from sigprop.lab.ranks import Ranks
from tests.lab import distributed_run

ROOT = Path(__file__).parents[2]


def losses(kind: str, folder: Path, processes: int, stop: int = -1) -> list[float] | None:
    module = [sys.executable, "-m"]
    torchrun = [*module, "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    command = [*(torchrun if processes > 1 else module), distributed_run.__name__, kind, str(folder), str(stop)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = [line for line in done.stdout.splitlines() if line.startswith("LOSSES")]
    return json.loads(found[0].removeprefix("LOSSES")) if found else None


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_ranks_are_one(tmp_path, kind):
    expected = losses("none", tmp_path / "one", 1)
    assert losses(kind, tmp_path / "whole", 2) == pytest.approx(expected, abs=1e-6)
    assert losses(kind, tmp_path / "parts", 2, stop=4) is None
    assert losses(kind, tmp_path / "parts", 2) == pytest.approx(expected, abs=1e-6)


def test_a_batch_that_cannot_be_shared_is_named():
    with pytest.raises(InputError, match="3 entries: 2 ranks"):
        Ranks(0, 2).share({"input_ids": torch.zeros(3, 2)})
