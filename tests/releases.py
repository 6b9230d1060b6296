"""The core of the suite on several releases of PyTorch, each in an environment of its own: `make compat`.

python -m tests.releases [--torch 2.6.0 ...] [--python 2.9.1=/path/to/python ...]

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
from collections import Counter
from pathlib import Path

from tests.environments import environment, install, variables

ROOT = Path(__file__).parents[1]
RELEASES = {"2.6.0": "3.10", "2.9.1": "3.11", "2.11.0": "3.12", "2.15.0": "3.13"}
"""Releases of PyTorch, each with the version of Python it is run on."""
CORE = [
    "tests/test_compat.py", "tests/test_losses.py", "tests/test_prediction.py", "tests/test_tour.py",
    "tests/distributions", "tests/inputs", "tests/models", "tests/results", "tests/structure/test_structure.py",
    "tests/structure/test_junctions_and_roles.py", "tests/capture/test_predict.py", "tests/capture/test_evaluate.py",
    "tests/capture/test_loss_gradients.py", "tests/capture/test_spellings.py", "tests/capture/test_stops.py",
    "tests/capture/test_skeleton.py", "tests/capture/test_networks.py", "tests/capture/test_experts.py",
    "tests/checks/diff", "tests/checks/test_findings.py", "tests/checks/test_check_command.py",
    "tests/checks/test_loading.py", "tests/measurement/test_untouched.py", "tests/measurement/test_odd_modules.py",
    "tests/measurement/test_brute_force.py", "tests/plans/recipes/test_fold.py",
    "tests/plans/scaling/test_parametrize.py", "tests/monitoring/test_watch.py", "tests/cli/test_plan_and_recipes.py",
]  # fmt: skip
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


def outcome(python: Path) -> dict[str, object]:
    """Counts of the core's tests in one environment, and those that did not pass, each with its reason."""
    report = ROOT / "build" / "releases" / "report.xml"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    asked = "import json, platform, torch; print(json.dumps([torch.__version__, platform.python_version()]))"
    told = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout
    torch, version = json.loads(told)
    options = ("-m", "not slow", "-q", "-p", "no:cacheprovider", f"--junitxml={report}")
    command = [str(python), "-m", "pytest", "-o", "addopts=", *options, *CORE]
    subprocess.run(command, cwd=ROOT, env=variables(python), check=False, timeout=PATIENCE)
    counts: Counter[str] = Counter()
    reasons = []
    for case in ElementTree.parse(report).iter("testcase"):
        state = next((item for item in case if item.tag in ("failure", "error", "skipped")), None)
        counts["passed" if state is None else state.tag] += 1
        if state is not None:
            message = (state.get("message") or "").splitlines() or [""]
            reasons.append(f"{state.tag} {case.get('classname')}::{case.get('name')}: {message[0]}"[:240])
    return {"torch": torch, "python": version, "counts": dict(counts), "not_passed": reasons}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch", nargs="*", default=list(RELEASES))
    parser.add_argument("--python", nargs="*", default=[], help="RELEASE=PATH of environments that exist")
    given = parser.parse_args()
    known = dict(item.split("=", 1) for item in given.python)
    stored = {item["torch"].split("+")[0]: item for item in (json.loads(STORED.read_text()) if STORED.exists() else [])}
    for release in known or given.torch:
        stored[release] = outcome(Path(known[release]) if release in known else prepared(release))
        print(release, stored[release]["counts"], flush=True)
        STORED.write_text(json.dumps(sorted(stored.values(), key=lambda item: item["torch"]), indent=1) + "\n")
    return int(any({"failure", "error"} & set(stored[release]["counts"]) for release in known or given.torch))


if __name__ == "__main__":
    sys.exit(main())
