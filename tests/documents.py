"""Pages as steps that can be run: what a newcomer would type, and what the page says comes out.

    ```python title="net.py"     a file, written; of any language
    ```python                    code, run; all of a page in one namespace
    ```console                   commands after `$ `, each followed by what it prints
    ```text                      what the block before it prints

A page that works with the files of another one says `<!-- uses learn/tutorial.md -->`.
In an output `...` on a line of its own stands for any lines, and at the end of a line for the rest of it.
Numbers may differ by 10 %.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```", re.S | re.M)
USES = re.compile(r"^<!-- uses (\S+) -->$", re.M)
ROOT = Path(__file__).parents[1]
EXTRAS = {"transformers": "hf", "accelerate": "accelerate", "lightning": "lightning", "tensorboard": "trackers"}
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Step:
    """One thing to do: write a `file`, run `python`, or run a `command`; `shown` is what the page says is printed."""

    kind: str
    text: str
    name: str = ""
    shown: str | None = None


def pages() -> list[str]:
    """The README and all pages that have something to do, by their place in the repository."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in found if steps(path)]


def extras(page: str) -> tuple[str, ...]:
    """What a page needs beyond the package itself, by what its blocks import."""
    code = "\n".join(step.text for step in steps(ROOT / page))
    return tuple(extra for name, extra in EXTRAS.items() if re.search(rf"^(import|from) {name}\b", code, re.M))


def steps(path: Path) -> list[Step]:
    text = path.read_text()
    found = [step for page in USES.findall(text) for step in steps(ROOT / "docs" / page) if step.kind == "file"]
    for language, options, body in FENCE.findall(text):
        title = re.search(r'title="([^"]+)"', options)
        if title:
            found.append(Step("file", body, title[1]))
        elif language == "python":
            found.append(Step("python", body))
        elif language == "console":
            found += _commands(body)
        elif language == "text" and found and found[-1].kind == "python":
            found[-1] = Step("python", found[-1].text, shown=body)
    return found


def _commands(body: str) -> list[Step]:
    parts = re.split(r"(?m)^\$ ", body)[1:]
    return [Step("command", part.split("\n", 1)[0], shown=part.split("\n", 1)[1]) for part in parts]


def agrees(shown: str, printed: str) -> bool:
    """Is what was printed what the page shows?"""
    return _match(shown.rstrip().splitlines(), printed.rstrip().splitlines())


def _match(shown: list[str], printed: list[str]) -> bool:
    if not shown:
        return not printed
    if shown[0].strip() == "...":
        return any(_match(shown[1:], printed[start:]) for start in range(len(printed) + 1))
    return bool(printed) and _same(shown[0], printed[0]) and _match(shown[1:], printed[1:])


def _same(shown: str, printed: str) -> bool:
    if shown.endswith("..."):
        shown, printed = shown[:-3], printed[: len(shown) - 3]
    words, found = NUMBER.split(" ".join(shown.split())), NUMBER.split(" ".join(printed.split()))
    values = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=False)
    return words == found and all(math.isclose(float(a), float(b), rel_tol=0.1) for a, b in values)
