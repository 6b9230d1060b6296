"""Plays a newcomer: `python -m tests.newcomer [PAGE ...]`.

Builds the wheel, installs it without extras into a fresh environment in a fresh folder, and does what the pages say,
block by block as written. What is printed must be what the pages show. Pages that ask for an extra come last, after it
was installed as they say.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.documents import ROOT, Step, agrees, extras, pages, steps

END = "--- the block ends here ---"
SESSION = f"""
import json, sys, traceback
names = {{"__name__": "page"}}
for line in sys.stdin:
    try:
        exec(compile(json.loads(line), "page", "exec"), names)
    except BaseException:
        print("".join(traceback.format_exc()))
    print("{END}", flush=True)
"""


def main(chosen: list[str]) -> None:
    asked = [page for page in pages() if not chosen or page in chosen]
    with tempfile.TemporaryDirectory() as place:
        room = Environment(Path(place))
        failures = [told for page in sorted(asked, key=extras) for told in play(page, room)]
    print("\n".join(failures) or f"{len(asked)} pages do what they show")
    sys.exit(1 if failures else 0)


@dataclass
class Environment:
    """A fresh environment with the wheel alone; torch is the one of the constraints."""

    folder: Path

    def __post_init__(self) -> None:
        builder = ("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(self.folder), str(ROOT))
        subprocess.run([sys.executable, "-m", *builder], check=True)
        subprocess.run([sys.executable, "-m", "venv", str(self.folder / "env")], check=True)
        self.wheel = next(self.folder.glob("*.whl"))
        self.python = self.folder / "env" / "bin" / "python"
        self.install("torch==2.13.0")
        self.install(str(self.wheel))
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL"))}
        self.variables = {**kept, "PATH": f"{self.python.parent}:{kept['PATH']}", "COLUMNS": "80"}

    def install(self, what: str) -> None:
        pinned = ("--constraint", str(ROOT / "constraints.txt"))
        subprocess.run([self.python, "-m", "pip", "install", "--quiet", *pinned, what], check=True)


def play(page: str, room: Environment) -> list[str]:
    """What went otherwise than the page says."""
    if extras(page):
        room.install(f"{room.wheel}[{','.join(extras(page))}]")
    folder = room.folder / page.replace("/", "-")
    folder.mkdir()
    told, begun = [], time.monotonic()
    words = [str(room.python), "-c", SESSION]
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, cwd=folder, env=room.variables, **piped) as session:
        for step in steps(ROOT / page):
            if step.kind == "file":
                (folder / step.name).write_text(step.text)
                continue
            printed = python(step, session) if step.kind == "python" else command(step, folder, room)
            broke = "Traceback (most recent call last)" in printed or "command not found" in printed
            if broke or (step.shown and not agrees(step.shown, printed)):
                told.append(f"{page}: {step.text}\n{printed}")
        session.stdin.close()  # type: ignore[union-attr]
    print(f"{page}: {'otherwise' if told else 'as shown'} ({time.monotonic() - begun:.0f} s)", flush=True)
    return told


def python(step: Step, session: subprocess.Popen) -> str:
    session.stdin.write(json.dumps(step.text) + "\n")  # type: ignore[union-attr]
    session.stdin.flush()  # type: ignore[union-attr]
    lines = []
    for line in session.stdout:  # type: ignore[union-attr]
        if line.strip() == END:
            break
        lines.append(line)
    return "".join(lines)


def command(step: Step, folder: Path, room: Environment) -> str:
    words = ["bash", "-c", step.text]
    done = subprocess.run(words, cwd=folder, env=room.variables, capture_output=True, text=True, timeout=900)
    return done.stdout + done.stderr


if __name__ == "__main__":
    main(sys.argv[1:])
