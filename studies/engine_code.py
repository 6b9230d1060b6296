"""Which code made a number: a fingerprint of the rooms that `predict` runs through."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

ENGINE = ("theory", "trace", "simulate", "initialization", "results")
FILES = ("prediction.py", "losses.py", "long_contexts.py", "reduced.py", "score_masks.py", "sites.py", "compat.py")


@cache
def engine_code(package: Path = Path(__file__).parents[1] / "sigprop") -> str:
    """Eight letters of a hash over the sources, the same on every machine."""
    sources = [path for room in ENGINE for path in (package / room).rglob("*.py")] + [package / name for name in FILES]
    made = hashlib.sha256()
    for path in sorted(sources):
        made.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return made.hexdigest()[:8]
