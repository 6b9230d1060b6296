"""Command line: parsing and dispatch only.

One file per command. Commands import what they run when they run, so that help and completion need no torch.
"""

from sigprop.cli.app import main

__all__ = ["main"]
