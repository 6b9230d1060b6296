"""Docstrings say `name: what it is` line by line; the reference shows these lines as the parameters they are."""

from __future__ import annotations

import re
from typing import Any

import griffe

LINE = re.compile(r"((?:\w+, )*\w+): \S")


class Arguments(griffe.Extension):
    """Puts such lines under `Args:`, one entry for each name."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if func.docstring is not None:
            func.docstring.value = _marked(func.docstring.value, {item.name for item in func.parameters})

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        made = cls.members.get("__init__")
        if cls.docstring is not None and isinstance(made, griffe.Function):
            cls.docstring.value = _marked(cls.docstring.value, {item.name for item in made.parameters})


def _marked(text: str, known: set[str]) -> str:
    marked, inside = [], False
    for line in text.splitlines():
        found = LINE.match(line)
        if found and set(found[1].split(", ")) <= known:
            marked += [] if inside else ["Args:"]
            inside = True
            first, *others = found[1].split(", ")
            marked += [f"    {name}: See `{first}`." for name in others]
            line = first + line[found.end(1) :]
        elif inside and not line.startswith(" "):
            marked += [""] if line.strip() else []
            inside = False
        marked.append(f"    {line}" if inside else line)
    return "\n".join(marked)
