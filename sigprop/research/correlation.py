"""The setting of preln as exact recursions: the stream of Pre-LN and the gradients of both placements."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sigprop.errors import require


def relu_mlp_correlation(r: float) -> float:
    """Correlation after `W relu(W x)`: `(sqrt(1-r^2) + r (pi/2 + asin r)) / pi`."""
    return (math.sqrt(1.0 - r * r) + r * (math.pi / 2 + math.asin(r))) / math.pi


@dataclass(frozen=True)
class NormRecursion:
    """Per layer, from the input on: mean square of the stream and its token correlation."""

    second_moment: list[float]
    correlation: list[float]


def pre_norm_recursion(layers: int, tokens: int, correlation: float) -> NormRecursion:
    """`E|x_{l+1}|^2 = E|x_l|^2 + d (rho_l + 1/2)`, `rho = r + (1-r)/n`, with `|x_0|^2 = d`.

    The equality sharpens the bounds `(1 + l/2) d <= E|x_l|^2 <= (1 + 3l/2) d`, which it implies.
    """
    require(layers >= 1, "layers", layers, "at least 1")
    require(tokens >= 1, "tokens", tokens, "at least 1")
    require(0.0 <= correlation <= 1.0, "correlation", correlation, "between 0 and 1")
    level, shared = 1.0, correlation
    recursion = NormRecursion([level], [correlation])
    for _ in range(layers):
        rho = _average(shared / level, tokens)
        level, shared = level + rho, shared + rho
        level, shared = level + 0.5, shared + 0.5 * relu_mlp_correlation(min(shared / level, 1.0))
        recursion.second_moment.append(level)
        recursion.correlation.append(shared / level)
    return recursion


def last_layer_gradient(width: int, layers: int, placement: str, tokens: int = 1, correlation: float = 0.0) -> float:
    """Expected Frobenius norm of the last MLP weight's gradient, one token, unit loss gradient.

    Post-LN `sqrt(d/3)` at any depth; Pre-LN `sqrt(d / (2 k_L))`, `k_L` the final mean square: falls like `L^-1/2`.
    """
    require(placement in ("pre", "post"), "placement", placement, "pre or post")
    if placement == "post":
        return math.sqrt(width / 3.0)
    level = pre_norm_recursion(layers, tokens, correlation).second_moment[-1]
    return math.sqrt(width / (2.0 * level))


def post_norm_gradient_factor(signal: float, gradient: float, tokens: int) -> float:
    """Squared gradient norm per Post-LN layer, `(1 + rho_g)/(1 + rho_x)`: not the often quoted 2/3."""
    return (1.0 + _average(gradient, tokens)) / (1.0 + _average(signal, tokens))


def _average(correlation: float, tokens: int) -> float:
    return correlation + (1.0 - correlation) / tokens
