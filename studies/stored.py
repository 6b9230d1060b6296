"""What a study stores: JSON, compressed where its name ends in `.gz`, always written whole."""

from __future__ import annotations

import gzip
import json
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
