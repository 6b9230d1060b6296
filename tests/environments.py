"""Fresh environments for `make packages`, `make compat` and `make newcomer`: by uv where it is there, else by pip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

UV = shutil.which("uv")


def environment(folder: Path, version: str | None = None) -> Path:
    """The interpreter of a new empty environment, of one version of Python (None: this one)."""
    if UV:
        subprocess.run([UV, "venv", "--quiet", "--python", version or sys.executable, str(folder)], check=True)
    else:
        subprocess.run([interpreter(version), "-m", "venv", str(folder)], check=True)
    return folder / "bin" / "python"


def install(python: Path, *what: str) -> None:
    """Install packages, with the options that pip and uv share."""
    pip = [UV, "pip", "install", "--python", str(python)] if UV else [str(python), "-m", "pip", "install"]
    subprocess.run([*pip, "--quiet", *what], check=True)


def has_interpreter(version: str) -> bool:
    """Whether this machine has a version of Python."""
    if UV:
        return not subprocess.run([UV, "python", "find", version], capture_output=True, check=False).returncode
    return shutil.which(f"python{version}") is not None


def interpreter(version: str | None) -> str:
    found = sys.executable if version is None else shutil.which(f"python{version}")
    if found is None:
        raise SystemExit(f"no python{version} on this machine: install it, or install uv, which brings it")
    return found


def variables(python: Path) -> dict[str, str]:
    """The surroundings of a command of an environment; nothing of the one that asks."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL"))}
    return {**kept, "PATH": f"{python.parent}{os.pathsep}{kept['PATH']}", "COLUMNS": "80", "OMP_NUM_THREADS": "1"}
