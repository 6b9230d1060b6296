"""LayerScale: a small learnable factor for every channel of every branch."""

from __future__ import annotations

from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import with_junctions
from sigprop.plans.recipes.schemes.xavier import xavier
from sigprop.structure import Structure


def layer_scale_start(layers: int) -> float:
    """0.1 up to 18 layers, 1e-5 up to 24, 1e-6 beyond."""
    return 0.1 if layers <= 18 else 1e-5 if layers <= 24 else 1e-6


@recipe(
    "layer_scale",
    paper="Touvron et al. 2021 (CaiT)",
    applies_to="Pre-LN Transformers; needs surgery=True",
    effect="x + diag(g) f(x), g learned from 0.1, 1e-5 or 1e-6 by depth: near the identity at the start",
)
def layer_scale(structure: Structure, start: float | None = None) -> Plan:
    """`x + diag(g) f(x)`, `g` learnable, one per channel, from a start that falls with depth; Xavier weights."""
    structure.require_transformer("layer_scale")
    structure.require_placement("layer_scale", "pre")
    plan = xavier(structure)

    def first(stream: int) -> float:
        return layer_scale_start(structure.layers(stream)) if start is None else start

    return with_junctions(plan, structure, lambda j: (1.0, first(j.stream)), "learned per channel", learnable="channel")
