"""Results are plain data: what predict, measure and check return, printed, saved, compared."""

from sigprop.results.comparison import Comparison
from sigprop.results.coordinates import CoordinateReport, Culprit, Exponent
from sigprop.results.parameters import Init
from sigprop.results.profile import ParameterRow, Profile, SiteRow
from sigprop.results.report import Datum, Edit, Finding, Prescription, Report

__all__ = [
    "Comparison",
    "CoordinateReport",
    "Culprit",
    "Datum",
    "Edit",
    "Exponent",
    "Finding",
    "Init",
    "ParameterRow",
    "Prescription",
    "Profile",
    "Report",
    "SiteRow",
]
