"""How the parameters of a model are initialized, read from its constructor or from its numbers.

| file | what it holds |
|---|---|
| `distribution` | the distribution of a parameter's entries |
| `recorder` | a model built without its weights, its constructor followed on distributions |
| `independence` | whether real numbers look like independent draws; the real constructor called twice |
| `model_distributions` | models without weights, with the distribution of each parameter |
| `redraw` | a real model with fresh weights, and what one initialization leaves open |
"""

from sigprop.distributions.distribution import (
    CENTRED,
    COPIED,
    INDEPENDENT,
    ORTHOGONAL,
    STRUCTURED,
    UNKNOWN,
    Distribution,
)
from sigprop.distributions.independence import kind_of_derived
from sigprop.distributions.model_distributions import (
    build,
    distribution,
    factory_of_model,
    law_of,
    read_parameters,
    set_distribution,
    skeleton_of,
    zero_rows,
)
from sigprop.distributions.redraw import Draws

__all__ = [
    "CENTRED",
    "COPIED",
    "INDEPENDENT",
    "ORTHOGONAL",
    "STRUCTURED",
    "UNKNOWN",
    "Distribution",
    "Draws",
    "build",
    "distribution",
    "factory_of_model",
    "kind_of_derived",
    "law_of",
    "read_parameters",
    "set_distribution",
    "skeleton_of",
    "zero_rows",
]
