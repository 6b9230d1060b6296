r"""Sizes of every parameter beside its base or the reference: the width rule, times depth, times exact moves.

What is moved exactly (the scale of attention, of a branch, of a table that the model multiplies, of a tied readout) is
a factor of the weight with rates that keep its trajectory, so that all parts multiply.
"""

from __future__ import annotations

from collections.abc import Sequence

from sigprop.errors import InputError, require
from sigprop.plans.multipliers import Sizes
from sigprop.plans.scaling.attention import AttentionScales
from sigprop.plans.scaling.depth import DEPTH_RULES, DepthFactors, branch_outputs, count_branches, depth_factors
from sigprop.plans.scaling.dimensions import Dimensions, stack_of
from sigprop.plans.scaling.model_and_base import ModelAndBase
from sigprop.plans.scaling.width_rules import WidthRule


def relative_sizes(
    dims: list[Dimensions],
    width: WidthRule,
    scores: AttentionScales,
    depths: dict[str, tuple[DepthFactors, bool]],
    pair: ModelAndBase,
) -> dict[str, Sizes]:
    """By parameter: the sizes of weight, update and gradient that the rules ask for."""
    found = {}
    for item in dims:
        sizes, (deep, ends) = width.factors(item), depths.get(item.name, (DepthFactors(), False))
        sizes = Sizes(sizes.weight, sizes.update * deep.update, sizes.gradient * deep.gradient)
        gauge = scores.gauges.get(item.name, 1.0) / pair.table_scale(item.name)
        found[item.name] = sizes.gauged(gauge * (deep.branch if ends else 1.0))
    return found


def output_scales(
    dims: list[Dimensions],
    scores: AttentionScales,
    depths: dict[str, tuple[DepthFactors, bool]],
    pair: ModelAndBase,
) -> dict[str, float]:
    """By module: what the exact moves multiply its output with."""
    found = {item.name.rpartition(".")[0]: 1.0 for item in dims}
    found |= {name.rpartition(".")[0]: deep.branch for name, (deep, ends) in depths.items() if ends}
    return found | scores.outputs | pair.tables_scaled_outside()


def depths_of(
    dims: list[Dimensions], rule: str, branches: Sequence[str] | None, pair: ModelAndBase
) -> dict[str, tuple[DepthFactors, bool]]:
    """For every parameter inside a branch: its depth factors, and whether it ends the branch as a factor.

    Branches are read from the traces, or named by the user where there are none.
    """
    require(rule in DEPTH_RULES, "depth", rule, " or ".join(DEPTH_RULES))
    if rule == "none":
        return {}
    if branches is None and pair.ends():
        shifts = pair.ends()
        counts = {item.name: pair.branches(item.name) for item in dims}
        return {
            name: (depth_factors(rule, *count), name in shifts and shifts[name] == 0.0)
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
    ends = branch_outputs(dims, branches)
    counted = count_branches(dims, ends)
    return {
        item.name: (depth_factors(rule, *counted[stack_of(item.name)]), item.name in ends)
        for item in dims
        if item.depth != 1.0 and stack_of(item.name) in counted
    }
