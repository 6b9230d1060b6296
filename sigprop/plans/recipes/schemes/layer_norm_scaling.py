"""LayerNorm Scaling: what a Pre-LN branch of layer `l` reads is divided by `sqrt(l)`, as the stream grows."""

from __future__ import annotations

import math

from sigprop.errors import UnsupportedError
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import times, with_inits
from sigprop.plans.recipes.schemes.fixed import fixed
from sigprop.structure import Structure


@recipe(
    "layer_norm_scaling",
    paper="Sun et al. 2025, The Curse of Depth in Large Language Models",
    applies_to="Pre-LN Transformers with gains",
    effect="norm gains of layer l start at 1/sqrt(l); matrices std 0.02",
)
def layer_norm_scaling(structure: Structure, std: float = 0.02) -> Plan:
    """`1/sqrt(l)` in the gain (and bias) of the norms that branches of layer `l` start with; the paper's fixed factor
    becomes the value that a trained gain starts at."""
    structure.require_transformer("layer_norm_scaling")
    structure.require_placement("layer_norm_scaling", "pre")

    plan = fixed(structure, std)
    layers = {item.name: structure.junction_of(item) for item in structure if item.role == "norm gain"}
    scaled = {name: structure.layer_of(junction) for name, junction in layers.items() if junction is not None}
    if not scaled:
        raise UnsupportedError("layer_norm_scaling: the norms of this model have no gains to carry the factor")
    gains = {name: plan[name].init for name in scaled if plan[name].init.kind == "constant"}
    inits = {name: times(init, 1.0 / math.sqrt(scaled[name])) for name, init in gains.items()}
    return with_inits(plan, inits, ", over sqrt(layer)")
