"""Kernels of infinitely wide networks between given inputs: NNGP and NTK.

| file | what it holds |
|---|---|
| `kernels` | the call, for a blueprint, a module, or a function that builds one |
| `signal` | the state of a tensor with infinitely many channels, and what each op does to it |
| `tensor` | the same as an argument of a module's own `forward` |
"""

from sigprop.research.kernels.kernels import Kernels, kernels

__all__ = ["Kernels", "kernels"]
