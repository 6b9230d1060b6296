"""`python -m studies.random_networks.run`: tracebacks and contradicted rows among two hundred random networks."""

from __future__ import annotations

import json
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from sigprop.errors import SigpropError
from studies.random_networks.judging import contradicted

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
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        rows = list(pool.map(attempt, range(first, first + count)))
    command = f"python -m studies.random_networks.run --first {first} --count {count}"
    wrong = [row for row in rows if row.get("wrong")]
    data = {"command": command, "date": str(date.today()), "networks": len(rows)}
    data |= {"refused": sum("refused" in row for row in rows), "tracebacks": sum("traceback" in row for row in rows)}
    out.write_text(json.dumps(data | {"with a wrong row": len(wrong), "rows": rows}) + "\n")
    print(data, *(row for row in rows if "wrong" not in row or row["wrong"]), sep="\n")


if __name__ == "__main__":
    typer.run(main)
