"""`sigprop diff`: is this initialization the same as that one, and if not, which tensor explains the difference?"""

from __future__ import annotations

from typing import Annotated

import typer

from sigprop.cli.options import MODEL_HELP, Everything, Json, Model, Quiet, Settings, show


def diff_command(
    a: Model,
    b: Annotated[str | None, typer.Argument(help=f"{MODEL_HELP} A itself with --meta, --python or --with.")] = None,
    settings: Settings = None,
    meta: Annotated[bool, typer.Option("--meta", help="Build B on meta, then to_empty and reset_parameters.")] = False,
    python: Annotated[str | None, typer.Option(help="Build B with this interpreter; it needs torch alone.")] = None,
    packages: Annotated[
        list[str] | None, typer.Option("--with", help="Build B with this version, name==version; may be repeated.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="file.py:name of a batch that both are run on.")] = None,
    signals: Annotated[bool, typer.Option(help="Also measure both and say which tensor explains it.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of A; B takes the next one.")] = 0,
    every: Everything = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare two initializations, tensor by tensor.

    Exit code 0 when they are equal, 1 when not.
    """
    from sigprop.checks.diff import diff
    from sigprop.inputs import parse_settings, read_batch

    found = diff(
        a,
        b,
        None if data is None else read_batch(data),
        meta=meta,
        python=python,
        packages=packages or [],
        settings=parse_settings(settings or []),
        signals=signals,
        seed=seed,
    )
    if json:
        show(found.to_json())
    else:
        show(found.summary())
        if every or found.swaps:
            show("", found.table(every))
        if found.sites and not found.equal:
            show("", found.site_table())
    if not found.equal:
        raise typer.Exit(1)
