"""Are covered models predicted rightly: `python -m studies.coverage_check --help`.

Every class of the coverage table is predicted and measured over a few initializations of the same config. Judged are
the outputs of blocks, that is modules with a number for a name and modules inside: variance and gradient variance. A
block is right when it misses by no more than a tenth (a fifth for gradients) and three standard errors.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from sigprop.errors import SigpropError
from sigprop.measure import measure
from sigprop.results import Profile
from sigprop.sources import made_up_batch, zipf_ids
from sigprop.trace import build, predict
from studies.coverage_configs import KINDS, VOCABULARY, checkable, classes
from studies.predict_coverage import Late, limited, quiet, reason_of

LIMITS = {"variance": 0.1, "grad_variance": 0.2}
TITLES = {"variance": "variance", "grad_variance": "gradient variance"}
ERRORS, SMALLEST, TOKENS = 3.0, 1e-25, 16


def attempt(kind: str, number: int, seeds: int, seconds: int) -> dict[str, Any]:
    """One class: the error of every block, or why there is none."""
    import transformers

    config_class, model_class = classes(kind)[number]
    row: dict[str, Any] = {
        "model": model_class.__name__,
        "kind": kind,
        "seeds": seeds,
        "release": transformers.__version__,
    }
    start = time.perf_counter()
    try:
        with limited(seconds):
            make, row["parameters"] = checkable(
                model_class.config_class or config_class, model_class, kind == "causal LM"
            )
            predicted, measured = _both(make, seeds)
        row |= _compared(predicted, measured, _blocks(build(make)))
    except (Exception, Late) as error:
        row["reason"] = reason_of(error)
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def _both(make: Callable[[], Any], seeds: int) -> tuple[Profile, Profile]:
    """Prediction and measurement on one batch, without labels where the model's own loss does not take them."""
    model = build(make)
    batch = batch_of(model)
    try:
        predicted = predict(model, batch, tokens=1024)
    except SigpropError:
        if batch.pop("labels", None) is None:
            raise
        predicted = predict(model, batch, tokens=1024)
    return predicted, measure(None, batch, build=make, seeds=seeds)


def batch_of(model: Any) -> Any:
    """The made-up batch, with words for labels that have nothing to do with the input."""
    batch = made_up_batch(model, TOKENS)
    if isinstance(batch.get("labels"), torch.Tensor) and batch["labels"].dim() == 2:
        words = min(VOCABULARY, int(model.config.get_text_config().vocab_size))
        batch["labels"] = zipf_ids(words, tuple(batch["labels"].shape), seed=2)
    return batch


def _blocks(model: torch.nn.Module) -> list[str]:
    """Modules with a number for a name that hold modules and parameters."""
    return [
        name
        for name, module in model.named_modules()
        if name.rpartition(".")[2].isdigit() and any(module.children()) and any(True for _ in module.parameters())
    ]


def _compared(predicted: Profile, measured: Profile, blocks: list[str]) -> dict[str, Any]:
    rows = {site.name: site for site in predicted.sites}
    found: dict[str, Any] = {"status": _worst(predicted)}
    for column in LIMITS:
        errors = []
        for site in measured.sites:
            reference = getattr(site, column)
            if site.name not in blocks or site.name not in rows or not abs(reference) > SMALLEST:
                continue
            value, mine = getattr(rows[site.name], column), rows[site.name]
            spread = site.errors.get(column, math.nan) / reference
            error = value / reference - 1.0 if math.isfinite(value) else None
            errors.append([site.name, error, spread, mine.status, mine.reason])
        found[column] = errors
    return found


def _worst(predicted: Profile) -> str:
    order = ["exact", "asymptotic", "quadrature", "sampled", "fitted", "assumed"]
    return max((site.status for site in predicted.sites), key=order.index)


# -- judging


def excess(block: list[Any]) -> float:
    """How far a block misses beyond three standard errors; infinite where nothing was predicted."""
    _, error, spread, *_ = block
    return math.inf if error is None else max(0.0, abs(error) - ERRORS * spread)


def verdict(row: dict[str, Any], column: str) -> str:
    """`right` where the median block is within the limit, `wrong` where it is not, `` where there is no block."""
    found = [excess(block) for block in row.get(column, [])]
    return "" if not found else "right" if statistics.median(found) <= LIMITS[column] else "wrong"


def every(row: dict[str, Any], column: str) -> bool:
    return all(excess(block) <= LIMITS[column] for block in row.get(column, []))


def markdown(rows: list[dict[str, Any]]) -> list[str]:
    """Sections of the coverage page: shares, and the classes that are off."""
    releases = Counter(row["release"] for row in rows)
    lines = [
        "",
        "## Correctness",
        "",
        f"Every class against {rows[0]['seeds']} initializations (`python -m studies.coverage_check`):",
        f"the same layers, at most 1,024 words, 100 labels, {TOKENS} tokens, targets at random; models of more than 40",
        "million parameters are made narrow (four heads of their own width, all widths divided alike, at least 64). A",
        "block's output is right when its variance is within 10 % and its gradient variance within 20 %, plus three",
        "standard errors. A class is right when its median block is; the last columns ask it of every block.",
        f"Releases of transformers: {', '.join(f'{name} ({n} classes)' for name, n in releases.items())}.",
        "",
        "| quantity | classes | median block right | share | every block right | share |",
        "|---|---|---|---|---|---|",
    ]
    for column, title in TITLES.items():
        judged = [row for row in rows if verdict(row, column)]
        right = sum(verdict(row, column) == "right" for row in judged)
        whole = sum(every(row, column) for row in judged)
        n = max(len(judged), 1)
        lines.append(
            f"| {title} | {len(judged)} | {right} | {100 * right / n:.1f} % | {whole} | {100 * whole / n:.1f} % |"
        )
    lines += [
        "",
        "Classes with a block that is off; error of the worst block, its standard error, and what its row says:",
        "",
        "| model | quantity | blocks off | median error | worst | status |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        for column in LIMITS:
            lines += _off(row, column)
    missing = [row for row in rows if "reason" in row or not any(verdict(row, column) for column in LIMITS)]
    lines += ["", "Not checked:", "", "| model | kind | reason |", "|---|---|---|"]
    lines += [
        f"| {row['model']} | {row['kind']} | {row.get('reason', 'no block').replace('|', '/')} |" for row in missing
    ]
    return lines


def _off(row: dict[str, Any], column: str) -> list[str]:
    blocks = row.get(column, [])
    off = [block for block in blocks if excess(block) > LIMITS[column]]
    if not off:
        return []
    name, error, spread, status, why = max(off, key=excess)
    median = statistics.median(abs(block[1]) if block[1] is not None else math.inf for block in blocks)
    size = "none" if error is None else f"{100 * error:+.0f} % (s.e. {100 * spread:.0f} %)"
    counts = f"{len(off)} of {len(blocks)} | {100 * median:.0f} %"
    return [f"| {row['model']} | {TITLES[column]} | {counts} | `{name}` {size} | {status}: {why} |"]


def main(
    only: Annotated[str, typer.Option(help="Class names, comma-separated; all by default.")] = "",
    seeds: Annotated[int, typer.Option(help="Initializations measured.")] = 8,
    seconds: Annotated[int, typer.Option(help="Limit for each class.")] = 120,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    gigabytes: Annotated[int, typer.Option(help="Memory for each process.")] = 16,
    out: Annotated[Path, typer.Option(help="JSON file; classes named again replace those in it.")] = Path(
        "docs/data/coverage_check.json"
    ),
) -> None:
    """Compare predictions and measurements of every class."""
    chosen = [name for name in only.split(",") if name]
    wanted = [
        (kind, number, seeds, seconds)
        for kind in KINDS
        for number, (_, model_class) in enumerate(classes(kind))
        if not chosen or model_class.__name__ in chosen
    ]
    places = [(kind, model_class.__name__) for kind in KINDS for _, model_class in classes(kind)]
    rows = {(row["kind"], row["model"]): row for row in (json.loads(out.read_text()) if out.exists() else [])}
    out.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=quiet, initargs=(gigabytes,)) as pool:
        for job in as_completed([pool.submit(attempt, *item) for item in wanted]):
            row = job.result()
            rows[row["kind"], row["model"]] = row
            verdicts = [f"{column} {verdict(row, column) or '-'}" for column in LIMITS]
            print(row["model"], row["seconds"], *verdicts, row.get("reason", ""), flush=True)
            kept = [rows[place] for place in dict.fromkeys(places) if place in rows]
            out.write_text(json.dumps(kept, indent=1) + "\n")
    print("\n".join(markdown(list(rows.values()))))


if __name__ == "__main__":
    typer.run(main)
