"""Checks one after the other in one process: nothing is left behind. Five hundred of them in `make stress`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.robustness.scale import LONG, cases

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory from /proc")
def test_many_checks_leave_nothing():
    command = [sys.executable, "-m", "tests.robustness.soak", str(cases(12, 500))]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["process"]
    assert found["models"]
    assert found["threads and files"]
    assert found["flat"] or not LONG, found["megabytes"]
