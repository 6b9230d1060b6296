"""sigprop: predict, measure, prescribe and check signal propagation at initialization.

| | |
|---|---|
| `predict` | moments of a model or blueprint from theory |
| `measure`, `jacobian` | the same on the real model, which is left as it was |
| `check` | what is wrong with an initialization, why, and the plan that fixes it |
| `diff` | is this initialization the same as that one, and if not, which tensor explains it? |
| `check_criticality` | ordered, critical or chaotic, block by block |
| `plan` | initializations, residual scalings and learning rates as data |
| `coord_check` | do they hold as width and depth grow? |
| `kernels` | NNGP and NTK of a network of infinite width between given inputs |
| `Watch` | the same numbers while a model trains, and what is wrong with a run |

Each name is imported when it is first used, so that `import sigprop` costs nothing and `sigprop --help` is quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sigprop.api import predict
    from sigprop.capture import trace
    from sigprop.checks import check
    from sigprop.checks.diff import diff
    from sigprop.measurement import jacobian, jacobian_profile, measure
    from sigprop.measurement.criticality import check_criticality
    from sigprop.monitoring import Watch
    from sigprop.plans import Plan
    from sigprop.plans.scaling import coord_check, plan
    from sigprop.research.kernels import Kernels, kernels
    from sigprop.results import Comparison, Profile, Report

__version__ = "0.2.0"

__all__ = [
    "Comparison",
    "Kernels",
    "Plan",
    "Profile",
    "Report",
    "Watch",
    "check",
    "check_criticality",
    "coord_check",
    "diff",
    "jacobian",
    "jacobian_profile",
    "kernels",
    "measure",
    "plan",
    "predict",
    "trace",
]

_HOMES = {
    "Comparison": "sigprop.results",
    "Kernels": "sigprop.research.kernels",
    "Plan": "sigprop.plans",
    "Profile": "sigprop.results",
    "Report": "sigprop.results",
    "Watch": "sigprop.monitoring",
    "check": "sigprop.checks",
    "check_criticality": "sigprop.measurement.criticality",
    "coord_check": "sigprop.plans.scaling",
    "diff": "sigprop.checks.diff",
    "jacobian": "sigprop.measurement",
    "jacobian_profile": "sigprop.measurement",
    "kernels": "sigprop.research.kernels",
    "measure": "sigprop.measurement",
    "plan": "sigprop.plans.scaling",
    "predict": "sigprop.api",
    "trace": "sigprop.capture",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sigprop' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
