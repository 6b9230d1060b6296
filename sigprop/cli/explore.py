"""`sigprop explore`: settings changed on a page, with the prediction answering at once."""

from __future__ import annotations

from typing import Annotated

import typer

from sigprop.cli.options import MODEL_HELP, Settings, show


def explore_command(
    model: Annotated[
        str | None, typer.Argument(help=f"Your own model beside the reference networks. {MODEL_HELP}")
    ] = None,
    settings: Settings = None,
    port: Annotated[int, typer.Option(help="Port of loopback; 0 takes any that is free.")] = 8765,
    browser: Annotated[bool, typer.Option("--browser", help="Open the page in the browser.")] = False,
) -> None:
    """Change settings on a page and see the prediction.

    Serves the page on this machine alone.
    """
    import webbrowser

    from sigprop.inputs import parse_settings
    from sigprop.research.explorer import Explorer
    from sigprop.research.explorer.own import OwnModel, register
    from sigprop.research.explorer.page import answer

    if model is not None:
        register(OwnModel(model, parse_settings(settings or [])))
    with Explorer(port) as server:
        answer({})
        show(f"sigprop explore: {server.address} (this machine only; Ctrl-C ends it)")
        if browser:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            show("", "ended")
