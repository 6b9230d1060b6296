"""Schemes that scale residual sums: `skip * x + branch * f(x)`, fixed by depth or learned."""

from __future__ import annotations

import math
from dataclasses import replace

from sigprop.errors import UnsupportedError, require
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.rows import init_all, recipe, scale_row, with_junctions
from sigprop.plans.recipes.schemes.branches import xavier_in_branches
from sigprop.plans.recipes.schemes.matrices import kaiming, xavier, xavier_std
from sigprop.plans.rows import JunctionPlan, ParameterPlan
from sigprop.results import Init
from sigprop.results.parameters import TABLES
from sigprop.structure import Junction, Parameter, Structure


@recipe(
    "depth_scaling",
    paper="dslm 4.4, 5.6 and App. L (k and alpha of all prior work)",
    applies_to="any model with residual branches",
    effect="branches times sqrt(k/N^alpha), skip sqrt(1 - that) or 1: gradient growth exp(+-k N^{1-alpha})",
    needs="junctions",
)
def depth_scaling(structure: Structure, k: float = 2.0, alpha: float = 1.0, skip: str = "unit") -> Plan:
    """`l x + b f(x)`, `b^2 = k / N^alpha`, `l^2 = 1 - b^2` (`skip="unit"`) or 1 (`skip="one"`), on Xavier."""
    require(k > 0, "k", k, "a positive number")
    require(skip in ("unit", "one"), "skip", skip, "unit (1 - b^2) or one")

    def scales(junction: Junction) -> tuple[float, float]:
        squared = k / structure.layers(junction.stream) ** alpha
        if skip == "unit":
            require(squared < 1, "k / N^alpha", f"{squared:.3g}", "less than 1 with a unit skip")
        return (math.sqrt(1.0 - squared) if skip == "unit" else 1.0), math.sqrt(squared)

    return with_junctions(xavier(structure), structure, scales, f"b^2 = {k:g}/N^{alpha:g}")


@recipe(
    "noci",
    paper="Noci et al. 2022",
    applies_to="Transformers",
    effect="branches times 1/sqrt(N), inverse temperature on the scores: rank collapse slowed",
    needs="transformer",
)
def noci(structure: Structure, inverse_temperature: float = 1.0) -> Plan:
    """`x + f(x) / sqrt(N)` on Xavier; query and key times the root of the inverse temperature."""
    require(inverse_temperature > 0, "inverse_temperature", inverse_temperature, "a positive number")

    def rule(item: Parameter, role: str, size: int) -> Init:
        gain = math.sqrt(inverse_temperature) if role == "query_key" else 1.0
        return Init("normal", std=xavier_std(item, role, gain=gain))

    plan = init_all(structure, rule)
    return with_junctions(plan, structure, lambda j: (1.0, structure.layers(j.stream) ** -0.5), "branch over sqrt(N)")


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
    needs="transformer",
    norms="post",
)
def deepnorm(structure: Structure) -> Plan:
    """`norm(alpha x + f(x))`; Xavier gain `beta` for value, output and mlp weights, 1 for query and key."""
    crossed = [any(junction.cross for junction in stream) for stream in structure.streams]
    if len(crossed) > 2 or (len(crossed) == 2 and crossed != [False, True]):
        raise UnsupportedError(
            f"deepnorm is for one stack or an encoder-decoder: this model has {len(crossed)} streams"
        )
    found = deepnorm_constants(structure.layers(0), structure.layers(1) if len(crossed) == 2 else None)
    skips, gains = (list(column) for column in zip(*found.values(), strict=True))
    plan = init_all(structure, xavier_in_branches(structure, gains))
    return with_junctions(plan, structure, lambda junction: (skips[junction.stream], 1.0), "alpha x + f(x)")


@recipe(
    "rezero",
    paper="Bachlechner et al. 2021",
    applies_to="any model with residual branches; needs surgery=True",
    effect="x + a f(x), a learned from 0: the identity at the start",
    needs="junctions",
)
def rezero(structure: Structure) -> Plan:
    """`x + a f(x)`, one learnable `a` per branch, 0 at the start; Xavier weights."""
    return with_junctions(xavier(structure), structure, lambda j: (1.0, 0.0), "learned from 0", learnable="scalar")


@recipe(
    "skipinit",
    paper="De & Smith 2020",
    applies_to="residual networks without norms; needs surgery=True",
    effect="x + a f(x), a learned from 0 (or 1/sqrt(N)), Kaiming weights: trains without normalization",
    needs="junctions",
    norms="none",
)
def skipinit(structure: Structure, start: float | None = 0.0) -> Plan:
    """`x + a f(x)` on Kaiming weights, `a` learnable from `start` (None: `1/sqrt(number of branches)`)."""
    value = len(structure.junctions) ** -0.5 if start is None else start
    plan, told = kaiming(structure), f"learned from {value:g}"
    return with_junctions(plan, structure, lambda junction: (1.0, value), told, learnable="scalar")


def layer_scale_start(layers: int) -> float:
    """0.1 up to 18 layers, 1e-5 up to 24, 1e-6 beyond."""
    return 0.1 if layers <= 18 else 1e-5 if layers <= 24 else 1e-6


@recipe(
    "layer_scale",
    paper="Touvron et al. 2021 (CaiT)",
    applies_to="Pre-LN Transformers; needs surgery=True",
    effect="x + diag(g) f(x), g learned from 0.1, 1e-5 or 1e-6 by depth: near the identity at the start",
    needs="transformer",
    norms="pre",
)
def layer_scale(structure: Structure, start: float | None = None) -> Plan:
    """`x + diag(g) f(x)`, `g` learnable, one per channel, from a start that falls with depth; Xavier weights."""

    def scales(junction: Junction) -> tuple[float, float]:
        return 1.0, layer_scale_start(structure.layers(junction.stream)) if start is None else start

    return with_junctions(xavier(structure), structure, scales, "learned per channel", learnable="channel")


@recipe(
    "u_mup",
    paper="Blake et al. 2024, u-muP, table 2",
    applies_to="residual models, Adam and AdamW, without a width rule (it is one)",
    effect="std 1/sqrt(fan_in), readout 1/fan_in, branches over sqrt(N), with u-muP's learning rates",
    needs="junctions",
)
def u_mup(structure: Structure) -> Plan:
    r"""Unit-scaled muP as weights and rates alone. The paper initializes every weight with variance 1, multiplies the
    forward pass by `A` and takes the Adam rate `C`:

                      A                   C
        input         1                   1 / sqrt(fan_out)
        hidden        1 / sqrt(fan_in)    1 / sqrt(fan_in)
        output        1 / fan_in          1
        in a branch   1 / sqrt(N)         1 / sqrt(N)         on top, N branches

    A factor that is folded into its weight multiplies its size and its rate, so that hidden matrices have std and rate
    `1 / sqrt(fan_in)` and `1 / fan_in`. `A` of a branch is its scale at the junction.
    """
    deep = [len(stream) ** -0.5 for stream in structure.streams]

    def rule(item: Parameter, role: str, size: int) -> Init:
        power = 1.0 if role == "readout" else 0.0 if role == "input" else 0.5
        return Init("normal", std=item.fan_in**-power)

    def rated(row: ParameterPlan) -> ParameterPlan:
        item = structure.parameters[row.name]
        junction = structure.junction_of(item)
        rate = 1.0 / item.fan_in if item.is_matrix else 1.0
        rate = 1.0 / math.sqrt(structure.width) if row.role in (*TABLES, "input") else rate
        rate *= deep[junction.stream] if junction is not None and len(row.shape) > 1 else 1.0
        return replace(row, lr=rate, weight_decay=1.0 / rate)

    plan = init_all(structure, rule, embedding=1.0)
    plan = replace(plan, parameters=[rated(row) for row in plan])
    return with_junctions(plan, structure, lambda j: (1.0, deep[j.stream]), "u-muP: branches over sqrt(N)")


@recipe(
    "value_skipinit",
    paper="He et al. 2023",
    applies_to="Transformers with a value matrix as wide as the attention output; needs surgery=True",
    effect="attention (I + b A) V, b learned from 0: no mixing of tokens, so no rank collapse, at the start",
    needs="transformer",
)
def value_skipinit(structure: Structure) -> Plan:
    """`(a I + b A(x)) V` in every self-attention, `a = 1` fixed and `b` learnable from 0; Xavier weights."""
    plan = xavier(structure)
    rows = []
    for junction in structure.junctions:
        if not junction.attention or junction.cross:
            continue
        if not junction.weights:
            raise UnsupportedError(f"value_skipinit: the attention at {junction.exit} does not end in a matrix")
        last = structure.parameters[junction.weights[0]]
        values = [structure.parameters[name] for name in junction.inside]
        value = next((item for item in values if item.role == "value" and not item.parts), None)
        if value is None or value.fan_out != last.fan_in:
            raise UnsupportedError(
                f"value_skipinit: {last.name} needs a value matrix of its own, of width {last.fan_in}"
            )
        rows.append(
            JunctionPlan(
                last.name.rpartition(".")[0],
                1.0,
                0.0,
                folded=False,
                entry=value.name.rpartition(".")[0],
                level=0.0,
                learnable=True,
                place="input",
                why="V + b A V, b learned from 0",
            )
        )
    return replace(plan, parameters=plan.parameters + [scale_row(row) for row in rows], junctions=rows)
