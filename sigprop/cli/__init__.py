"""Command line: parsing and dispatch only."""

from sigprop.cli.app import main

__all__ = ["main"]
