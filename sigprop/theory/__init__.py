"""Closed forms: activations, ops, states, and the tape that chains them. Imports no other room."""

from sigprop.theory.kernels import Dense, Exchangeable, Kernel
from sigprop.theory.states import Gradient, Signal, exchangeable_gradient, exchangeable_signal
from sigprop.theory.status import EXACT, Evidence, Status
from sigprop.theory.tape import Node, Tape

__all__ = [
    "EXACT",
    "Dense",
    "Evidence",
    "Exchangeable",
    "Gradient",
    "Kernel",
    "Node",
    "Signal",
    "Status",
    "Tape",
    "exchangeable_gradient",
    "exchangeable_signal",
]
