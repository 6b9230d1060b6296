"""Parametrizations: width and depth rules for any model and optimizer, and the check that they hold."""

from sigprop.plans.scaling.alignment import measure_alignment
from sigprop.plans.scaling.budget import at_batch, at_horizon, averaging_decay, independent_decay
from sigprop.plans.scaling.composition import compose, plan
from sigprop.plans.scaling.coordcheck import coord_check
from sigprop.plans.scaling.width_rules import WIDTH_RULES

__all__ = [
    "WIDTH_RULES",
    "at_batch",
    "at_horizon",
    "averaging_decay",
    "compose",
    "coord_check",
    "independent_decay",
    "measure_alignment",
    "plan",
]
