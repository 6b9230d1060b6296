"""Plays a newcomer: `python -m tests.newcomer`.

Builds the wheel, installs it without extras into a fresh environment in a fresh folder, and does what the pages say,
block by block as written. What is printed must be what the pages show. Pages that need an extra are left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.documents import agrees, steps

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "docs/index.md", *sorted((ROOT / "docs").glob("learn/*.md"))]
PAGES += sorted((ROOT / "docs").glob("do/*.md"))
NEEDS_EXTRAS = ("transformers", "lightning", "accelerate", "tensorboard", "wandb")


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        python = fresh_environment(folder)
        failures = [failure for page in PAGES for failure in play(page, folder / "work", python)]
    print("\n".join(failures) or "every page does what it shows")
    sys.exit(1 if failures else 0)


def fresh_environment(folder: Path) -> Path:
    """An environment with the wheel alone; torch comes from the constraints, as for everybody else."""
    call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    call(sys.executable, "-m", "venv", str(folder / "env"))
    python = folder / "env" / "bin" / "python"
    wheel = next(folder.glob("*.whl"))
    install = (str(python), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"))
    call(*install, "torch==2.13.0")
    call(*install, str(wheel))
    return python


def play(page: Path, folder: Path, python: Path) -> list[str]:
    """What went otherwise than the page says."""
    text = page.read_text()
    if any(f"import {name}" in text or f"from {name}" in text for name in NEEDS_EXTRAS):
        print(f"{page.relative_to(ROOT)}: needs an extra, left out")
        return []
    folder.mkdir(exist_ok=True)
    told, earlier = [], ""
    for step in steps(page):
        if step.kind == "file":
            (folder / step.name).write_text(step.text)
            continue
        if step.kind == "python":
            mark = "print('--- here ---')\n"
            code = earlier + mark + step.text
            earlier += step.text
            done = run([str(python), "-c", code], folder)
            printed = done.stdout.partition("--- here ---\n")[2]
        else:
            done = run(["bash", "-c", step.text], folder, path=python.parent)
            printed = done.stdout + done.stderr
        crashed = step.kind == "python" and done.returncode != 0
        if crashed or (step.shown is not None and not agrees(step.shown, printed)):
            told.append(f"{page.relative_to(ROOT)}: {step.text}\n{printed}{done.stderr if crashed else ''}")
    print(f"{page.relative_to(ROOT)}: {'as shown' if not told else 'otherwise'}", flush=True)
    return told


def run(words: list[str], folder: Path, path: Path | None = None) -> subprocess.CompletedProcess:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL"))}
    clean["PATH"] = f"{path}:{clean['PATH']}" if path else clean["PATH"]
    return subprocess.run(words, cwd=folder, env=clean, capture_output=True, text=True, timeout=900)


def call(*words: str) -> None:
    subprocess.run(words, check=True)


if __name__ == "__main__":
    main()
