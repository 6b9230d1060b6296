"""Which code made a number: a fingerprint of the packages that `predict` runs through."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "sigprop"
ENGINE = ("theory", "distributions", "graph", "capture", "structure", "verification", "prediction.py", "losses.py")


@cache
def engine_code() -> str:
    """Eight letters of a hash over the sources, the same on every machine."""
    made = hashlib.sha256()
    for part in ENGINE:
        paths = [PACKAGE / part] if part.endswith(".py") else sorted((PACKAGE / part).rglob("*.py"))
        if not paths:
            raise FileNotFoundError(f"{PACKAGE / part} has no sources: ENGINE names a package that is not there")
        for path in paths:
            made.update(str(path.relative_to(PACKAGE)).encode() + path.read_bytes())
    return made.hexdigest()[:8]
