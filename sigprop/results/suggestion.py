r"""A learning rate to start with, from the responses that a plan was made with (`scaling/responses.py`).

The rate at which the update of a hidden matrix, aligned with what it reads, moves its output by as much as the matrix
puts out: a response of one, for a batch of 4,096 targets (tokens with a label, images). Fewer targets make gradients
noisier, and the swept rates fall like the fourth root of their number. No constant is fitted to the models compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sigprop.errors import UnsupportedError, require

if TYPE_CHECKING:
    from sigprop.results.plan import Plan

TARGETS = 4096
BATCH_EXPONENT = 0.25
WITHIN = 2.5
HIDDEN = ("hidden", "query_key", "value", "output")
TRIED = ("adamw", "adam")


@dataclass(frozen=True)
class SuggestedRate:
    """`lr`; the factor that nine of ten swept optima lay within; by role, the response to one step at this rate."""

    lr: float
    within: float
    responses: dict[str, float]

    def __float__(self) -> float:
        return self.lr

    def __str__(self) -> str:
        told = ", ".join(f"{role} {value:.2g}" for role, value in self.responses.items())
        return (
            f"lr {self.lr:.2g} (nine of ten swept optima lie within a factor of {self.within:g}); "
            f"one step, aligned, moves what parameters put out by: {told}"
        )


def batch_factor(targets: int) -> float:
    """What a batch of so many targets multiplies the rate by; larger ones were not swept."""
    return min(1.0, (targets / TARGETS) ** BATCH_EXPONENT)


def suggested_lr(plan: Plan, targets: int = TARGETS) -> SuggestedRate:
    """The rate of response one; refused where it was not compared with swept optima, or is not near them."""
    require(targets >= 1, "targets", targets, "the number of targets in a batch, one or more")
    optimizer = str(plan.meta.get("optimizer", "adamw"))
    if optimizer not in TRIED:
        raise UnsupportedError(
            f"no learning rate is suggested for {optimizer}: the forecast was compared with swept rates of "
            f"{' and '.join(TRIED)} only; sweep the rate at a small width, the plan carries it to others"
        )
    lr = rate_of_response_one(plan, targets)
    depth = plan.meta.get("depth", "none")
    if depth != "none":
        raise UnsupportedError(
            f"no learning rate is suggested with depth={depth!r}: under 'linear', the rule that was swept, optima of "
            f"16 and more layers lay 1.9 to 2.5 times above the rate that theory gives, here {lr:.2g}; sweep upwards "
            "from it at a small width, the plan carries what you find"
        )
    if plan.meta.get("norms") == "post":
        raise UnsupportedError(
            "no learning rate is suggested for models whose norms follow the sums: all optima that were swept for such "
            f"models lay below {lr:.2g}, most by more than a factor of two; sweep downwards from it at a small width, "
            "the plan carries what you find"
        )
    return SuggestedRate(lr, WITHIN, {role: lr * value for role, value in plan.meta["responses"].items()})


def rate_of_response_one(plan: Plan, targets: int = TARGETS) -> float:
    """The rate at which an aligned step moves what hidden matrices put out by as much as they put out."""
    found = plan.meta.get("responses", {})
    role = next((role for role in HIDDEN if role in found), None)
    if role is None:
        raise UnsupportedError(
            "no learning rate can be suggested: this plan knows no hidden matrix by its trace; sweep the rate"
        )
    return batch_factor(targets) / found[role]
