"""A small Transformer, its batch and what a recipe says of it, for all tests of recipes."""

import torch

from sigprop.models import build
from sigprop.plans.recipes import RECIPES
from sigprop.structure import read_structure

WIDTH, DEPTH, HEADS = 32, 4, 4
_STRUCTURES = {}


def identity(*names):
    """Marks the test that holds recipes to their papers; `test_registry` looks for the marks."""

    def mark(function):
        function.recipes = names
        return function

    return mark


def model_of(placement="pre", **settings):
    settings = {"kind": "encoder", "activation": "relu", "depth": DEPTH, "width": WIDTH, "heads": HEADS} | settings
    return build("transformer", norm_placement=placement, context=32, vocabulary=64, **settings)


def ids(tokens=24):
    return torch.randint(64, (1, tokens), generator=torch.Generator().manual_seed(3))


def structure_of(placement="pre"):
    """Examined once."""
    if placement not in _STRUCTURES:
        _STRUCTURES[placement] = read_structure(model_of(placement), ids())
    return _STRUCTURES[placement]


def raw(name, placement="pre", **options):
    """What the recipe itself returns, before folding."""
    return RECIPES[name](structure_of(placement), **options)


def stds(made):
    return {row.name: row.init.std for row in made}


def drawn(made, model, seed=0):
    return made.apply_(model, torch.Generator().manual_seed(seed))
