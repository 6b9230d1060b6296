"""Activations: one file each, with every Gaussian moment that the ops and the criticality theory need.

`get("gelu")`, `get("leaky_relu", slope=0.2)`, `get(torch.tanh)`, `get(my_function, kinks=(0.0,))`. Closed
forms where they exist (`status == "exact"`); otherwise one-dimensional moments by Gauss-Legendre panels
(`quadrature`) and cross moments by Hermite series (`hermite`). To add one: a file here with `@register`, and
a row in the test battery.
"""

from sigprop.theory.activations.base import ActivationFunction, get, names, register

__all__ = ["ActivationFunction", "get", "names", "register"]
