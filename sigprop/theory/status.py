"""How much a predicted number can be trusted, and why."""

from __future__ import annotations

from dataclasses import dataclass
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
    """A status with its reason."""

    status: Status = Status.EXACT
    reason: str = ""

    def join(self, other: Evidence) -> Evidence:
        """The worse of the two; the earlier reason stays on a tie."""
        return other if other.status > self.status else self


EXACT = Evidence()
