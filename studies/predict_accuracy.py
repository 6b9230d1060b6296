"""Prediction against many initializations: `python -m studies.predict_accuracy --help`.

For each architecture the moments predicted from its config, without weights, beside those that
`studies.accuracy_measurements` stored: errors at the outputs of the repeated blocks (relative for variances, absolute
for token correlations) and at the hidden matrices, each with the standard error of the measurement beside it. The first
tables of the page, of the day when the rules were written, were measured by an earlier form of this study.
"""

from __future__ import annotations

import math
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from sigprop.capture import build, predict
from sigprop.results import Profile
from sigprop.structure import read_structure
from studies.accuracy_measurements import all_settings, stored_profiles
from studies.accuracy_models import CASES, Setting
from studies.stored import fill, in_processes, read, stamp, write
from studies.stored import table as markdown_table

AGAIN = Path("docs/data/predict_accuracy_again.json")
ROUNDED = 1e-5
"""Relatively, what five stored digits leave open."""
COLUMNS = ("variance", "token_correlation", "grad_variance", "grad_second_moment")
NAMES = ("variance", "correlation", "gradient", "weight gradient")
TARGETS = {
    "variance": (0.01, 0.04),
    "token_correlation": (0.02, 0.02),
    "grad_variance": (0.03, 0.10),
    "grad_second_moment": (0.05, 0.35),
}
app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def again(
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    out: Annotated[Path, typer.Option(help="JSON file; settings in it are left out.")] = AGAIN,
) -> None:
    """Compare today's predictions with what `studies.accuracy_measurements` has stored."""
    done = {Setting(**row["setting"]).label: row for row in read(out, {"results": []})["results"]}
    profiles = stored_profiles()
    wanted = [setting for setting in all_settings() if setting.label in profiles and setting.label not in done]
    for row in in_processes(_again, [(item, profiles[item.label]) for item in wanted], workers):
        done[Setting(**row["setting"]).label] = row
        print(Setting(**row["setting"]).label, round(row["predict_seconds"], 1), flush=True)
        write(out, stamp("predict_accuracy again", results=[done[label] for label in sorted(done)]))


def _again(setting: Setting, measured: Profile) -> dict[str, Any]:
    torch.set_num_threads(1)
    found = errors_of(setting, measured)
    return {"setting": setting.__dict__, **{key: value for key, value in found.items() if key not in setting.__dict__}}


@app.command()
def table(
    data: Annotated[Path, typer.Option(help="Results of `compare`.")] = Path("docs/data/predict_accuracy.json"),
    page: Annotated[Path, typer.Option(help="Page whose tables are written.")] = Path(
        "docs/evidence/predict-accuracy.md"
    ),
) -> None:
    """Write the tables of the page."""
    stored = read(data)
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in stored["results"]:
        groups.setdefault(row["first_seed"], []).append(row)
    development, fresh, more = (groups[seed] for seed in sorted(groups))
    print("development:", *(f"{name} {_kept(development, key)}" for name, key in zip(NAMES, COLUMNS, strict=True)))
    tables = {"held-out seeds": _markdown(fresh), "more initializations": _markdown(more)}
    fill(page, tables | {"then and now": _then_and_now(fresh, read(AGAIN)["results"])})


def _kept(results: list[dict[str, Any]], column: str) -> str:
    return f"{sum(_within(row, column) for row in results)} of {len(results)}"


def _markdown(results: list[dict[str, Any]]) -> list[str]:
    rows = []
    for row in results:
        name = f"{row['name']}, {row['depth']} layers, {row['init']}" + (", tied" if row["tied"] else "")
        name += f", {row['networks']} networks" if row["networks"] > 1 else ""
        rows.append([name, *(_cell(row, column) for column in COLUMNS)])
    rows.append(["**all**", *(f"{_kept(results, column)} within" for column in COLUMNS)])
    return markdown_table(("model", *NAMES), rows)


def _then_and_now(then: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[str]:
    """For every setting of both, its figures then and now."""
    before = {
        Setting(**{key: row[key] for key in now[0]["setting"]}).label: row for row in then if row["networks"] == 1
    }
    rows, worse = [], dict.fromkeys(COLUMNS, 0)
    for row in now:
        setting = Setting(**row["setting"])
        if setting.label not in before:
            continue
        cells = []
        for column in COLUMNS:
            one, two = before[setting.label]["errors"][column], row["errors"][column]
            scale, digits = (1.0, 3) if column == "token_correlation" else (100.0, 1)
            figures = [f"{scale * item[key]:.{digits}f}" for item in (one, two) for key in ("median", "worst")]
            text = "{} / {} → {} / {}".format(*figures)
            worse[column] += _is_worse(one, two)
            cells.append(f"**{text}**" if _is_worse(one, two) else text)
        rows.append([setting.label, *cells])
    rows.append(["**worse**", *(f"{n} of {len(rows)}" for n in worse.values())])
    return markdown_table(("model", *NAMES), rows)


def _is_worse(then: dict[str, Any], now: dict[str, Any]) -> bool:
    pairs = (("median", "error"), ("worst", "error_of_worst"))
    return any(now[key] - then[key] > 2.0 * math.hypot(then[error], now[error]) + ROUNDED for key, error in pairs)


def _cell(row: dict[str, Any], column: str) -> str:
    """Median / worst, with the standard errors of both; bold where over the target."""
    found, correlation = row["errors"][column], column == "token_correlation"
    scale, digits = (1.0, 3) if correlation else (100.0, 1)
    keys = ("median", "worst", "error", "error_of_worst")
    median, worst, error, last = (f"{scale * found[key]:.{digits}f}" for key in keys)
    text = f"{median} / {worst} (± {error} / {last})"
    return text if _within(row, column) else f"**{text}**"


def _within(row: dict[str, Any], column: str) -> bool:
    found, (median, worst) = row["errors"][column], TARGETS[column]
    return found["median"] <= median and found["worst"] <= worst


def errors_of(setting: Setting, measured: Profile) -> dict[str, Any]:
    """Predict one setting and reduce its comparison to median and worst errors."""
    case = CASES[setting.name](setting)
    model = build(lambda: case.make().train(setting.name == "resnet"))
    start = time.perf_counter()
    options: dict[str, Any] = {"loss": case.loss, "tokens": max(setting.tokens, 128)}
    predicted = predict(model, case.batch, **options)
    seconds = time.perf_counter() - start
    blocks = [name for group in read_structure(model, case.batch).blocks for name in group]
    return {
        **setting.__dict__,
        "seeds": len(measured.meta["seeds"]),
        "first_seed": measured.meta["seeds"][0],
        "networks": 1,
        "predict_seconds": seconds,
        "errors": {column: _errors(predicted, measured, column, blocks) for column in COLUMNS},
    }


def _errors(predicted: Profile, measured: Profile, column: str, blocks: list[str]) -> dict[str, Any]:
    """Median and worst error over blocks (or hidden matrices), with the standard error beside each."""
    if column == "grad_second_moment":
        wanted = {row.name for row in predicted.parameters if row.role in ("hidden", "expert")}
        reference = measured.parameters
    else:
        wanted, reference = set(blocks), measured.sites
    wanted = {row.name for row in reference if row.name in wanted and math.isfinite(getattr(row, column))}
    found = [item for item in predicted.compare(measured).column(column) if item.name in wanted]
    if not wanted or len(found) < len(wanted):
        raise RuntimeError(f"{column}: {len(wanted)} sites measured, {len(found)} of them predicted")
    worst = max(found, key=lambda item: abs(item.error))
    return {
        "median": statistics.median(abs(item.error) for item in found),
        "worst": abs(worst.error),
        "worst_name": worst.name,
        "error_of_worst": worst.standard_error,
        "error": statistics.median(item.standard_error for item in found),
    }


if __name__ == "__main__":
    app()
