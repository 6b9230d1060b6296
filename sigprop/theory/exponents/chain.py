r"""The chain of exponents through embedding, `depth` hidden layers and readout.

Activations `RMS(h_{l+1}) = d^{-p_{l+1}}`, gradients `RMS(h'_l) = d^{-q_l}`, weight gradients `d^{-g_l}`:

    p_1 = a_0 + b_0,      p_{l+1} = p_l + a_l + b_l - 1/2
    q_{L+2} = 0,          q_{L+1} = a_o + b_o,        q_l = q_{l+1} + a_l + b_l - 1/2
    g_l = a_l + q_{l+1} + p_l                         (p_0 = 0: a one-hot token)

and the change of every activation after one update, `RMS(dh_{l+1}) = d^{-r_{l+1}}`, r_{l+1} the least of

    a + b + r_l - omega   (W dh),      a + e + p_l - alpha   (dW h),      a + e + r_l - u   (dW dh)

Assumes width `d` everywhere inside, vocabulary fixed, and a constant number of steps.
Reference: Stratos, eqs. (3) to (5) (with -[[1 <= l <= L]] in (5)), (14), (18) to (20).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from sigprop.theory.exponents.alignment import Alignment
from sigprop.theory.exponents.optimizers import OptimizerRule
from sigprop.theory.exponents.parametrization import Parametrization
from sigprop.theory.exponents.roles import HALF, Exponents


@dataclass(frozen=True)
class Chain:
    """Exponents in layer order. `activations` and `updates` run over h_1 .. h_{L+2} (the logits last),
    `activation_gradients` over h'_1 .. h'_{L+2}, the other two over the weights W_0 .. W_{L+1}."""

    activations: tuple[Fraction, ...]
    activation_gradients: tuple[Fraction, ...]
    weight_gradients: tuple[Fraction, ...]
    weight_updates: tuple[Fraction, ...]
    updates: tuple[Fraction, ...]


def chain(
    parametrization: Parametrization,
    c: Exponents,
    optimizer: OptimizerRule,
    alignment: Alignment,
    depth: int = 2,
) -> Chain:
    """All exponents of one step of training with learning-rate exponents `c`."""
    roles = ["embedding", *["hidden"] * depth, "readout"]
    a, b, rate = ([getattr(values, role) for role in roles] for values in (parametrization.a, parametrization.b, c))
    p = [a[0] + b[0]]
    for layer in range(1, depth + 2):
        p.append(p[-1] + a[layer] + b[layer] - HALF)
    q = [Fraction(0), a[-1] + b[-1]]
    for layer in range(depth, 0, -1):
        q.append(q[-1] + a[layer] + b[layer] - HALF)
    q.reverse()
    inputs = [Fraction(0), *p[:-1]]
    g = [a[layer] + q[layer] + inputs[layer] for layer in range(depth + 2)]
    e = [optimizer.update(role, b[layer], rate[layer], g[layer]) for layer, role in enumerate(roles)]
    r = [a[0] + e[0]]
    for layer in range(1, depth + 2):
        r.append(_response(roles[layer], a[layer], b[layer], e[layer], p[layer - 1], r[-1], optimizer, alignment))
    return Chain(tuple(p), tuple(q), tuple(g), tuple(e), tuple(r))


def _response(
    role: str,
    a: Fraction,
    b: Fraction,
    e: Fraction,
    p: Fraction,
    r: Fraction,
    optimizer: OptimizerRule,
    alignment: Alignment,
) -> Fraction:
    omega, alpha, u = (getattr(alignment, f"{kind}_{role}") for kind in ("omega", "alpha", "u"))
    alpha, u = optimizer.alpha(role, alpha), optimizer.alpha(role, u)
    return min(a + b + r - omega, a + e + p - alpha, a + e + r - u)
