"""Criticality: for which (sigma_w, sigma_b, mu) gradients survive any depth.

`architecture("gelu", norm="none", residual=0.0)` is one repeated layer at infinite width; `criticality` of it
gives critical line, points, stability and exponents; `trajectory` iterates kernel and Jacobian over depth;
`fixed_point` and `jacobian` are vectorized over whole grids. Reference: Doshi, He, Gromov, NeurIPS 2023.
"""

from sigprop.research.criticality.base import Architecture, correlation_length
from sigprop.research.criticality.batch_norm import BatchNormStack
from sigprop.research.criticality.diagram import predicted_diagram
from sigprop.research.criticality.finite_batch import batch_norm_factor
from sigprop.research.criticality.finite_width import factor_at_width
from sigprop.research.criticality.growth import (
    factor_at_depth,
    growth_exponent,
    jacobian_from_input,
    stretched_rate,
    trajectory,
)
from sigprop.research.criticality.layer_norm import ActivationNorm, PreactivationNorm
from sigprop.research.criticality.lines import CriticalLine, critical_line, critical_sigma_b
from sigprop.research.criticality.points import CriticalPoint, critical_points
from sigprop.research.criticality.summary import Criticality, architecture, criticality
from sigprop.research.criticality.vanilla import Vanilla

__all__ = [
    "ActivationNorm",
    "Architecture",
    "BatchNormStack",
    "CriticalLine",
    "CriticalPoint",
    "Criticality",
    "PreactivationNorm",
    "Vanilla",
    "architecture",
    "batch_norm_factor",
    "correlation_length",
    "critical_line",
    "critical_points",
    "critical_sigma_b",
    "criticality",
    "factor_at_depth",
    "factor_at_width",
    "growth_exponent",
    "jacobian_from_input",
    "predicted_diagram",
    "stretched_rate",
    "trajectory",
]
