r"""Depth rules: branch scale, learning rate and epsilon as the number of layers L grows.

With `l = L / L_base` and a branch scale `l^{-alpha}`, the L branches together move the stream by order one when
each branch changes like l^{alpha - 1}; gradients inside a branch shrink like l^{-alpha}:

    rule     alpha   branch            updates           gradients (Adam's epsilon)
    none             1                 1                 1
    sqrt     1/2     l^{-1/2}          l^{-1/2}          l^{-1/2}        depth-muP (Yang et al. 2023)
    linear   1       l^{-1}            1                 l^{-1}          CompleteP (Dey et al. 2025), Megatron
    dslm     1/2     sqrt(2/N)/sqrt(1-2/N), relative     as sqrt         DeepScaleLM, Post-LN

N counts residual branches. The branch scale is folded exactly into the last weight and bias of the branch,
for Pre-LN and for Post-LN, since it does not touch the skip. `dslm` also scales the skip by sqrt(1-2/N), which a
norm after the junction undoes (Post-LN); for Pre-LN use the `deepscale` recipe, which folds it layer by layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sigprop.errors import InputError, UnknownNameError, require
from sigprop.plans.scaling.dimensions import Dimensions, pattern, stack_of
from sigprop.plans.scaling.model_and_base import ModelAndBase
from sigprop.structure import Structure

DEPTH_RULES = ("none", "sqrt", "linear", "dslm")


@dataclass(frozen=True)
class DepthFactors:
    """Relative to the base depth: the branch scale, and the sizes of update and gradient inside a branch.

    `ends`: the parameter ends its branch as a factor, and takes the scale.
    """

    branch: float = 1.0
    update: float = 1.0
    gradient: float = 1.0
    ends: bool = False

    @property
    def weight(self) -> float:
        """What the branch scale makes of this parameter's size."""
        return self.branch if self.ends else 1.0


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


def _branch_outputs(dims: Sequence[Dimensions], branches: Sequence[str]) -> set[str]:
    """Weights and biases that end a residual branch, by the module patterns that the user gives."""
    owners = {item.name: pattern(item.name).rpartition(".")[0] for item in dims if item.depth != 1.0}
    for branch in branches:
        if branch not in owners.values():
            raise UnknownNameError("branch", branch, set(owners.values()))
    return {name for name, owner in owners.items() if owner in branches}


def _count_branches(dims: Sequence[Dimensions], ends: set[str]) -> dict[str, tuple[float, float]]:
    """(branches in the model, branches in the base) of every stack."""
    counts: dict[str, tuple[float, float]] = {}
    for item in dims:
        if item.name in ends and item.name.endswith("weight"):
            model, base = counts.get(stack_of(item.name), (0.0, 0.0))
            counts[stack_of(item.name)] = (model + 1, base + 1 / item.depth)
    return counts


def depths_beside_base(
    dims: Sequence[Dimensions], rule: str, branches: Sequence[str] | None, pair: ModelAndBase
) -> dict[str, DepthFactors]:
    """The depth factors of every parameter inside a branch.

    Branches are read from the traces, or named by the user where there are none.
    """
    require(rule in DEPTH_RULES, "depth", rule, " or ".join(DEPTH_RULES))
    if rule == "none":
        return {}
    if branches is None and pair.ends():
        shifts = pair.ends()
        counts = {item.name: pair.branches(item.name) for item in dims}
        return {
            name: replace(depth_factors(rule, *count), ends=shifts.get(name) == 0.0)
            for name, count in counts.items()
            if count is not None and count[0] != count[1]
        }
    if branches is None and all(item.depth == 1.0 for item in dims):
        return {}
    if branches is None:
        raise InputError(
            f"no residual branch is known ({pair.reason or 'the trace has none'}): pass branches=[module patterns like "
            "'layers.*.mlp.down_proj'], the modules that end one"
        )
    ends = _branch_outputs(dims, branches)
    counted = _count_branches(dims, ends)
    return {
        item.name: replace(depth_factors(rule, *counted[stack_of(item.name)]), ends=item.name in ends)
        for item in dims
        if item.depth != 1.0 and stack_of(item.name) in counted
    }


def depths_beside_reference(structure: Structure, dims: Sequence[Dimensions], rule: str) -> dict[str, DepthFactors]:
    """The same beside the reference stack, read from the trace."""
    found = {}
    ends = {name for junction in structure.junctions for name in junction.weights if junction.shift == 0.0}
    for item in dims:
        junction = structure.junction_of(structure.parameters[item.name])
        if rule == "none" or junction is None or item.depth == 1.0:
            continue
        branches = len(structure.streams[junction.stream])
        found[item.name] = replace(depth_factors(rule, branches, branches / item.depth), ends=item.name in ends)
    return found
