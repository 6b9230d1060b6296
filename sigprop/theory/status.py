"""How much a predicted number can be trusted, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum


class Status(IntEnum):
    """Ordered from best to worst; along a chain the worst one wins."""

    EXACT = 0
    ASYMPTOTIC = 1
    QUADRATURE = 2
    SAMPLED = 3
    FITTED = 4
    ASSUMED = 5

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Evidence:
    """A status with its reason, and what the neglected orders of depth over width may add to its error.

    `doubt` is that part of the corrections of first order that the next ones may bring (see
    `corrections.finite_width`): it grows along every path, with depth over width.
    """

    status: Status = Status.EXACT
    reason: str = ""
    doubt: float = 0.0

    def join(self, other: Evidence) -> Evidence:
        """The worse of the two; the earlier reason stays on a tie."""
        worse = other if other.status > self.status else self
        doubt = max(self.doubt, other.doubt)
        return worse if doubt == worse.doubt else replace(worse, doubt=doubt)

    def doubted(self, more: float) -> Evidence:
        """With so much more left open."""
        return replace(self, doubt=self.doubt + more) if more else self


EXACT = Evidence()
