"""Parametrizations: width and depth rules for any model and optimizer, and the check that they hold."""

from sigprop.plans.scaling.alignment import AlignmentReport, AlignmentRow, measure_alignment
from sigprop.plans.scaling.beside import REFERENCE_LAYERS, REFERENCE_WIDTH
from sigprop.plans.scaling.budget import AdamSettings, at_batch, at_horizon, averaging_decay, independent_decay
from sigprop.plans.scaling.composition import compose, plan
from sigprop.plans.scaling.coordcheck import coord_check
from sigprop.plans.scaling.depth import DEPTH_RULES, DepthFactors, depth_factors
from sigprop.plans.scaling.dimensions import ROLES, Dimensions, compare
from sigprop.plans.scaling.width_rules import GROUPS, WIDTH_RULES, GroupFactors, WidthRule, family_factors, width_rule

__all__ = [
    "DEPTH_RULES",
    "GROUPS",
    "REFERENCE_LAYERS",
    "REFERENCE_WIDTH",
    "ROLES",
    "WIDTH_RULES",
    "AdamSettings",
    "AlignmentReport",
    "AlignmentRow",
    "DepthFactors",
    "Dimensions",
    "GroupFactors",
    "WidthRule",
    "at_batch",
    "at_horizon",
    "averaging_decay",
    "compare",
    "compose",
    "coord_check",
    "depth_factors",
    "family_factors",
    "independent_decay",
    "measure_alignment",
    "plan",
    "width_rule",
]
