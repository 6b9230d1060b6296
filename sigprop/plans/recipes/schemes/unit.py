r"""`unit`: DeepScale by the engine, for any traced model and without data.

In order of execution, at every residual sum `l x + b f`:

    Var f = ratio * Var x        by the std of the branch's last weight
    l^2 = 1 - b^2,  b^2 = k / N^alpha, at most 1/2

so that the scaled stream keeps the variance it starts with. Embeddings are initialized so that it starts with 1; one
that is also the readout, without a norm before the readout, for the readout instead, with std `width^{-1/2}` (over the
root of the number of embeddings that are added). A branch of experts has several last weights, which take one factor.
Other matrices have variance `1 / fan_in`.

`score_variance` caps the variance of attention scores over the keys of a query, by the std of query and key (T5 has no
`1/sqrt(d)`, so its scores would have variance `d`). `correlation_ceiling` and `gradient_ratio` lower `k` until the
predicted token correlation of the last sum, or the predicted growth of the gradient from the last sum to the first,
obeys them. The gradient is that of `loss`: by default the model's own, if the batch has labels, else white noise.

Limits: a matrix with pieces of different std counts as one of their average; last weights shared by several branches
are set at the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from sigprop.capture.record import Weight
from sigprop.capture.replayed_heads import heads_of
from sigprop.errors import UnsupportedError, require
from sigprop.graph.graph import Node
from sigprop.losses import LossChoice
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.planned_states import PlannedStates, correlation, start_variance, variance
from sigprop.plans.recipes.rows import init_all, recipe, scale_rows, times, with_junctions
from sigprop.plans.recipes.schemes.matrices import lecun_rule
from sigprop.results import Init
from sigprop.structure import Junction, Structure
from sigprop.structure.attention import WithoutDropout
from sigprop.structure.attention import score_variance as score_variance_of

STEPS = 6
LARGEST_SHARE = 0.5


@recipe(
    "unit",
    paper="dslm, solved by sigprop's engine",
    applies_to="any model with residual branches that end in a weight",
    effect="unit variance along the residual stream from predicted states, layer by layer",
    solves=True,
    needs="junctions",
)
def unit(
    structure: Structure,
    k: float = 1.0,
    alpha: float = 1.0,
    ratio: float = 1.0,
    score_variance: float = 1.0,
    correlation_ceiling: float | None = None,
    gradient_ratio: float | None = None,
    loss: LossChoice = None,
) -> Plan:
    require(score_variance > 0, "score_variance", score_variance, "a positive number")
    require(ratio > 0, "ratio", ratio, "a positive number")
    require(k >= 0, "k", k, "a number that is not negative")
    tests: list[Callable[[PlannedStates], bool]] = []
    if correlation_ceiling is not None:
        require(0 < correlation_ceiling < 1, "correlation_ceiling", correlation_ceiling, "between 0 and 1")
        tests.append(lambda states: correlation(structure.sums[-1].total, states) <= correlation_ceiling)
    if gradient_ratio is not None:
        require(gradient_ratio > 1, "gradient_ratio", gradient_ratio, "a number above 1")
        tests.append(
            lambda states: abs(math.log(_gradient_growth(structure, states, loss))) <= math.log(gradient_ratio)
        )

    def solved(strength: float) -> tuple[Plan, bool]:
        plan, states = _solve(structure, strength, alpha, ratio, score_variance)
        return plan, all(test(states) for test in tests)

    plan, fine = solved(k)
    if fine:
        return plan
    low, high = 0.0, k
    best: Plan | None = None
    for _ in range(STEPS):
        middle = (low + high) / 2
        plan, fine = solved(middle)
        low, high, best = (middle, high, plan) if fine else (low, middle, best)
    if best is None:
        raise UnsupportedError(f"unit: no branch strength k down to {high:.2g} meets the targets; relax them")
    return best


def _solve(
    structure: Structure, k: float, alpha: float, ratio: float, score_variance: float
) -> tuple[Plan, PlannedStates]:
    scales = branch_scales(structure, k, alpha)
    plan = init_all(structure, lecun_rule, embedding=1.0)
    tied = structure.tied_table is not None and not structure.readout_input
    start = 1.0 / (max(structure.kinds) * structure.width) if tied else 1.0 / start_variance(structure, plan)
    kept = any(structure.parameters[name].frozen for name in structure.starting)
    factors = {} if kept else dict.fromkeys(structure.starting, math.sqrt(start))
    states = PlannedStates(structure)
    states.set_plan(scale_rows(plan, factors))
    for junction, spot in zip(structure.junctions, structure.sums, strict=True):
        if not junction.parallel:
            states.scale_sum(spot.total, spot.skip, scales(junction))
    factors |= _solved_factors(structure, states, ratio, score_variance)
    shifts = {name: junction.shift for junction in structure.junctions for name in junction.weights}
    plan = scale_rows(plan, factors, shifts=shifts)
    plan = with_junctions(plan, structure, scales, f"branch variance {ratio:g} x skip, predicted")
    stream = variance(structure.sums[0].source.node, states)
    plan.meta = {"stream_variance": stream, "k": k, "alpha": alpha, "ratio": ratio, "tied_as_readout": tied}
    return plan, states


def branch_scales(structure: Structure, k: float, alpha: float) -> Callable[[Junction], tuple[float, float]]:
    """(skip, branch) of every junction, `b^2 = k / N^alpha`, at most 1/2; (1, 1) where the model scales its skips."""
    scaled = any(junction.skip_scale != 1.0 for junction in structure.junctions)

    def scales(junction: Junction) -> tuple[float, float]:
        squared = min(k / structure.layers(junction.stream) ** alpha, LARGEST_SHARE)
        return (1.0, 1.0) if scaled else (math.sqrt(1.0 - squared), math.sqrt(squared))

    return scales


def _solved_factors(structure: Structure, states: PlannedStates, ratio: float, cap: float) -> dict[str, float]:
    """Run all, setting queries, keys and last weights on the way; returns what each was multiplied by."""
    factors: dict[str, float] = {}
    branches: dict[int, list[int]] = {}
    for number, spot in enumerate(structure.sums):
        branches.setdefault(states.place[spot.total.node], []).append(number)
    done = 0
    for place, numbers in branches.items():
        for attention in [n for n in states.nodes[done : place + 1] if heads_of(n.op) is not None]:
            states.run(states.nodes[done : states.place[attention]])
            done = states.place[attention]
            _cap_scores(structure, states, attention, cap, factors)
        states.run(states.nodes[done : place + 1])
        done = place + 1
        for number in numbers:
            _set_last_weight(structure, states, number, ratio / len(numbers), factors)
    states.run(states.nodes[done:])
    return factors


def _cap_scores(
    structure: Structure, states: PlannedStates, attention: Node, cap: float, factors: dict[str, float]
) -> None:
    """Divide query and key so that their scores do not vary more than the cap; fused matrices are left alone."""
    heads = heads_of(attention.op)
    assert heads is not None
    present = score_variance_of(WithoutDropout(states, torch.Generator().manual_seed(0))(heads.weight))
    makers = [weight for source in heads.parts for weight in source.inputs if isinstance(weight, Weight)]
    names = list(dict.fromkeys(name for weight in makers for name, _ in weight.roots))
    chosen = [name for name in names if structure.parameters[name].role == "query_key"]
    if present <= cap or len(chosen) != 2 or any(structure.parameters[name].parts for name in chosen):
        return
    for name in chosen:
        before = math.sqrt(states.distribution_now(name).variance)
        factors[name] = (cap / present) ** 0.25
        states.set_init(name, Init("normal", std=before * factors[name]), structure.parameters[name].shape)
        states.run(states.uses[name])


def _set_last_weight(
    structure: Structure, states: PlannedStates, number: int, ratio: float, factors: dict[str, float]
) -> None:
    junction, spot = structure.junctions[number], structure.sums[number]
    names = [name for name in junction.weights if name in states.uses]
    if not names:
        raise UnsupportedError(f"unit: the branch at {junction.exit or junction.inside[:1]} does not end in a weight")
    if any(name in factors for name in names):
        return
    own = junction.branch_scale if junction.skip_scale == 1.0 else 1.0
    present = own**2 * variance(spot.branch.node, states)
    if present <= 0.0:
        raise UnsupportedError(f"unit: the branch that ends in {names[0]} has no variance to scale")
    factor = math.sqrt(ratio * variance(spot.skip.node, states) / present)
    for name in names:
        held = states.distribution_now(name)
        now = Init("normal", std=math.sqrt(held.variance)) if held.variance else Init("constant", value=held.mean)
        states.set_init(name, times(now, factor, junction.shift), structure.parameters[name].shape)
        factors[name] = factor
    first = min((node for name in names for node in states.uses[name]), key=states.place.__getitem__)
    states.run(states.between(first, spot.total.node))


def _gradient_growth(structure: Structure, states: PlannedStates, loss: LossChoice) -> float:
    """Predicted gradient variance of the first sum over that of the last, for this loss."""
    states.backward(structure.traced.differentiate(loss, states)[0], weights=False)
    first, last = (states.gradients.get(structure.sums[place].total.node) for place in (0, -1))
    if first is None or last is None:
        raise UnsupportedError("unit: no gradient reached the residual stream")
    return float(first.summary()[0] / last.summary()[0])
