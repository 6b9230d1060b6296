"""`classify`: is a parametrization stable, which condition fails and by how much, does it learn features.

The chain of exponents through embedding, `depth` hidden layers and readout.

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

from dataclasses import dataclass, replace
from fractions import Fraction

from sigprop.plans.exponents import (
    ALIGNMENTS,
    HALF,
    PARAMETRIZATIONS,
    Alignment,
    Exponents,
    OptimizerRule,
    Parametrization,
    read_alignment,
    read_optimizer,
    read_parametrization,
    solve,
)


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


@dataclass(frozen=True)
class Condition:
    """One stability condition; `excess` is by what power of d it fails (0: it holds)."""

    name: str
    role: str
    value: Fraction
    needed: str
    excess: Fraction

    @property
    def holds(self) -> bool:
        return self.excess == 0

    def __str__(self) -> str:
        state = "holds" if self.holds else f"fails: grows or shrinks like d^{self.excess}"
        return f"{self.name} ({self.role}): {self.value} {self.needed}, {state}"


@dataclass(frozen=True)
class Classification:
    """The verdict on one parametrization with its learning rates."""

    c: Exponents
    conditions: tuple[Condition, ...]
    regime: str
    equivalent: tuple[str, ...]
    chain: Chain

    @property
    def stable(self) -> bool:
        return all(condition.holds for condition in self.conditions)

    @property
    def failures(self) -> tuple[Condition, ...]:
        return tuple(condition for condition in self.conditions if not condition.holds)


def classify(
    parametrization: Parametrization | str,
    optimizer: OptimizerRule | str = "adam",
    alignment: Alignment | str = ALIGNMENTS["full"],
    depth: int = 2,
) -> Classification:
    """Judge (a, b, c); where `c` is not given, the largest rates that are stable for an unaligned readout."""
    parametrization = read_parametrization(parametrization)
    optimizer, alignment = read_optimizer(optimizer), read_alignment(alignment)
    c = parametrization.c or default_rates(parametrization, optimizer, alignment)
    found = chain(parametrization, c, optimizer, alignment, depth)
    conditions = (*_initial_conditions(parametrization), *_update_conditions(found))
    complete = Parametrization(parametrization.a, parametrization.b, c)
    return Classification(
        c,
        conditions,
        _regime(conditions, found),
        equivalents(complete, optimizer, alignment),
        found,
    )


def default_rates(parametrization: Parametrization, optimizer: OptimizerRule, alignment: Alignment) -> Exponents:
    """The table's rates: features move at order one whatever the readout's own alignment."""
    return solve(parametrization, optimizer, replace(alignment, omega_readout=HALF)).c


def equivalents(parametrization: Parametrization, optimizer: OptimizerRule, alignment: Alignment) -> tuple[str, ...]:
    """The table entries that a gauge move turns into this one, learning rates included."""
    names = []
    for name, entry in PARAMETRIZATIONS.items():
        rates = default_rates(entry, optimizer, alignment)
        theta = Exponents(*(x - y for x, y in zip(parametrization.a, entry.a, strict=True)))
        moved = gauge(Parametrization(entry.a, entry.b, rates), theta, optimizer)
        if (moved.a, moved.b, moved.c) == (parametrization.a, parametrization.b, parametrization.c):
            names.append(name)
    return tuple(names)


def gauge(parametrization: Parametrization, theta: Exponents, optimizer: OptimizerRule) -> Parametrization:
    """The same training written with `a + theta`: b falls by theta, c by as much of it as the optimizer's rule says
    (Stratos, section 1.2.1, for Adam)."""
    shift = 1 + optimizer.gradient - optimizer.weight
    a = Exponents(*(x + t for x, t in zip(parametrization.a, theta, strict=True)))
    b = Exponents(*(x - t for x, t in zip(parametrization.b, theta, strict=True)))
    c = parametrization.c and Exponents(*(x - shift * t for x, t in zip(parametrization.c, theta, strict=True)))
    return Parametrization(a, b, c)


def _initial_conditions(parametrization: Parametrization) -> list[Condition]:
    initial = parametrization.initial()
    return [
        Condition("initialization, a + b", "embedding", initial.embedding, "= 0", abs(initial.embedding)),
        Condition("initialization, a + b", "hidden", initial.hidden, "= 1/2", abs(initial.hidden - HALF)),
        Condition(
            "initialization, a + b",
            "readout",
            initial.readout,
            ">= 1/2",
            max(Fraction(0), HALF - initial.readout),
        ),
    ]


def _update_conditions(found: Chain) -> list[Condition]:
    places = ["embedding", *["hidden"] * (len(found.updates) - 2), "readout"]
    conditions: list[Condition] = []
    for role, r in zip(places, found.updates, strict=True):
        condition = Condition("change of the output, r", role, r, ">= 0", max(Fraction(0), -r))
        if condition not in conditions:
            conditions.append(condition)
    return conditions


def _regime(conditions: tuple[Condition, ...], found: Chain) -> str:
    if not all(condition.holds for condition in conditions):
        return "unstable"
    if found.updates[-2] == 0:
        return "feature learning"
    return "lazy" if found.updates[-1] == 0 else "frozen"
