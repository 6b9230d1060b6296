r"""DeepScale (dslm): unit variance out of every branch, skip and branch scaled to keep it.

    b^2 = 2/N, l^2 = 1 - b^2          (k/N^alpha in general: `k`, `alpha`, App. L)
    embeddings  Var = (1-p) / kinds                     query, key  Var = 1/d
    mlp         Var = (1/d) sqrt(2(1-p)/m)              hidden width m d, ReLU: (1/d) sqrt((1-p)/2) at m = 4
    value, out  Var = (1/d) sqrt((1-p)/v_n)             v_n: variance of attended values of unit variance

with the correlation of every pair of tokens tracked layer by layer, r its average and s its average over the visible
keys with weights `e^r` (equal tokens are attended together),

    v = average over queries of s + (1-s) Y(n, 1-r)     n keys visible, Y the overlap of softmax weights; v -> r
    r <- l^2 r + b^2 (1-p) c / v                        c = average over pairs of r + (1-r) / max(n, n')
    r <- l^2 r + b^2 (1-p) f(r)                         f: correlation (about zero) after the activation

The paper takes `v = c = r`, which is their limit for long bidirectional sequences of different tokens; `finite=False`
does the same. The correlation is read before the update (the pseudo-code appends it after). Reference: dslm 4.4,
App. C, N.
For other activations the mlp's last weight follows from the second moment of the activation; gated mlps need `unit`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sigprop.capture.record import Field
from sigprop.errors import UnsupportedError, require
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.planned_states import PlannedStates
from sigprop.plans.recipes.rows import Scales, init_all, recipe, with_junctions
from sigprop.plans.recipes.schemes.unit import branch_scales
from sigprop.results import Init
from sigprop.structure import Junction, Parameter, Structure
from sigprop.theory import activations
from sigprop.theory.ops.activation import Activation
from sigprop.theory.ops.softmax import overlap


@recipe(
    "deepscale",
    paper="dslm: Kedia et al. 2024, 4.4 and App. N",
    applies_to="Transformers with plain (not gated) mlps",
    effect="unit forward variance and steady gradients at any depth; l^2 = 1 - 2/N, b^2 = 2/N",
    solves=True,
    needs="transformer",
)
def deepscale(
    structure: Structure,
    k: float = 2.0,
    alpha: float = 1.0,
    input_correlation: float | None = None,
    finite: bool = True,
) -> Plan:
    """Closed form, layer by layer; see the head of this file. `input_correlation` replaces that of the batch.

    The plan is for training: dropout is that of the model's modules, whether or not the model is in training mode, and
    `meta["dropout"]` says it.
    """
    scales = branch_scales(structure, k, alpha)
    variances = _variances(structure, scales, input_correlation, finite)
    power = "N" if alpha == 1.0 else f"N^{alpha:g}"
    return _planned(structure, variances, scales, f"l^2 = 1 - {k:g}/{power}, b^2 = {k:g}/{power}")


@recipe(
    "deepscale_simple",
    paper="dslm: Kedia et al. 2024, Simpler Initialization and Fig. 14",
    applies_to="Transformers with plain (not gated) mlps",
    effect="DeepScale with values and outputs as the mlp: bounded variance, no correlation needed",
    needs="transformer",
)
def deepscale_simple(structure: Structure, k: float = 2.0) -> Plan:
    """Value and output matrices with the mlp's variance `(1/d) sqrt((1-p)/2)`, for any correlation."""
    simple = math.sqrt((1.0 - structure.dropout) / 2.0) / structure.width
    variances: dict[str, tuple[float, float]] = {}
    for junction, spot in zip(structure.junctions, structure.sums, strict=True):
        found = (simple, simple) if junction.attention else _mlp_variances(structure, junction, spot.branch)
        variances[junction.weights[0]] = found
    return _planned(structure, variances, branch_scales(structure, k, 1.0), f"l^2 = 1 - {k:g}/N, b^2 = {k:g}/N")


def _planned(structure: Structure, variances: dict[str, tuple[float, float]], scales: Scales, why: str) -> Plan:
    """`variances`: by last weight, the variance of the weights inside the branch and of the last one."""
    kinds = max(structure.kinds)

    def rule(item: Parameter, role: str, size: int) -> Init:
        junction = structure.junction_of(item)
        if junction is None or role == "query_key":
            share = kinds if role == "input" else 1
            return Init("normal", std=1.0 / math.sqrt(share * item.fan_in))
        inside, last = variances[junction.weights[0]]
        return Init("normal", std=math.sqrt(last if role == "output" else inside))

    plan = init_all(structure, rule, embedding=math.sqrt((1.0 - structure.dropout) / kinds))
    plan.meta["dropout"] = structure.dropout
    return with_junctions(plan, structure, scales, why)


def _variances(
    structure: Structure, scales: Scales, given: float | None, finite: bool
) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    keep = 1.0 - structure.dropout
    if given is None:
        start = _input_correlations(structure)
    else:
        require(0.0 <= given < 1.0, "input_correlation", given, "from 0 up to but below 1")
        tokens = structure.sums[0].source.shape[-2]
        start = torch.full((1, tokens, tokens), given, dtype=torch.float64)
    pairs: dict[int, Tensor] = {}
    for junction, spot in zip(structure.junctions, structure.sums, strict=True):
        r = pairs.get(junction.stream, start)
        skip, branch = scales(junction)
        if junction.attention:
            attended = pairs.get(0, start) if junction.cross else r
            v, c = _attended(attended, structure.visible_keys(junction) if finite else None)
            inside = [structure.parameters[name] for name in junction.inside]
            value = next((item for item in inside if item.role == "value" or item.parts), None)
            last = _last_matrix(structure, junction)
            if value is None:
                raise UnsupportedError(f"deepscale: no value matrix found in the branch of {last.name}; use unit")
            both = math.sqrt(keep / v / (value.fan_in * last.fan_in))
            found[junction.weights[0]] = (both, both)
            after = torch.full_like(r, keep * c / v)
        else:
            found[junction.weights[0]] = _mlp_variances(structure, junction, spot.branch)
            after = keep * _after_mlp(
                _activation(junction, spot.branch), r, structure.width * found[junction.weights[0]][0]
            )
        pairs[junction.stream] = skip**2 * r + branch**2 * after
    return found


def _input_correlations(structure: Structure) -> Tensor:
    """Correlations of all pairs of tokens of each sequence at the start of the first stream, for equal embeddings."""
    states = PlannedStates(structure)
    states.set_plan(init_all(structure, lambda item, role, size: Init("normal", std=item.fan_in**-0.5), embedding=1.0))
    start = structure.sums[0].source.node
    states.run(states.nodes[: states.place[start] + 1])
    kernel, tokens = states.signal(start).kernel.normalized().dense().values, structure.sums[0].source.shape[-2]
    blocks = kernel.reshape(-1, tokens, len(kernel) // tokens, tokens).diagonal(dim1=0, dim2=2)
    return blocks.permute(2, 0, 1).clamp(0.0, 0.999)


def _attended(r: Tensor, keys: Tensor | None) -> tuple[float, float]:
    """`(v, c)`: variance and average covariance of attended values of unit variance and correlations `r`."""
    apart = (1.0 - torch.eye(r.shape[-1], dtype=r.dtype)).expand_as(r)
    average = float((r * apart).sum() / apart.sum().clamp_min(1.0))
    if keys is None:
        return max(average, 1e-3), max(average, 1e-3)
    weights, last = r.exp() * apart, keys.long().clamp_max(r.shape[-1]) - 1
    met, total = (x.cumsum(1).cumsum(2).diagonal(dim1=1, dim2=2)[:, last] for x in (weights * r, weights))
    seen = met / total.clamp_min(1e-300)
    own = overlap(keys, torch.full_like(keys, 1.0 - average))
    longest = torch.maximum(keys[:, None], keys[None, :])
    others = (1.0 / longest).sum() - (1.0 / longest.diagonal()).sum()
    count = max(1, len(keys) * (len(keys) - 1))
    return float((seen + (1.0 - seen) * own).mean()), average + (1.0 - average) * float(others) / count


def _mlp_variances(structure: Structure, junction: Junction, branch: Field) -> tuple[float, float]:
    """Variances of the first and the last weight of an mlp, for unit variance out."""
    last = _last_matrix(structure, junction)
    ratio = last.fan_in / structure.width
    first = math.sqrt(2.0 * (1.0 - structure.dropout) / ratio) / structure.width
    second = float(_activation(junction, branch).second_moment(structure.width * first))
    return first, (1.0 - structure.dropout) / (last.fan_in * second)


def _last_matrix(structure: Structure, junction: Junction) -> Parameter:
    last = structure.parameters[junction.weights[0]] if junction.weights else None
    if last is None or not last.is_matrix:
        raise UnsupportedError(f"deepscale: the branch at {junction.exit} does not end in a matrix; use unit")
    return last


def _activation(junction: Junction, branch: Field) -> activations.ActivationFunction:
    """The one activation of a plain mlp."""
    found, item = [], branch.node
    while item.inputs and len(item.inputs) == 1:
        found += [item.op.function] if isinstance(item.op, Activation) else []
        item = item.inputs[0]
        if found and not isinstance(item.op, Activation):
            break
    if len(found) != 1:
        raise UnsupportedError(
            f"deepscale needs the one activation of a plain mlp, and the trace has {len(found) or 'none'} before "
            f"{junction.exit}: a gated mlp, or an activation that is written out; use the recipe unit"
        )
    return found[0]


def _after_mlp(function: activations.ActivationFunction, r: Tensor, variance: float) -> Tensor:
    """Correlations about zero after the activation, for inputs of that variance and correlations `r`."""
    second = float(function.second_moment(variance))
    return torch.as_tensor(function.cross_moment(variance, variance, r * variance)) / second
