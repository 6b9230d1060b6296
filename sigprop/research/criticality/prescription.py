"""Which weights and biases keep gradients at any depth, from an input of unit mean square; none where none do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sigprop.research.criticality.networks import Architecture
from sigprop.research.criticality.points import ATTRACTS, NEUTRAL
from sigprop.research.criticality.summary import Criticality, architecture, criticality, trajectory

SHALLOW, DEEP = 100, 400
STEEPEST = 3.0
"""Exponent of depth up to which the squared gradient counts as kept: elu falls like depth^-2, silu explodes beyond any
power. Between `SHALLOW` and `DEEP` layers a factor of 1.05 per layer is depth^10 already."""


@dataclass(frozen=True)
class CriticalInit:
    """Standard deviations over sqrt(fan_in) of the weights and of the biases; squared gradient ~ depth^exponent."""

    sigma_w: float
    sigma_b: float
    exponent: float


def prescription(network: Architecture, result: Criticality) -> CriticalInit | None:
    """The first candidate that the recursion confirms; on the critical line the one that changes gradients least."""
    kept = [found for found in (_followed(network, *pair) for pair in _points(result)) if found is not None]
    if kept:
        return kept[0]
    line = [(row["sigma_w"], row["sigma_b"]) for row in result.line if row["stable"]]
    kept = [found for found in (_followed(network, *pair) for pair in line) if found is not None]
    return min(kept, key=lambda found: abs(found.exponent), default=None)


def _points(result: Criticality) -> Iterator[tuple[float, float]]:
    """Points that attract from both sides first, then those that attract from one, then a norm's critical ray."""
    steady = [point for point in result.points if point.stability in (ATTRACTS, NEUTRAL)]
    halfway = [point for point in result.points if point.stability.startswith("half-stable")]
    yield from ((point.sigma_w, point.sigma_b) for point in (*steady, *halfway))
    if result.ray is not None:
        yield 1.0, result.ray


def _followed(network: Architecture, sigma_w: float, sigma_b: float) -> CriticalInit | None:
    """Kernel and gradient iterated from unit input; None where the gradient changes faster than a power of depth."""
    path = trajectory(network, sigma_w, sigma_b, DEEP)
    first, last = (float(path.jacobian[depth - 1]) for depth in (SHALLOW, DEEP))
    if not (math.isfinite(float(path.kernel[-1])) and 0 < first < math.inf and 0 < last < math.inf):
        return None
    exponent = math.log(last / first) / math.log(DEEP / SHALLOW)
    return CriticalInit(sigma_w, sigma_b, exponent) if abs(exponent) <= STEEPEST else None


def advice(network: Architecture, result: Criticality) -> str:
    """The sentence that answers the question: how to initialize weights and biases, or what to do instead."""
    if result.everywhere:
        return "Critical everywhere: gradients change as a power of depth at most, at every std."
    found = prescription(network, result)
    if found is not None:
        return f"Initialize {_stds(found)}: the squared gradient changes like depth^{_power(found)}, from unit input."
    return (
        "No initialization keeps gradients at any depth: at every std they grow or vanish exponentially from unit "
        f"input. {_instead(network)}"
    )


def _instead(network: Architecture) -> str:
    """A norm before the activation, where that was confirmed."""
    normed = architecture(network.activation, "preactivation", network.residual)
    found = prescription(normed, criticality(normed)) if network.norm == "none" and network.keep else None
    if found is None:
        return "Use residual connections whose branches start with a norm."
    return (
        f"With a norm before the activation, initialize {_stds(found)} (--norm preactivation); or use residual "
        "connections whose branches start with a norm."
    )


def _stds(found: CriticalInit) -> str:
    biases = f"biases with std {found.sigma_b:.3g}" if found.sigma_b > 0 else "biases with 0"
    return f"weights with std {found.sigma_w:.3g}/sqrt(fan_in) and {biases}"


def _power(found: CriticalInit) -> str:
    return f"{found.exponent:.1f}".replace("-0.0", "0.0")
