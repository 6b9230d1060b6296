"""Results are plain data: what predict, measure and check return, printed, saved, compared."""

from sigprop.results.comparison import Comparison
from sigprop.results.parameters import Init
from sigprop.results.profile import ParameterRow, Profile, SiteRow
from sigprop.results.report import Edit, Finding, Report

__all__ = [
    "Comparison",
    "Edit",
    "Finding",
    "Init",
    "ParameterRow",
    "Profile",
    "Report",
    "SiteRow",
]
