"""Width exponents: how initialization, multipliers and learning rates must shrink as a network widens.

`PARAMETRIZATIONS` are the table entries, `classify` judges one, `solve` finds its largest stable learning
rates, `gauge` moves along its equivalence class. All arithmetic is exact (`fractions.Fraction`).

Reference: Stratos, Scale-Invariant Parameterizations (notes on Everett et al. 2024, and Yang and Hu 2020).
"""

from sigprop.theory.exponents.classify import Chain, Classification, Condition, chain, classify
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
    "Chain",
    "Classification",
    "Condition",
    "Exponents",
    "OptimizerRule",
    "Parametrization",
    "Solution",
    "chain",
    "classify",
    "exponents",
    "gauge",
    "read_alignment",
    "read_optimizer",
    "read_parametrization",
    "solve",
]
