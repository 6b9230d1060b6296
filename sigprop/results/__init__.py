"""Results are plain data: what predict and measure return, printed, saved, compared."""

from sigprop.results.comparison import Comparison
from sigprop.results.profile import SCHEMA_VERSION, ParameterRow, Profile, SiteRow

__all__ = ["SCHEMA_VERSION", "Comparison", "ParameterRow", "Profile", "SiteRow"]
