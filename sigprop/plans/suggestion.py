r"""A learning rate to start with, from the responses that a plan was made with (`plans/scaling/budget.py`).

docs/do/plan.md says what it rests on. Two cases lie off by factors that no theory here gives, and take the middle of
what was swept: models whose norms follow the sums (12 optima, 0.2 to 0.9 of the theory's rate) and the depth rule
`linear` (11 optima, 1.1 to 2.3).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sigprop.errors import UnsupportedError, require

if TYPE_CHECKING:
    from sigprop.plans.plan import Plan

TARGETS = 4096
BATCH_EXPONENT = 0.25
MUON_SHARE = 1 / 32
"""Between a public recipe's 0.02 and the 0.035 of the best of this package's own runs, both of 500 steps."""
ADAM_RATE = 2.0**-7
"""The rate of response one of a layer with 128 inputs of variance one over 128."""
BESIDE_MUON = 2.0**-6
"""What AdamW takes beside Muon, for readouts, tables and vectors."""
POST, LINEAR = 0.38, 2.1
"""Middle of swept optima over the rate of response one: norms after the sums, and the depth rule `linear`."""
HIDDEN = ("hidden", "query_key", "value", "output")
MUONS = ("muon", "normuon", "muonh")
SWEPT = "nine of ten swept optima lie within a factor of {}"
BASES = {
    "adam": (2.5, SWEPT),
    "adamh": (2.5, "derived from Adam's and not swept; allow a factor of {}"),
    "muon": (2.0, "two stored recipes lie within a factor of {}; not swept"),
}


@dataclass(frozen=True)
class SuggestedLr:
    """`lr`; the factor that swept optima lay within, and what is known of them (`basis`); by role, the response to one
    step at this rate. `rates`: the same by optimizer, for `Plan.optimizers`."""

    lr: float
    within: float
    responses: dict[str, float]
    basis: str = SWEPT
    rates: dict[str, float] = field(default_factory=dict)

    def __float__(self) -> float:
        return self.lr

    def __str__(self) -> str:
        told = ", ".join(f"{role} {value:.2g}" for role, value in self.responses.items())
        basis = self.basis.format(f"{self.within:g}")
        return f"lr {self.lr:.2g} ({basis}); one step, aligned, moves what parameters put out by: {told}"

    def advise(self, old: float) -> str:
        """What to do with the rate that a model was trained at before it had the plan."""
        if old > self.lr * self.within:
            return f"{old:.3g} is too high for this plan: start at {self.lr:.2g}"
        if old < self.lr / self.within:
            return f"{old:.3g} leaves much of this plan unused: start at {self.lr:.2g}"
        return f"{old:.3g} may stay; {self.lr:.2g} is where this plan would start"


def batch_factor(targets: int) -> float:
    """What a batch of so many targets multiplies the rate by; larger ones were not swept."""
    return min(1.0, (targets / TARGETS) ** BATCH_EXPONENT)


def suggested_lr(plan: Plan, targets: int | None = None) -> SuggestedLr:
    """The rate of the plan's optimizer; refused where nothing is known of its optima."""
    targets = int(plan.meta.get("batch_tokens", TARGETS)) if targets is None else targets
    require(targets >= 1, "targets", targets, "the number of targets in a batch, one or more")
    optimizer = str(plan.meta.get("optimizer", "adamw"))
    kind = optimizer.partition(":")[0]
    known = {"adam": "adam", "adamw": "adam", "adamh": "adamh"} | dict.fromkeys(MUONS, "muon")
    if kind not in known:
        raise UnsupportedError(
            f"no learning rate is suggested for {optimizer}: the forecast was compared with swept rates of adamw and "
            "adam only; sweep the rate at a small width, the plan carries it to others"
        )
    within, basis = BASES[known[kind]]
    lr = rate_of_response_one(plan, targets) * float(plan.meta.get("horizon_factor", 1.0))
    depth = plan.meta.get("depth", "none")
    if depth not in ("none", "linear"):
        raise UnsupportedError(
            f"no learning rate is suggested with depth={depth!r}: no optimum was swept under it; theory gives {lr:.2g} "
            "without the rule; sweep around it at a small width, the plan carries what you find"
        )
    if depth == "linear":
        lr, within, basis = lr * LINEAR, 2.0, "eleven swept optima under linear lie within a factor of {}, fitted"
    if plan.meta.get("norms") == "post":
        lr, within, basis = lr * POST, 2.5, "twelve swept optima of such models lie within a factor of {}, fitted"
    responses = {role: lr * value for role, value in plan.meta["responses"].items()}
    rates = {"default": lr}
    if kind in (*MUONS, "adamh"):
        beside = ADAM_RATE if kind == "adamh" else BESIDE_MUON
        rates = {"default": beside * lr / rate_of_response_one(plan, TARGETS), kind: lr}
    return SuggestedLr(lr, within, responses, basis, rates)


def rate_of_response_one(plan: Plan, targets: int = TARGETS) -> float:
    """The rate at which an aligned step moves what hidden matrices put out by as much as they put out; with Muon, by
    the share that it is given."""
    found = plan.meta.get("responses", {})
    role = next((role for role in HIDDEN if role in found), None)
    if role is None:
        raise UnsupportedError(
            "no learning rate can be suggested: this plan knows no hidden matrix by its trace; sweep the rate"
        )
    share = MUON_SHARE if str(plan.meta.get("optimizer", "")).partition(":")[0] in MUONS else 1.0
    return share * batch_factor(targets) / found[role]
