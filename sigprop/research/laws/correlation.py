"""Where token correlation settles in a deep Transformer, for the signal and for the gradient (dslm App. F).

One layer mixes an attention branch of strength `C1` (output variance `C1 r`, correlation `1 - p` after dropout)
and a ReLU MLP branch of strength `C2`. Three versions are kept because they differ and the paper uses the first:

- `paper`: both branches weighted by `C1` and `C2`;
- `weighted`: the attention branch weighted by its true variance `C1 r`;
- the full chain, with finite query/key scale: iterate a `Transformer` blueprint.
"""

from __future__ import annotations

import math
from collections.abc import Callable

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
