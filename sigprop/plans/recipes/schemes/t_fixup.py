"""T-Fixup: Transformers without norms and without warmup."""

from __future__ import annotations

from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import init_all
from sigprop.plans.recipes.schemes.xavier import xavier_std
from sigprop.results import Init
from sigprop.structure import Parameter, Structure


@recipe(
    "t_fixup",
    paper="Huang et al. 2020",
    applies_to="Transformers without norms",
    effect="values, outputs, mlp times 0.67 N^{-1/4} (encoder) or (9N)^{-1/4} (decoder): trains without norm or warmup",
)
def t_fixup(structure: Structure) -> Plan:
    """Xavier; values, outputs and mlp weights times `0.67 N^{-1/4}` in an encoder, `(9N)^{-1/4}` in a decoder.

    Embeddings `N(0, 1/d)` times `(9N)^{-1/4}`. A stack whose attention is masked, or that attends elsewhere, is a
    decoder.
    """
    structure.require_transformer("t_fixup")
    structure.require_placement("t_fixup", "none")
    decodes = [_decodes(structure, stream) for stream in range(len(structure.streams))]

    def factor(stream: int) -> float:
        layers = structure.layers(stream)
        return (9.0 * layers) ** -0.25 if decodes[stream] else 0.67 * layers**-0.25

    def rule(item: Parameter, role: str, size: int) -> Init:
        junction = structure.junction_of(item)
        gained = junction is not None and role in ("value", "output", "hidden")
        gain = factor(junction.stream) if junction is not None and gained else 1.0
        return Init("normal", std=xavier_std(item, role, "part", gain))

    depth = structure.layers(len(structure.streams) - 1)
    return init_all(structure, rule, embedding=structure.width**-0.5 * (9.0 * depth) ** -0.25)


def _decodes(structure: Structure, stream: int) -> bool:
    junctions = structure.streams[stream]
    if any(junction.cross for junction in junctions):
        return True
    counts = structure.visible_keys(next(junction for junction in junctions if junction.attention))
    return bool((counts != counts[0]).any())
