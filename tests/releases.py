"""The core of the suite on several releases of PyTorch, each in an environment of its own: `make compat`.

python -m tests.releases [--torch 2.6.0 2.9.1 2.11.0] [--python VERSION=PATH ...] [--out docs/data/releases.json]

An environment that exists already is given by `--python 2.9.1=/path/to/python`. The other parts of the suite have the
release that `constraints.txt` pins.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE = ("test_compat.py", "test_losses.py", "test_prediction.py", "distributions", "structure", "results", "models",
        "checks/diff", "measurement", "inputs", "plans/recipes", "capture")  # fmt: skip
NEEDS = ("numpy", "scipy", "rich", "typer", "matplotlib", "jinja2", "safetensors", "optree", "pytest", "hypothesis",
         "mpmath", "jsonschema", "transformers", "pytest-xdist")  # fmt: skip


def environment(release: str, folder: Path) -> Path:
    """A fresh environment with one release; the package is run from the checkout."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"torch=={release}", *NEEDS], check=True)
    return python


def outcome(python: Path, parts: list[str], workers: int, patience: float | None) -> dict[str, object]:
    """How many tests of each part passed, and the names of those that did not."""
    found: dict[str, object] = {}
    lines = []
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    told = [str(python), "-c", "import sys, torch; print(torch.__version__, sys.version.split()[0])"]
    torch, version = subprocess.run(told, capture_output=True, text=True, check=True).stdout.split()
    for part in parts:
        command = [
            str(python),
            "-m",
            "pytest",
            "-o",
            "addopts=",
            "-m",
            "not slow",
            "-q",
            "-p",
            "no:cacheprovider",
            "-rfE",
            "-n",
            str(workers),
            f"tests/{part}",
        ]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False, timeout=patience
            )
        except subprocess.TimeoutExpired:
            found[part] = f"not finished in {patience:g} s"
            continue
        found[part] = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error|skipped)", done.stdout)}
        lines += [line[:200] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        print(torch, part, found[part], flush=True)
    return {"torch": torch, "python": version, "parts": found, "not_passed": lines}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch", nargs="*", default=["2.6.0", "2.9.1", "2.11.0"])
    parser.add_argument("--python", nargs="*", default=[])
    parser.add_argument("--parts", nargs="*", default=CORE)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--patience", type=float, help="seconds for one part")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    known = dict(item.split("=", 1) for item in given.python)
    found = []
    for release in dict.fromkeys([*known, *(() if known else given.torch)]):
        with tempfile.TemporaryDirectory() as folder:
            python = Path(known[release]) if release in known else environment(release, Path(folder))
            found.append(outcome(python, list(given.parts), given.workers, given.patience))
        print(json.dumps(found[-1], indent=1), flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    return int(any(item["not_passed"] for item in found))


if __name__ == "__main__":
    sys.exit(main())
