"""Which models of transformers can be predicted: `python -m studies.predict_coverage --help`.

Every causal, masked and sequence-to-sequence language model and every image classifier of the installed release is
built from a small config on the meta device and predicted, forward and backward. The table goes to
docs/evidence/coverage.md.
"""

from __future__ import annotations

import math
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from sigprop import predict
from sigprop.errors import SigpropError, UnsupportedError
from studies.coverage_configs import KINDS, built, class_of, classes
from studies.stored import fill, in_processes, read, table, write

PAGE, STORED = Path("docs/evidence/coverage.md"), Path("docs/data/predict_coverage.json")
CHECKS = Path("docs/data/class_checks.json.gz")


class Late(BaseException):
    """Not an Exception, so that no rule mistakes it for a failure of its own."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Late(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def attempt(kind: str, number: int, tokens: int, seconds: int) -> dict[str, Any]:
    """Build and predict one class: outcome is predicted, failed, or not built (with the reason)."""
    config_class, model_class = class_of(kind, number)
    row: dict[str, Any] = {"model": model_class.__name__, "config": config_class.__name__, "kind": kind}
    start = time.perf_counter()
    try:
        with limited(seconds):
            model = built(config_class, model_class, decoder=kind == "causal LM")
    except (Exception, Late) as error:
        return row | {"outcome": "not built", "reason": reason_of(error)}
    try:
        with limited(seconds):
            profile = predict(model, tokens=tokens)
        if not all(math.isfinite(site.variance) for site in profile.sites):
            raise UnsupportedError("the state of a site is not finite")
        finite = [s for s in profile.sites if s.grad_variance == s.grad_variance]
        row["sampled"] = sum(s.status == "sampled" for s in profile.sites)
        row |= {"outcome": "predicted", "sites": len(profile.sites), "with_gradient": len(finite), "reason": ""}
    except (SigpropError, Late) as error:
        row |= {"outcome": "failed", "reason": reason_of(error)}
    except Exception as error:
        row |= {"outcome": "failed", "reason": f"unclear error, {reason_of(error)}"}
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def reason_of(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__.strip('_')}: {lines[0] if lines else ''}"[:200]


def tables(rows: list[dict[str, Any]], checked: dict[str, Any]) -> dict[str, list[str]]:
    """What stands between the marks of the page; `checked`: what coverage_check stored."""
    from studies.coverage_check import tables as of_checks

    shares = []
    for kind in (*dict.fromkeys(row["kind"] for row in rows), "all"):
        count = Counter(row["outcome"] for row in rows if kind in (row["kind"], "all"))
        made = count["predicted"] + count["failed"]
        shares.append(
            (kind, count.total(), made, count["predicted"], f"{100 * count['predicted'] / max(made, 1):.1f} %")
        )
    columns = ("model", "kind", "sites", "with_gradient", "seconds")
    good = [[row[column] for column in columns] for row in rows if row["outcome"] == "predicted"]
    reasons = {
        outcome: [(row["model"], row["kind"], clean(row["reason"])) for row in rows if row["outcome"] == outcome]
        for outcome in ("failed", "not built")
    }
    _, _, made, predicted, share = shares[-1]
    found = of_checks(checked)
    answer = [f"- {predicted} of {made} classes that can be built are predicted, forward and backward ({share})."]
    return found | {
        "answer": answer + found["answer"],
        "kinds": table(("kind", "classes", "built", "predicted", "share of built"), shares),
        "not predicted": table(("model", "kind", "reason"), reasons["failed"]),
        "not built": table(("model", "kind", "reason"), reasons["not built"]),
        "predicted": table([column.replace("_", " ") for column in columns], good),
    }


def clean(text: str) -> str:
    """Fit for a cell of a table."""
    return text.replace("|", "/")


def quiet(gigabytes: int) -> None:
    """One thread for each process, and an error instead of a machine without memory."""
    import resource

    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    resource.setrlimit(resource.RLIMIT_AS, (gigabytes << 30, gigabytes << 30))


def main(
    kinds: Annotated[str, typer.Option(help="Comma-separated kinds, or all.")] = "all",
    only: Annotated[str, typer.Option(help="Parts of class names, comma-separated.")] = "",
    tokens: Annotated[int, typer.Option()] = 16,
    seconds: Annotated[int, typer.Option(help="Limit for each model.")] = 60,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    gigabytes: Annotated[int, typer.Option(help="Memory for each process.")] = 16,
    out: Annotated[
        Path | None, typer.Option(help="JSON file for the rows; docs/data/predict_coverage.json is the page's.")
    ] = None,
    page: Annotated[bool, typer.Option("--page", help="Write the tables of the page from what is stored.")] = False,
) -> None:
    """Predict every class and report the share that works."""
    if page:
        fill(PAGE, tables(read(STORED), read(CHECKS)))
        return
    wanted = [
        (kind, number, tokens, seconds)
        for kind in (KINDS if kinds == "all" else kinds.split(","))
        for number, (_, model_class) in enumerate(classes(kind))
        if any(part.lower() in model_class.__name__.lower() for part in only.split(","))
    ]
    rows: list[dict[str, Any]] = []
    order = {(kind, classes(kind)[number][1].__name__): place for place, (kind, number, *_) in enumerate(wanted)}
    for row in in_processes(attempt, wanted, workers, quiet, gigabytes):
        rows.append(row)
        print(row["kind"], row["model"], row["outcome"], row.get("seconds", ""), row["reason"], flush=True)
        if out is not None:
            write(out, sorted(rows, key=lambda row: order[row["kind"], row["model"]]))
    Console().print(Counter((row["kind"], row["outcome"]) for row in rows))


if __name__ == "__main__":
    typer.run(main)
