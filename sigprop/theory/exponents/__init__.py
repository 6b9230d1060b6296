"""Width exponents: how initialization, multipliers and learning rates must shrink as a network widens.

`PARAMETRIZATIONS` are the table entries, `solve` finds the largest stable learning rates of one, `gauge` moves along
its equivalence class; `sigprop.research.exponents` judges one. All arithmetic is exact (`fractions.Fraction`).

Reference: Stratos, Scale-Invariant Parameterizations (notes on Everett et al. 2024, and Yang and Hu 2020).
"""

from sigprop.theory.exponents.parametrization import (
    ALIGNMENTS,
    MUON_SCALES,
    OPTIMIZERS,
    PARAMETRIZATIONS,
    Alignment,
    Exponents,
    OptimizerRule,
    Parametrization,
    exponents,
    read_alignment,
    read_optimizer,
    read_parametrization,
)
from sigprop.theory.exponents.solve import Solution, gauge, solve

__all__ = [
    "ALIGNMENTS",
    "MUON_SCALES",
    "OPTIMIZERS",
    "PARAMETRIZATIONS",
    "Alignment",
    "Exponents",
    "OptimizerRule",
    "Parametrization",
    "Solution",
    "exponents",
    "gauge",
    "read_alignment",
    "read_optimizer",
    "read_parametrization",
    "solve",
]
