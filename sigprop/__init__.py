"""sigprop: predict, measure, prescribe and check signal propagation at initialization.

| | |
|---|---|
| `predict` | moments of a model or blueprint from theory |
| `measure`, `jacobian` | the same on the real model, which is left as it was |
| `check_criticality` | ordered, critical or chaotic, block by block |
| `plan` | initializations, residual scalings and learning rates as data |
| `coord_check` | do they hold as width and depth grow? |
"""

from sigprop.api import plan, predict
from sigprop.measure import jacobian, jacobian_profile, measure
from sigprop.measure.criticality import check_criticality
from sigprop.results import Comparison, Plan, Profile
from sigprop.scaling import coord_check
from sigprop.trace import trace

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "Plan",
    "Profile",
    "check_criticality",
    "coord_check",
    "jacobian",
    "jacobian_profile",
    "measure",
    "plan",
    "predict",
    "trace",
]
