"""`sigprop recipes`: every recipe with its paper, where it applies and what it does."""

from __future__ import annotations

import json as json_module

from sigprop.cli.console import show
from sigprop.cli.options import Json
from sigprop.grid import Grid

KEYS = ("name", "paper", "applies_to", "effect", "data")


def recipes_command(json: Json = False) -> None:
    """List the recipes that `sigprop plan` knows."""
    from sigprop.plans.recipes import RECIPES

    found = [{key: getattr(item, key) for key in KEYS} for item in RECIPES.values()]
    if json:
        show(json_module.dumps(found, indent=1))
        return
    rows = [[str(item[key]) for key in KEYS[:4]] for item in found]
    show(Grid(["name", "paper", "applies to", "effect"], rows, title="recipes", wrapped=(1, 2, 3)))
