r"""Depth rules: branch scale, learning rate and epsilon as the number of layers L grows.

With `l = L / L_base` and a branch scale `l^{-alpha}`, the L branches together move the stream by order one when
each branch changes like l^{alpha - 1}; gradients inside a branch shrink like l^{-alpha}:

    rule     alpha   branch            updates           gradients (Adam's epsilon)
    none             1                 1                 1
    sqrt     1/2     l^{-1/2}          l^{-1/2}          l^{-1/2}        depth-muP (Yang et al. 2023)
    linear   1       l^{-1}            1                 l^{-1}          CompleteP (Dey et al. 2025), Megatron
    dslm     1/2     sqrt(2/N)/sqrt(1-2/N), relative     as sqrt         DeepScaleLM, Post-LN

N counts residual branches. The branch scale is folded exactly into the last weight and bias of the branch,
for Pre-LN and Post-LN alike, since it does not touch the skip. `dslm` also scales the skip by sqrt(1-2/N), which a
norm after the junction undoes (Post-LN); for Pre-LN use the `deepscale` recipe, which folds it layer by layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sigprop.errors import UnknownNameError, require
from sigprop.plans.scaling.dimensions import Dimensions, pattern, stack_of

DEPTH_RULES = ("none", "sqrt", "linear", "dslm")


@dataclass(frozen=True)
class DepthFactors:
    """Relative to the base depth: the branch scale, and the sizes of update and gradient inside a branch."""

    branch: float = 1.0
    update: float = 1.0
    gradient: float = 1.0


def depth_factors(rule: str, depth: float, base_depth: float) -> DepthFactors:
    """The rule's factors from `base_depth` to `depth` (both counted in the same unit; dslm: branches)."""
    if rule not in DEPTH_RULES:
        raise UnknownNameError("depth rule", rule, DEPTH_RULES)
    ratio = depth / base_depth
    if rule == "none" or ratio == 1.0:
        return DepthFactors()
    if rule == "dslm":
        require(min(depth, base_depth) > 2, "residual branches for dslm", min(depth, base_depth), "more than 2")
        folded = [math.sqrt(2 / n) / math.sqrt(1 - 2 / n) for n in (depth, base_depth)]
        return DepthFactors(folded[0] / folded[1], ratio**-0.5, ratio**-0.5)
    alpha = 0.5 if rule == "sqrt" else 1.0
    return DepthFactors(ratio**-alpha, ratio ** (alpha - 1), ratio**-alpha)


def branch_outputs(dims: Sequence[Dimensions], branches: Sequence[str]) -> set[str]:
    """Weights and biases that end a residual branch, by the module patterns that the user gives."""
    owners = {item.name: pattern(item.name).rpartition(".")[0] for item in dims if item.depth != 1.0}
    for branch in branches:
        if branch not in owners.values():
            raise UnknownNameError("branch", branch, set(owners.values()))
    return {name for name, owner in owners.items() if owner in branches}


def count_branches(dims: Sequence[Dimensions], ends: set[str]) -> dict[str, tuple[float, float]]:
    """(branches in the model, branches in the base) of every stack."""
    counts: dict[str, tuple[float, float]] = {}
    for item in dims:
        if item.name in ends and item.name.endswith("weight"):
            model, base = counts.get(stack_of(item.name), (0.0, 0.0))
            counts[stack_of(item.name)] = (model + 1, base + 1 / item.depth)
    return counts
