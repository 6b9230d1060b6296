"""The independent witness: moments, correlations and gradients of any PyTorch model, measured by hooks.

`measure` runs a model once, or over initializations, and returns a `Profile`. `jacobian` and `jacobian_profile`
give partial Jacobians between modules. All leave the model bit for bit as it was, and none knows any theory.
"""

from sigprop.measurement.jacobian import PartialJacobian, jacobian, jacobian_profile
from sigprop.measurement.measurement import measure

__all__ = ["PartialJacobian", "jacobian", "jacobian_profile", "measure"]
