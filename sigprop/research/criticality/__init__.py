"""Criticality: for which (sigma_w, sigma_b, mu) gradients survive any depth.

`architecture("gelu", norm="none", residual=0.0)` is one repeated layer at infinite width; `criticality` of it
gives critical line, points, stability and exponents; `trajectory` iterates kernel and Jacobian over depth;
`fixed_point` and `jacobian` are vectorized over whole grids. Reference: Doshi, He, Gromov, NeurIPS 2023.
"""

from sigprop.research.criticality.finite_size import batch_norm_factor, factor_at_width
from sigprop.research.criticality.networks import (
    ActivationNorm,
    Architecture,
    BatchNormStack,
    PreactivationNorm,
    Vanilla,
    correlation_length,
)
from sigprop.research.criticality.points import (
    CriticalLine,
    CriticalPoint,
    critical_line,
    critical_points,
)
from sigprop.research.criticality.summary import (
    CriticalInit,
    Criticality,
    advice,
    architecture,
    criticality,
    factor_at_depth,
    growth_exponent,
    jacobian_from_input,
    predicted_diagram,
    prescription,
    stretched_rate,
    trajectory,
)

__all__ = [
    "ActivationNorm",
    "Architecture",
    "BatchNormStack",
    "CriticalInit",
    "CriticalLine",
    "CriticalPoint",
    "Criticality",
    "PreactivationNorm",
    "Vanilla",
    "advice",
    "architecture",
    "batch_norm_factor",
    "correlation_length",
    "critical_line",
    "critical_points",
    "criticality",
    "factor_at_depth",
    "factor_at_width",
    "growth_exponent",
    "jacobian_from_input",
    "predicted_diagram",
    "prescription",
    "stretched_rate",
    "trajectory",
]
