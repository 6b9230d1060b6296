"""What is published, in clean environments: `make packages`.

python -m tests.packages [--python 3.10 3.11 ...]

Builds wheel and source distribution, checks both (twine, check-wheel-contents), installs the wheel without extras under
every version of Python that this machine has, runs it once there and by `uvx` and `pipx run`, and runs from the source
distribution the tests that read files beside the package.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.environments import UV, environment, has_interpreter, install, variables
from tests.releases import RELEASES

ROOT = Path(__file__).parents[1]
PYTHONS = {**{python: torch for torch, python in RELEASES.items()}, "3.14": list(RELEASES)[-1]}
"""Versions of Python, each with the release of PyTorch that it is tried with."""
READS_FILES = ("tests/test_release.py", "tests/test_notebooks.py", "tests/integrations/test_ci.py",
               "tests/integrations/test_examples.py", "tests/test_architecture.py", "tests/test_tour.py")  # fmt: skip
NET = """
import torch
from torch import nn


def net(std=0.125):
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
    for layer in model[::2]:
        nn.init.normal_(layer.weight, std=std)
    return model


def batch():
    return torch.randn(8, 16)
"""
COMMANDS = {
    "--version": 0,
    "--help": 0,
    "demo": 0,
    "check net.py:net": 0,
    "check net.py:net(std=3.0)": 1,
    "predict net.py:net": 0,
    "plan net.py:net --recipe xavier --export python --out init.py": 0,
    "diff net.py:net net.py:net(std=0.3)": 1,
    "check nowhere.py:net": 2,
}
"""What is run in every environment, and how it should end."""


def built(folder: Path) -> tuple[Path, Path]:
    """A wheel and a source distribution of this checkout."""
    subprocess.run([sys.executable, "-m", "hatchling", "build", "--directory", str(folder)], cwd=ROOT, check=True)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def smoke(python: Path, folder: Path) -> list[str]:
    """Commands that ended otherwise than they should."""
    (folder / "net.py").write_text(NET)
    told = []
    for line, code in COMMANDS.items():
        command = [str(python.parent / "sigprop"), *line.split(" ")]
        done = subprocess.run(command, cwd=folder, env=variables(python), capture_output=True, text=True, check=False)
        if done.returncode != code or (code == 2 and len(done.stderr.splitlines()) != 1):
            told.append(f"sigprop {line}: exit code {done.returncode}, not {code}\n{done.stdout}{done.stderr}")
    return told


def installed(python: Path) -> set[str]:
    """Names of the packages of an environment."""
    asked = "import importlib.metadata as m; print(*(item.name for item in m.distributions()))"
    return set(subprocess.run([str(python), "-c", asked], capture_output=True, text=True, check=True).stdout.split())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", nargs="*", default=list(PYTHONS))
    given = parser.parse_args()
    failed: list[str] = []

    def ran(what: str, command: list[str], folder: Path, python: Path) -> None:
        done = subprocess.run(command, cwd=folder, env=variables(python), capture_output=True, text=True, check=False)
        failed.extend([f"{what}: {done.stdout}{done.stderr}"] * bool(done.returncode))
        print(
            f"{what}: {'failed' if done.returncode else (done.stdout.strip().splitlines() or ['passed'])[-1]}",
            flush=True,
        )

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        wheel, source = built(folder)
        tools = environment(folder / "tools")
        install(tools, "twine", "check-wheel-contents", "pipx")
        ran("twine", [str(tools), "-m", "twine", "check", "--strict", str(wheel), str(source)], folder, tools)
        ran("check-wheel-contents", [str(tools.parent / "check-wheel-contents"), str(wheel)], folder, tools)
        for version in given.python:
            if not has_interpreter(version):
                print(f"Python {version}: not on this machine, not tested", flush=True)
                continue
            python = environment(folder / version, version)
            install(python, f"torch=={PYTHONS[version]}")
            before = installed(python)
            install(python, str(wheel))
            added = sorted(installed(python) - before - {"sigprop"})
            told = smoke(python, folder / version)
            failed += told
            passed = f"{len(COMMANDS) - len(told)} of {len(COMMANDS)} commands"
            print(f"Python {version}, torch {PYTHONS[version]}: {passed}; beside torch {', '.join(added)}", flush=True)
        ran("pipx run", [str(tools), "-m", "pipx", "run", "--spec", str(wheel), "sigprop", "--version"], folder, tools)
        if UV:
            ran("uvx", [UV, "tool", "run", "--from", str(wheel), "sigprop", "--version"], folder, tools)
        with tarfile.open(source) as archive:
            archive.extractall(folder / "source", filter="data")
        unpacked = next((folder / "source").iterdir())
        for options in (("--collect-only", "-q"), ("-q", *READS_FILES)):
            ran(
                f"source, pytest {options[0]}",
                [sys.executable, "-m", "pytest", *options],
                unpacked,
                Path(sys.executable),
            )
    print("\n".join(failed) or "all that is published works")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
