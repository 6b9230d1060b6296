"""Schemes that initialize the weights of residual branches by depth, and leave the sums as they are."""

from __future__ import annotations

import math

from sigprop.errors import UnsupportedError, require
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.rows import Initializer, init_all, recipe, scale_rows, times, with_inits, with_junctions
from sigprop.plans.recipes.schemes.matrices import fixed, xavier_std
from sigprop.results import Init
from sigprop.structure import Parameter, Structure


@recipe(
    "gpt2",
    paper="Radford et al. 2019",
    applies_to="residual models; made for Pre-LN decoders",
    effect="std 0.02, branch outputs over sqrt(number of branches): the stream grows by a constant in all",
    needs="junctions",
)
def gpt2(structure: Structure, std: float = 0.02) -> Plan:
    """`std` for all, `std / sqrt(2N)` for the last weight of each of the 2N branches of a stream."""

    def rule(item: Parameter, role: str, size: int) -> Init:
        junction = structure.junction_of(item)
        if role != "output" or junction is None:
            return Init("normal", std=std)
        return Init("normal", std=std / math.sqrt(len(structure.streams[junction.stream])))

    return init_all(structure, rule, embedding=std)


@recipe(
    "megatron",
    paper="Shoeybi et al. 2019; Smith et al. 2022 (Megatron-Turing: sqrt(1/(3d)))",
    applies_to="residual models; made for Pre-LN decoders",
    effect="std sqrt(1/(3d)), branch outputs over sqrt(2N): like gpt2, with the std of the width",
    needs="junctions",
)
def megatron(structure: Structure) -> Plan:
    """`sqrt(1/(3 d))` for all, over `sqrt(number of branches)` for the last weight of each branch."""
    return gpt2(structure, math.sqrt(1.0 / (3.0 * structure.width)))


@recipe(
    "mitchell",
    paper="Groeneveld et al. 2024 (OLMo), after Eric Mitchell",
    applies_to="residual models; made for Pre-LN decoders",
    effect="std 1/sqrt(fan_in), branch outputs 1/sqrt(2 fan_in layer), cut at three standard deviations",
    needs="junctions",
)
def mitchell(structure: Structure) -> Plan:
    """`1/sqrt(fan_in)` for matrices, `1/sqrt(2 fan_in l)` for what ends a branch of layer `l`; tables `1/sqrt(d)`."""

    def rule(item: Parameter, role: str, size: int) -> Init:
        junction = structure.junction_of(item)
        layer = 2.0 * structure.layer_of(junction) if role == "output" and junction is not None else 1.0
        return Init("truncated", std=1.0 / math.sqrt(item.fan_in * layer))

    return init_all(structure, rule, embedding=1.0 / math.sqrt(structure.width), kind="truncated")


@recipe(
    "small_init",
    paper="Nguyen & Salazar 2019; Wang & Komatsuzaki 2021 (GPT-J, GPT-NeoX)",
    applies_to="Transformers",
    effect="std sqrt(2/(5d)), branch outputs 2/(N sqrt(d))",
    needs="transformer",
)
def small_init(structure: Structure) -> Plan:
    """`std = sqrt(2 / (5 d))` (Xavier of a d x 4d matrix) for all, `2 / (N sqrt(d))` for branch outputs."""
    width = structure.width
    small = math.sqrt(2.0 / (5.0 * width))

    def rule(item: Parameter, role: str, size: int) -> Init:
        junction = structure.junction_of(item)
        if role != "output" or junction is None:
            return Init("normal", std=small)
        return Init("normal", std=2.0 / (structure.layers(junction.stream) * math.sqrt(width)))

    return init_all(structure, rule, embedding=small)


@recipe(
    "ds_init",
    paper="Zhang, Titov & Sennrich 2019",
    applies_to="Transformers",
    effect="weights of layer l over sqrt(l): later branches fade like 1/l",
    needs="transformer",
)
def ds_init(structure: Structure, alpha: float = 1.0) -> Plan:
    """`W ~ U` with Xavier's variance times `alpha^2 / l` in layer l."""
    plan = init_all(structure, lambda item, role, size: Init("uniform", std=xavier_std(item, role)))
    places = {item.name: structure.junction_of(item) for item in structure if item.is_matrix}
    factors = {
        name: alpha / math.sqrt(structure.layer_of(place)) for name, place in places.items() if place is not None
    }
    return scale_rows(plan, factors, "over sqrt(layer)")


@recipe(
    "layer_norm_scaling",
    paper="Sun et al. 2025, The Curse of Depth in Large Language Models",
    applies_to="Pre-LN Transformers with gains",
    effect="norm gains of layer l start at 1/sqrt(l); matrices std 0.02",
    needs="transformer",
    norms="pre",
)
def layer_norm_scaling(structure: Structure, std: float = 0.02) -> Plan:
    """What a branch of layer `l` reads over `sqrt(l)`, as the stream grows: in the gain (and bias) of the norms that it
    starts with; the paper's fixed factor becomes the value that a trained gain starts at."""
    plan = fixed(structure, std)
    layers = {item.name: structure.junction_of(item) for item in structure if item.role == "norm gain"}
    scaled = {name: structure.layer_of(junction) for name, junction in layers.items() if junction is not None}
    if not scaled:
        raise UnsupportedError("layer_norm_scaling: the norms of this model have no gains to carry the factor")
    gains = {name: plan[name].init for name in scaled if plan[name].init.kind == "constant"}
    inits = {name: times(init, 1.0 / math.sqrt(scaled[name])) for name, init in gains.items()}
    return with_inits(plan, inits, ", over sqrt(layer)")


@recipe(
    "peri_ln",
    paper="Kim et al. 2025, Peri-LN: Revisiting Normalization Layer in the Transformer Architecture",
    applies_to="models whose branches read a norm and end in one (Gemma 2 and 3, GLM 4)",
    effect="matrices std 0.02, whose scale the last norm undoes; gains of branch ends at 1, or `gain`",
    needs="junctions",
)
def peri_ln(structure: Structure, std: float = 0.02, gain: float = 1.0) -> Plan:
    """`x + gain * norm(f(norm(x)))`: the stream's variance grows by `gain^2` a branch, linearly with depth."""
    require(std > 0 and gain > 0, "std, gain", (std, gain), "positive numbers")
    bare = [junction.name for junction in structure.junctions if not {"pre", "out"} <= junction.norms]
    if bare:
        raise UnsupportedError(
            f"peri_ln is for models whose branches start and end in a norm: {bare[0]} does not; a plan adds no modules"
        )
    plan = fixed(structure, std)
    shifts = {name: junction.shift for junction in structure.junctions for name in junction.weights}
    inits = {name: Init("constant", value=gain - shift) for name, shift in shifts.items()}
    return with_inits(plan, inits, f", ends a branch with gain {gain:g}")


@recipe(
    "fixup",
    paper="Zhang, Dauphin & Ma 2019",
    applies_to="residual networks without norms",
    effect="branches and readout end in zeros, other weights Kaiming times L^{-1/(2m-2)}: the identity at the start",
    needs="junctions",
    norms="none",
)
def fixup(structure: Structure, multiplier: bool = False) -> Plan:
    """With L branches of m weights: the last 0, the others Kaiming times `L^{-1/(2m-2)}`; the readout 0.

    `multiplier=True` adds the paper's learnable factor (1 at the start) to every branch and needs surgery; its
    scalar biases are not added.
    """

    def rule(item: Parameter, role: str, size: int) -> Init:
        junction = structure.junction_of(item)
        if role in ("output", "readout"):
            return Init("constant", value=0.0)
        std = math.sqrt(2.0 / item.fan_in)
        if junction is None:
            return Init("normal", std=std)
        inside = [structure.parameters[name] for name in junction.inside]
        weights = sum(other.is_matrix and other.role != "query_key" for other in inside)
        branches = len(structure.streams[junction.stream])
        return Init("normal", std=std * branches ** (-1.0 / (2 * weights - 2)) if weights > 1 else std)

    plan = init_all(structure, rule)
    if not multiplier:
        return plan
    return with_junctions(plan, structure, lambda junction: (1.0, 1.0), "learned from 1", learnable="scalar")


@recipe(
    "t_fixup",
    paper="Huang et al. 2020",
    applies_to="Transformers without norms",
    effect="values, outputs, mlp times 0.67 N^{-1/4} (encoder) or (9N)^{-1/4} (decoder): trains without norm or warmup",
    needs="transformer",
    norms="none",
)
def t_fixup(structure: Structure) -> Plan:
    """Xavier; values, outputs and mlp weights times `0.67 N^{-1/4}` in an encoder, `(9N)^{-1/4}` in a decoder.

    Embeddings `N(0, 1/d)` times `(9N)^{-1/4}`. A stack whose attention is masked, or that attends elsewhere, is a
    decoder.
    """
    layers = [structure.layers(stream) for stream in range(len(structure.streams))]
    factors = [
        (9.0 * count) ** -0.25 if _decodes(structure, stream) else 0.67 * count**-0.25
        for stream, count in enumerate(layers)
    ]
    rule = xavier_in_branches(structure, factors)
    return init_all(structure, rule, embedding=structure.width**-0.5 * (9.0 * layers[-1]) ** -0.25)


def xavier_in_branches(structure: Structure, gains: list[float]) -> Initializer:
    """Xavier per part; values, outputs and mlp weights of a branch times the gain of its stream."""

    def rule(item: Parameter, role: str, size: int) -> Init:
        junction = structure.junction_of(item)
        gained = junction is not None and role in ("value", "output", "hidden")
        gain = gains[junction.stream] if junction is not None and gained else 1.0
        return Init("normal", std=xavier_std(item, role, "part", gain))

    return rule


def _decodes(structure: Structure, stream: int) -> bool:
    junctions = structure.streams[stream]
    if any(junction.cross for junction in junctions):
        return True
    counts = structure.visible_keys(next(junction for junction in junctions if junction.attention))
    return bool((counts != counts[0]).any())
