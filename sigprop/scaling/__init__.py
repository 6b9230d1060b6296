"""Parametrizations: width and depth rules for any model and optimizer, and the check that they hold."""

from sigprop.scaling.coordcheck import coord_check
from sigprop.scaling.depth import DEPTH_RULES, DepthFactors, depth_factors
from sigprop.scaling.dimensions import ROLES, Dimensions, compare
from sigprop.scaling.family import GROUPS, GroupFactors, family_factors
from sigprop.scaling.parametrize import parametrize
from sigprop.scaling.width import WIDTH_RULES, WidthRule, width_rule

__all__ = [
    "DEPTH_RULES",
    "GROUPS",
    "ROLES",
    "WIDTH_RULES",
    "DepthFactors",
    "Dimensions",
    "GroupFactors",
    "WidthRule",
    "compare",
    "coord_check",
    "depth_factors",
    "family_factors",
    "parametrize",
    "width_rule",
]
