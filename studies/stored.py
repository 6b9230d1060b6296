"""What all studies share: JSON (compressed where its name ends in `.gz`, always written whole), rows that several
processes make one by one, tables in Markdown, and pages with tables between two marks."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sigprop.results.files import write_whole


def read(path: Path, otherwise: Any = None) -> Any:
    """The data of a file; `otherwise` where there is none."""
    if otherwise is not None and not path.exists():
        return otherwise
    content = path.read_bytes()
    return json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)


def write(path: Path, data: Any) -> None:
    """The same data gives the same bytes."""
    content = (json.dumps(data, separators=(",", ":")) + "\n").encode()
    write_whole(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table in Markdown."""
    return [_line(headings), "|" + "---|" * len(headings), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def replaced(text: str, name: str, lines: Iterable[str]) -> str:
    """A page with new lines between `<!-- name -->` and `<!-- end name -->`."""
    start, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    before, _, rest = text.partition(start)
    return "\n".join([before + start, *lines, end + rest.partition(end)[2]])
