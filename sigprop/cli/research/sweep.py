"""`sigprop research sweep`: a grid of trainings from a TOML file, and the best rates that were found."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from sigprop.cli.options import Figure, Json, Quiet, progress, show
from sigprop.errors import InputError
from sigprop.grid import Grid

sweep_app = typer.Typer(no_args_is_help=True, help="Grids of trainings that survive being killed.")


@sweep_app.command("run")
def run_command(
    sheet: Annotated[Path, typer.Argument(help="A TOML file: [model], [data], [plan], [train] and [grid].")],
    folder: Annotated[Path, typer.Argument(help="Where the results lie; what is there already is not run again.")],
    workers: Annotated[int, typer.Option(min=1, help="Local processes.")] = 1,
    ray: Annotated[bool, typer.Option("--ray", help="Run on the Ray cluster that is already started.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run every trial that has no result yet. Exit code 1 when some could not be run, 2 when none could."""
    from sigprop.research.lab.sweep import ResultFolder, read_spec, run_locally, run_on_ray

    trials = read_spec(sheet).trials()
    with progress("trials", len(trials), quiet) as done:
        run = run_on_ray if ray else partial(run_locally, workers=workers)
        left = run(trials, folder, progress=done)
    reasons = Counter(ResultFolder(folder).reason(trial) or "its process ended each time" for trial in left)
    if len(left) == len(trials):
        raise InputError(f"no trial could be run: {reasons.most_common(1)[0][0]}")
    show(f"{len(trials) - len(left)} of {len(trials)} trials have results in {folder}")
    if left:
        for reason, count in reasons.most_common(3):
            show(f"no result, {count} of {len(trials)}: {reason}")
        raise typer.Exit(1)


@sweep_app.command("show")
def show_command(
    folder: Annotated[Path, typer.Argument(help="A folder with results.")],
    sql: Annotated[str | None, typer.Option(help="A question to the table `trials` instead.")] = None,
    figure: Figure = None,
    json: Json = False,
) -> None:
    """The best learning rate of every cell, with the loss over seeds and its spread.

    The figure has loss against rate, and, where widths or depths differ, the best rate against them.
    """
    from sigprop.research.lab.sweep import best_rates, query
    from sigprop.research.lab.sweep.store import differing, rate_figure

    if sql is not None:
        rows = query(folder, sql)
        show(rows if json else _grid(rows))
        return
    best = best_rates(folder)
    if not best:
        raise InputError(f"{folder} has no results: needs the folder that `sigprop research sweep run` was given")
    if figure is not None:
        rate_figure(folder, figure)
    varied = differing([item.cell for item in best])
    rows = [
        {key: item.cell.get(key) for key in varied}
        | {
            "best rate": f"{item.rate:.4g}" + (" (at the edge)" if item.at_edge else ""),
            "of seeds": f"{item.low:.4g}" + (f" to {item.high:.4g}" if item.high > item.low else ""),
            "loss": f"{item.loss:.4f}",
            "spread": f"{item.spread:.4f}" if item.seeds > 1 else "-",
            "seeds": item.seeds,
        }
        for item in best
    ]
    show(rows if json else _grid(rows))


def _grid(rows: list[dict[str, Any]]) -> Grid:
    headings = list(rows[0]) if rows else ["no results"]
    return Grid(headings, [[str(row.get(key)) for key in headings] for row in rows])
