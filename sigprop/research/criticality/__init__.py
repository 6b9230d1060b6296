"""Criticality: for which (sigma_w, sigma_b, mu) gradients survive any depth.

`architecture("gelu", norm="none", residual=0.0)` is one repeated layer at infinite width; `criticality` of it
gives critical line, points, stability and exponents; `trajectory` iterates kernel and Jacobian over depth;
`fixed_point` and `jacobian` are vectorized over whole grids. Reference: Doshi, He, Gromov, NeurIPS 2023.
"""

from sigprop.research.criticality.finite_size import batch_norm_factor, factor_at_width
from sigprop.research.criticality.networks import Vanilla
from sigprop.research.criticality.points import critical_line, critical_points
from sigprop.research.criticality.summary import (
    Criticality,
    advice,
    architecture,
    criticality,
    factor_at_depth,
    growth_exponent,
    jacobian_from_input,
    predicted_diagram,
    stretched_rate,
    trajectory,
)

__all__ = [
    "Criticality",
    "Vanilla",
    "advice",
    "architecture",
    "batch_norm_factor",
    "critical_line",
    "critical_points",
    "criticality",
    "factor_at_depth",
    "factor_at_width",
    "growth_exponent",
    "jacobian_from_input",
    "predicted_diagram",
    "stretched_rate",
    "trajectory",
]
