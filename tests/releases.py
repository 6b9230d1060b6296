"""The core of the suite on several releases of PyTorch, each in an environment of its own: `make compat`.

python -m tests.releases [--torch 2.6.0 ...] [--parts theory ...] [--python 2.9.1=/path/to/python ...]

Without a path an environment is made under `build/releases`, and kept. The outcome is stored in
`docs/data/releases.json`, from which `docs/learn/install.md` has its table. Everything else in the suite runs with the
release that `constraints.txt` pins.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from tests.environments import environment, install, variables

ROOT = Path(__file__).parents[1]
RELEASES = {"2.6.0": "3.10", "2.9.1": "3.11", "2.11.0": "3.12", "2.15.0": "3.13"}
"""Releases of PyTorch, each with the version of Python it is run on."""
CORE = {
    "theory": ("test_compat.py", "test_losses.py", "test_prediction.py", "test_tour.py", "inputs", "models",
               "structure/test_structure.py", "structure/test_junctions_and_roles.py"),
    "capture": ("capture/test_predict.py", "capture/test_evaluate.py", "capture/test_loss_gradients.py",
                "capture/test_spellings.py", "capture/test_stops.py", "capture/test_skeleton.py",
                "capture/test_networks.py", "capture/test_experts.py"),
    "plans": ("distributions", "results", "plans/test_applying.py", "plans/test_hyperball.py", "plans/test_muon.py",
              "plans/test_own_scale.py", "plans/test_plan.py", "plans/test_reloading.py", "plans/test_sharded_plan.py",
              "plans/recipes/test_fold.py", "plans/scaling/test_parametrize.py", "cli/test_plan_and_recipes.py"),
    "checks": ("checks/diff", "checks/test_findings.py", "checks/test_check_command.py", "checks/test_loading.py"),
    "measurement": ("measurement/test_untouched.py", "measurement/test_odd_modules.py",
                    "measurement/test_brute_force.py", "monitoring/test_watch.py"),
}  # fmt: skip
"""Tests of every part of the package, without those that take long and ask little of torch: 3 minutes of processor."""
NEEDS = ("pytest", "hypothesis", "jsonschema", "matplotlib", "mpmath", "packaging", "pyyaml", "transformers")
STORED = ROOT / "docs" / "data" / "releases.json"
PATIENCE = 1800
"""Seconds for the core on one release."""


def prepared(release: str) -> Path:
    """An environment with one release and what sigprop needs; the package is run from the checkout."""
    folder = ROOT / "build" / "releases" / release
    python = folder / "bin" / "python"
    if not (folder / ".ready").is_file():
        environment(folder, RELEASES.get(release))
        install(python, f"torch=={release}", "--editable", str(ROOT), *NEEDS)
        (folder / ".ready").touch()
    return python


def outcome(python: Path, files: tuple[str, ...]) -> dict[str, Any]:
    """How many tests passed in one environment, and which did not, each with its reason."""
    report = python.parents[1] / "report.xml"
    report.unlink(missing_ok=True)
    options = ("-o", "addopts=", "-m", "not slow", "-q", "-p", "no:cacheprovider", f"--junitxml={report}")
    command = [str(python), "-m", "pytest", *options, *(f"tests/{file}" for file in files)]
    settings = {**variables(python), "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=ROOT, env=settings, check=False, timeout=PATIENCE)
    found: dict[str, list[str]] = {"passed": [], "failure": [], "error": [], "skipped": []}
    for case in ElementTree.parse(report).iter("testcase"):
        state = next((item for item in case if item.tag in found), None)
        reason = "" if state is None else (state.get("message") or "").splitlines()[0]
        found["passed" if state is None else state.tag].append(f"{case.get('name')}: {reason}"[:200])
    return {"passed": len(found.pop("passed")), **found}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch", nargs="*", default=list(RELEASES))
    parser.add_argument("--parts", nargs="*", default=list(CORE), help=", ".join(CORE))
    parser.add_argument("--python", nargs="*", default=[], help="RELEASE=PATH of environments that exist")
    given = parser.parse_args()
    known = dict(item.split("=", 1) for item in given.python)
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    failed = 0
    for release in known or given.torch:
        python = Path(known[release]) if release in known else prepared(release)
        asked = [str(python), "-c", "import platform; print(platform.python_version())"]
        own = stored.setdefault(release, {})
        own["python"] = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        for part in given.parts:
            found = own.setdefault("parts", {})[part] = outcome(python, CORE[part])
            print(release, part, found, flush=True)
            failed += len(found["failure"]) + len(found["error"])
            STORED.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
