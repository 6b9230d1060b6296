"""`classify`: is a parametrization stable, which condition fails and by how much, does it learn features."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from sigprop.theory.exponents.alignment import ALIGNMENTS, Alignment
from sigprop.theory.exponents.chain import Chain, chain
from sigprop.theory.exponents.optimizers import OptimizerRule
from sigprop.theory.exponents.parametrization import PARAMETRIZATIONS, Parametrization
from sigprop.theory.exponents.roles import HALF, Exponents
from sigprop.theory.exponents.solve import as_alignment, as_optimizer, as_parametrization, gauge, solve


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
    parametrization = as_parametrization(parametrization)
    optimizer, alignment = as_optimizer(optimizer), as_alignment(alignment)
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
    return solve(parametrization, optimizer, unaligned_readout(alignment)).c


def unaligned_readout(alignment: Alignment) -> Alignment:
    return Alignment(**{**vars(alignment), "omega_readout": HALF})


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
