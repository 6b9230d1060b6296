"""Run every benchmark: `python -m bench`, or `python -m bench blueprints measure`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))


def main() -> None:
    chosen = sys.argv[1:] or NAMES
    for name in chosen:
        if name not in NAMES:
            sys.exit(f"bench: unknown benchmark {name!r}; there are {', '.join(NAMES)}")
    sys.argv = sys.argv[:1]
    for name in chosen:
        print(f"\n== {name}")
        importlib.import_module(f"bench.{name}").main()


if __name__ == "__main__":
    main()
