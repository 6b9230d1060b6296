"""How far a reader must go for one prediction, or one check: `python -m bench.crossings [check] [--depth 4]`.

A small GPT is predicted by theory alone, or checked, under a profiler hook. A call counts that leads from one file of
sigprop into another; files count that any such call leads to.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import sigprop
from sigprop.capture import predict
from sigprop.checks import check
from sigprop.models import build

ROOT = str(Path(sigprop.__file__).parent)


def counted(run: Callable[[], Any]) -> Counter[tuple[str, str]]:
    """Calls between files of sigprop, by caller and called."""
    found: Counter[tuple[str, str]] = Counter()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or frame.f_back is None:
            return
        called, caller = frame.f_code.co_filename, frame.f_back.f_code.co_filename
        if called != caller and called.startswith(ROOT) and caller.startswith(ROOT):
            found[caller[len(ROOT) + 1 :], called[len(ROOT) + 1 :]] += 1

    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", nargs="?", choices=("predict", "check"), default="predict")
    parser.add_argument("--depth", type=int, default=4)
    depth, what = (getattr(parser.parse_args(), name) for name in ("depth", "what"))
    ids = torch.randint(64, (1, 12), generator=torch.Generator().manual_seed(0))

    def run() -> None:
        make = lambda: build("transformer", width=64, depth=depth, heads=4, vocabulary=64)  # noqa: E731
        check(make(), ids) if what == "check" else predict(make, ids, loss="noise")

    run()  # what is imported or registered the first time does not count
    found = counted(run)
    files = {name for pair in found for name in pair}
    print(f"{len(files)} files, {sum(found.values()):,} calls from one to another, {depth} layers")
    for name, calls in Counter({b: sum(n for (_, to), n in found.items() if to == b) for _, b in found}).most_common(
        12
    ):
        print(f"{calls:7,} into {name}")


if __name__ == "__main__":
    main()
