"""`sigprop watch`: what a recorded run says, judged again from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sigprop.cli.options import Json, show, writable


def watch_command(
    run: Annotated[Path, typer.Argument(help="The folder that `sp.Watch(model, folder=...)` writes to.")],
    html: Annotated[Path | None, typer.Option(callback=writable, help="Write the run's page to this file.")] = None,
    json: Json = False,
) -> None:
    """Judge a recorded run, finished or not.

    Exit code 1 when something was found.
    """
    from sigprop.monitoring import recorded_run
    from sigprop.monitoring.reporting import write_page

    report, history = recorded_run(run)
    show(report.to_json() if json else str(report))
    if html is not None:
        write_page(report, history, html)
    if report.findings:
        raise typer.Exit(1)
