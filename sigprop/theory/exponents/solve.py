r"""`solve`: the largest stable learning rates; `gauge`: moves that change nothing.

Stability of an update asks every activation's change to be at most order one, so the smallest admissible
exponents are, with the features' change held at `d^{-r}`,

    a_0 + e_0 = r,   a_h + e_h = max(r + alpha, u),   a_o + e_o = max(alpha, u - r),   r = max(0, omega_o - A)

where `A = a_o + b_o`. With A >= omega_o (muP, MF, or an unaligned readout) features move at order one;
otherwise the logits would grow like d^{omega_o - A}, and the features must move less: the lazy regime.
Reference: Stratos, eqs. (18) to (24) and section 1.2.1 (its gauge move is Adam's).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from sigprop.errors import InputError
from sigprop.theory.exponents.parametrization import (
    ALIGNMENTS,
    HALF,
    Alignment,
    Exponents,
    OptimizerRule,
    Parametrization,
    read_alignment,
    read_optimizer,
    read_parametrization,
)


@dataclass(frozen=True)
class Solution:
    """Learning rate `d^{-c}`, decoupled weight decay `d^{-weight_decay}` and epsilon `d^{-epsilon}` per role.

    The weight decay keeps learning rate times decay fixed; epsilon follows the size of the gradient.
    """

    c: Exponents
    weight_decay: Exponents
    epsilon: Exponents
    feature_change: Fraction


def solve(
    parametrization: Parametrization | str,
    optimizer: OptimizerRule | str = "adam",
    alignment: Alignment | str = ALIGNMENTS["full"],
) -> Solution:
    """The largest stable learning-rate exponents; the initialization must be stable (eqs. 6 to 8)."""
    parametrization = read_parametrization(parametrization)
    optimizer = read_optimizer(optimizer)
    alignment = read_alignment(alignment)
    initial = parametrization.initial()
    if initial.embedding != 0 or initial.hidden != HALF or initial.readout < HALF:
        raise InputError(f"a + b = {initial}: a stable initialization needs 0, 1/2 and at least 1/2; see classify")
    if alignment.omega_hidden > HALF:
        raise InputError(
            f"omega_hidden = {alignment.omega_hidden}: above 1/2 the change grows with every hidden layer, "
            "and no learning rate is stable (eq. 23)"
        )
    r = max(Fraction(0), alignment.omega_readout - initial.readout)
    reach = {
        "embedding": r,
        "hidden": r + optimizer.alpha("hidden", max(alignment.alpha_hidden, alignment.u_hidden - r)),
        "readout": max(alignment.alpha_readout, alignment.u_readout - r),
    }
    gradient = gradient_exponents(parametrization)
    c = []
    for role in Exponents._fields:
        a, b, g = (getattr(values, role) for values in (parametrization.a, parametrization.b, gradient))
        c.append(reach[role] - a - optimizer.update(role, b, Fraction(0), g))
    rates = Exponents(*c)
    return Solution(rates, Exponents(*(-value for value in rates)), gradient, r)


def gradient_exponents(parametrization: Parametrization) -> Exponents:
    """`g`: RMS of the weight gradient is `d^{-g}` after a stable initialization (eq. 10)."""
    a, outer = parametrization.a, parametrization.initial().readout
    return Exponents(outer + a.embedding, outer + a.hidden, a.readout)


def gauge(
    parametrization: Parametrization, theta: Exponents, optimizer: OptimizerRule | str = "adam"
) -> Parametrization:
    """The same training written with `a + theta`: b falls by theta, c by the optimizer's shift of it."""
    shift = read_optimizer(optimizer).gauge_shift()
    a = Exponents(*(x + t for x, t in zip(parametrization.a, theta, strict=True)))
    b = Exponents(*(x - t for x, t in zip(parametrization.b, theta, strict=True)))
    c = parametrization.c and Exponents(*(x - shift * t for x, t in zip(parametrization.c, theta, strict=True)))
    return Parametrization(a, b, c)
