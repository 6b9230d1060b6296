"""DeepNorm: a larger skip and smaller values, for Post-LN Transformers of a thousand layers."""

from __future__ import annotations

from sigprop.errors import UnsupportedError
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.registry import recipe
from sigprop.plans.recipes.rows import init_all, with_junctions
from sigprop.plans.recipes.schemes.xavier import xavier_std
from sigprop.results import Init
from sigprop.structure import Junction, Parameter, Structure


def deepnorm_constants(encoder: int | None, decoder: int | None) -> dict[str, tuple[float, float]]:
    """`(alpha, beta)` of encoder and decoder with that many layers (DeepNet, Table of Fig. 2).

    One stack of N layers: `alpha = (2N)^{1/4}`, `beta = (8N)^{-1/4}`. Encoder of N with decoder of M: encoder
    `0.81 (N^4 M)^{1/16}`, `0.87 (N^4 M)^{-1/16}`; decoder `(3M)^{1/4}`, `(12M)^{-1/4}`.
    """
    if encoder is not None and decoder is not None:
        size = (encoder**4 * decoder) ** (1 / 16)
        return {"encoder": (0.81 * size, 0.87 / size), "decoder": ((3 * decoder) ** 0.25, (12 * decoder) ** -0.25)}
    name, layers = ("encoder", encoder) if encoder is not None else ("decoder", decoder)
    if layers is None:
        raise UnsupportedError("deepnorm needs an encoder or a decoder")
    return {name: ((2 * layers) ** 0.25, (8 * layers) ** -0.25)}


@recipe(
    "deepnorm",
    paper="Wang et al. 2022 (DeepNet)",
    applies_to="Post-LN Transformers: encoder, decoder, encoder-decoder",
    effect="skip (2N)^{1/4}, values, outputs and mlp Xavier times (8N)^{-1/4}: updates bounded at any depth",
)
def deepnorm(structure: Structure) -> Plan:
    """`norm(alpha x + f(x))`; Xavier gain `beta` for value, output and mlp weights, 1 for query and key."""
    structure.require_transformer("deepnorm")
    structure.require_placement("deepnorm", "post")
    constants = _by_stream(structure)

    def rule(item: Parameter, role: str, size: int) -> Init:
        junction = structure.junction_of(item)
        gained = junction is not None and role in ("value", "output", "hidden")
        gain = constants[junction.stream][1] if junction is not None and gained else 1.0
        return Init("normal", std=xavier_std(item, role, "part", gain))

    def scales(junction: Junction) -> tuple[float, float]:
        return constants[junction.stream][0], 1.0

    return with_junctions(init_all(structure, rule), structure, scales, "alpha x + f(x)")


def _by_stream(structure: Structure) -> list[tuple[float, float]]:
    crossed = [any(junction.cross for junction in stream) for stream in structure.streams]
    if len(crossed) == 2 and crossed == [False, True]:
        found = deepnorm_constants(structure.layers(0), structure.layers(1))
        return [found["encoder"], found["decoder"]]
    if len(crossed) == 1:
        return [deepnorm_constants(structure.layers(0), None)["encoder"]]
    raise UnsupportedError(f"deepnorm is for one stack or an encoder-decoder: this model has {len(crossed)} streams")
