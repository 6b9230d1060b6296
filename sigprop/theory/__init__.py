"""Closed forms: activations, ops and states. Imports no other room."""

from sigprop.theory.kernels import Dense, Exchangeable, Kernel
from sigprop.theory.states import EXACT, Evidence, Gradient, Signal, Status, exchangeable_gradient, exchangeable_signal

__all__ = [
    "EXACT",
    "Dense",
    "Evidence",
    "Exchangeable",
    "Gradient",
    "Kernel",
    "Signal",
    "Status",
    "exchangeable_gradient",
    "exchangeable_signal",
]
