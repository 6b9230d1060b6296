"""Processor time of a start: `python -m bench start`. Asked: help within 0.5 s of Python's own start."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

ROUNDS = 5
STARTS = {
    "python": "pass",
    "import torch": "import torch",
    "import sigprop": "import sigprop",
    "from sigprop import predict": "from sigprop import predict",
    "sigprop --help": "import sys; sys.argv = ['sigprop', '--help']; from sigprop.cli import main; main()",
    "sigprop predict -h": "import sys; sys.argv = ['sigprop', 'predict', '-h']; from sigprop.cli import main; main()",
}


def seconds(code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    found = {name: [] for name in STARTS}
    for _ in range(ROUNDS):
        for name, code in STARTS.items():
            found[name].append(seconds(code))
    torch = statistics.median(found["import torch"])
    print(f"{'':32}{'seconds':>9}{'of torch':>10}")
    for name, times in found.items():
        middle = statistics.median(times)
        print(f"{name:32}{middle:9.2f}{middle / torch:10.2f}")


if __name__ == "__main__":
    main()
