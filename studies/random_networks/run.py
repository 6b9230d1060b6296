"""`python -m studies.random_networks.run`: tracebacks and contradicted rows among two hundred random networks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from sigprop.errors import SigpropError
from studies.random_networks.judging import contradicted
from studies.stored import in_processes, stamp, write

OUT = Path("docs/data/random_networks.json")
FIRST = 1000


def attempt(number: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    row: dict[str, Any] = {"network": number}
    start = time.process_time()
    try:
        row["wrong"] = sorted(contradicted(number))
    except SigpropError as error:
        row["refused"] = str(error).splitlines()[0]
    except Exception as error:
        row["traceback"] = f"{type(error).__name__}: {error}".splitlines()[0]
    return row | {"seconds": round(time.process_time() - start, 1)}


def main(
    count: Annotated[int, typer.Option(help="Networks.")] = 200,
    first: Annotated[int, typer.Option(help="The number of the first one.")] = FIRST,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    out: Annotated[Path, typer.Option(help="JSON file.")] = OUT,
) -> None:
    """Predict random networks and judge them."""
    rows: list[dict[str, Any]] = []
    for row in in_processes(attempt, [(number,) for number in range(first, first + count)], workers):
        rows.append(row)
        write(out, summary(rows, first) | {"rows": sorted(rows, key=lambda row: row["network"])})
    print(summary(rows, first), *(row for row in rows if "wrong" not in row or row["wrong"]), sep="\n")


def summary(rows: list[dict[str, Any]], first: int) -> dict[str, Any]:
    found = stamp(f"random_networks.run --first {first} --count {len(rows)}", networks=len(rows))
    found |= {kind: sum(kind in row for row in rows) for kind in ("refused", "traceback")}
    return found | {"with a wrong row": sum(bool(row.get("wrong")) for row in rows)}


if __name__ == "__main__":
    typer.run(main)
