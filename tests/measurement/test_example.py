"""The example runs as printed in the documentation."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "measure_gpt2.py"


def test_measure_gpt2_example():
    pytest.importorskip("transformers")
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "3", "2"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["0", "1", "2"]
    chi = [float(word) for word in lines[-1].split(":")[1].split()]
    assert len(chi) == 2
    assert all(1.0 < value < 1.5 for value in chi)
