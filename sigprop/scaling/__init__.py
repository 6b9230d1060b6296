"""Parametrizations: width and depth rules for any model and optimizer, and the check that they hold."""

from sigprop.scaling.alignment import AlignmentReport, AlignmentRow, measure_alignment
from sigprop.scaling.budget import AdamSettings, at_batch, at_horizon, averaging_decay, independent_decay
from sigprop.scaling.composition import compose
from sigprop.scaling.contributions import Contribution, contribution_table, contributions, expected_contributions
from sigprop.scaling.coordcheck import coord_check
from sigprop.scaling.depth import DEPTH_RULES, DepthFactors, depth_factors
from sigprop.scaling.dimensions import ROLES, Dimensions, compare
from sigprop.scaling.family import GROUPS, GroupFactors, family_factors
from sigprop.scaling.parametrize import parametrize
from sigprop.scaling.reference import REFERENCE_LAYERS, REFERENCE_WIDTH
from sigprop.scaling.width import WIDTH_RULES, WidthRule, width_rule

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
    "Contribution",
    "DepthFactors",
    "Dimensions",
    "GroupFactors",
    "WidthRule",
    "at_batch",
    "at_horizon",
    "averaging_decay",
    "compare",
    "compose",
    "contribution_table",
    "contributions",
    "coord_check",
    "depth_factors",
    "expected_contributions",
    "family_factors",
    "independent_decay",
    "measure_alignment",
    "parametrize",
    "width_rule",
]
