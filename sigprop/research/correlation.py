"""Token correlation in deep stacks: where it settles, and what norms do to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy.optimize import root_scalar

from sigprop.errors import require


def relu_mlp_correlation(r: float) -> float:
    """Correlation after `W relu(W x)`: `(sqrt(1-r^2) + r (pi/2 + asin r)) / pi`."""
    return (math.sqrt(1.0 - r * r) + r * (math.pi / 2 + math.asin(r))) / math.pi


def relu_gradient_correlation(r: float) -> float:
    """Factor on the gradient's correlation through ReLU: `1/2 + asin(r)/pi`."""
    return 0.5 + math.asin(r) / math.pi


def mlp_crossing(dropout: float = 0.0) -> float:
    """The correlation above which a ReLU MLP with dropout lowers it: 0.627 at dropout 0.1."""
    require(0.0 <= dropout < 1.0, "dropout", dropout, "a probability below 1")
    if dropout == 0.0:
        return 1.0
    return _root(lambda r: (1.0 - dropout) * relu_mlp_correlation(r) - r, 0.0)


def signal_fixed_point(attention: float, mlp: float, dropout: float, weighting: str = "weighted") -> float:
    """`r*` with branch strengths `C1 = attention`, `C2 = mlp`; `weighting` is 'weighted' or 'paper'."""
    _check(attention, mlp, dropout, weighting)
    keep = 1.0 - dropout

    def excess(r: float) -> float:
        strength = attention * r if weighting == "weighted" else attention
        return (strength * keep + mlp * keep * relu_mlp_correlation(r)) / (strength + mlp) - r

    return _root(excess, 1e-9)


def gradient_fixed_point(
    attention: float, mlp: float, dropout: float, signal: float, weighting: str = "weighted"
) -> float:
    """`r_g*` for the value path alone at signal correlation `signal`.

    'paper': both branches weighted by `C1`, `C2` and attention returning `1 - p` (printed, off by `1/(1-p)`);
    'weighted': attention returns variance `C1 (1-p) r_g` with correlation 1 (corrected). The query and key paths
    lower it further (0.78 at unit score variance): iterate the blueprint for that.
    """
    _check(attention, mlp, dropout, weighting)
    keep, slope = 1.0 - dropout, relu_gradient_correlation(signal)

    def excess(r: float) -> float:
        if weighting == "paper":
            return (attention * keep + mlp * keep * slope * r) / (attention + mlp) - r
        gain = attention * keep * r
        return (gain + mlp * keep * slope * r) / (gain + mlp) - r

    return _root(excess, 1e-6)


def _check(attention: float, mlp: float, dropout: float, weighting: str) -> None:
    require(attention > 0, "attention", attention, "a positive branch strength")
    require(mlp > 0, "mlp", mlp, "a positive branch strength")
    require(0.0 <= dropout < 1.0, "dropout", dropout, "a probability below 1")
    require(weighting in ("weighted", "paper"), "weighting", weighting, "'weighted' or 'paper'")


def _root(function: Callable[[float], float], low: float) -> float:
    """The root between `low` and 1."""
    return float(root_scalar(function, bracket=(low, 1.0), method="brentq").root)


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
