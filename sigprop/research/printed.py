r"""A paper's printed formula beside the corrected one and beside real draws.

    compare_formula("softmax", count=64, variance=1.0)
    compare_formula("attention", tokens=256, width=256, head=64, correlation=0.3, variance=1.0)
    compare_formula("channels", width=64, correlation=0.4)

Printed are dslm's Table 14 and 15 (softmax), B.8 (one head before the value projection) and Table 18 (covariance of the
channels of a token). With `n` scores of variance
`s` and `z = n/(n-1)` the softmax has there

    Var p = (e^{sz} - 1) e^{2sz} / ((n-1) e^s + 1)^2        E g_in^2 = (Var p + 1/n^2) E g_out^2

and attention over `L` tokens of variance one and correlation `r`, raw score variance `s0`, `s = (1-r) s0`, dropout `p`,

    Var o = [(1-r)^2 (L-1) s0/d + e^s (4 (1-r)^2 s0/d + 1-r) / (1-p)] / L + r
    Cov o = r + [2 (1-r)^2 s0/d + (1-r)] / L
    Var g = [1 + (L-1) rg (1-p)] / (L (1-p))                Cov g = [1 + (L-1) rg] / L

The printed gradients leave out the paths through queries and keys and what a softmax does to a common gradient.
Channels of variance one and correlation `r` have after a linear map 0, after LayerNorm over `d` of them -1/(d-1) and

    Cov relu = (1/4 + asin r / 2 pi) r - (1 - sqrt(1 - r^2)) / 2 pi
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sigprop.errors import UnknownNameError, require
from sigprop.grid import Grid
from sigprop.theory import Exchangeable, Gradient, Signal
from sigprop.theory.activations import get
from sigprop.theory.ops.attention import Attention
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.softmax import gradient_factor, overlap


@dataclass(frozen=True)
class FormulaRow:
    """One quantity: as printed, as corrected, and measured over draws with its standard error."""

    quantity: str
    printed: float
    corrected: float
    measured: float
    error: float


@dataclass(frozen=True)
class FormulaComparison:
    """A formula at one setting."""

    name: str
    rows: tuple[FormulaRow, ...]

    def __str__(self) -> str:
        lines = [
            [row.quantity, f"{row.printed:.4g}", f"{row.corrected:.4g}", f"{row.measured:.4g} ± {row.error:.1g}"]
            for row in self.rows
        ]
        return str(Grid([self.name, "printed", "corrected", "measured"], lines))


def compare_formula(name: str, draws: int = 64, seed: int = 0, **setting: float) -> FormulaComparison:
    """A formula of `FORMULAS` at one setting, with `draws` real draws beside it."""
    if name not in FORMULAS:
        raise UnknownNameError("formula", name, FORMULAS)
    require(draws >= 2, "draws", draws, "at least 2: their scatter gives the standard error")
    generator = torch.Generator().manual_seed(seed)
    printed, corrected, draw = FORMULAS[name](generator, **setting)
    found = torch.tensor([draw() for _ in range(draws)], dtype=torch.float64)
    means, errors = found.mean(0).tolist(), (found.std(0) / math.sqrt(draws)).tolist()
    return FormulaComparison(
        name,
        tuple(
            FormulaRow(key, printed[key], corrected[key], mean, error)
            for key, mean, error in zip(printed, means, errors, strict=True)
        ),
    )


Formula = tuple[dict[str, float], dict[str, float], Callable[[], list[float]]]
"""Printed and corrected values by quantity, and a function that draws the quantities once, in the same order."""


def _softmax(generator: torch.Generator, count: int = 64, variance: float = 1.0, rho: float = 0.0) -> Formula:
    """`rho`: correlation of the gradient along the softmax axis."""
    require(count >= 2 and variance >= 0.0 and 0.0 <= rho <= 1.0, "setting", (count, variance, rho), "n >= 2, s >= 0")
    inflated = variance * count / (count - 1)
    spread = math.expm1(inflated) * math.exp(2 * inflated) / ((count - 1) * math.exp(variance) + 1) ** 2
    n, s = torch.tensor(float(count), dtype=torch.float64), torch.tensor(variance, dtype=torch.float64)
    printed = {"variance of weights": spread, "gradient, mean square": spread + count**-2.0}
    corrected = {
        "variance of weights": float(overlap(n, s) / n) - count**-2.0,
        "gradient, mean square": float(gradient_factor(n, s, rho)),
    }

    def draw() -> list[float]:
        weights = (_normal(generator, 256, count) * math.sqrt(variance)).softmax(-1)
        given = math.sqrt(rho) * _normal(generator, 256, 1) + math.sqrt(1 - rho) * _normal(generator, 256, count)
        back = weights * (given - (weights * given).sum(-1, keepdim=True))
        return [float(weights.var()), float(back.square().mean())]

    return printed, corrected, draw


def _attention(
    generator: torch.Generator,
    tokens: int = 128,
    width: int = 128,
    head: int = 64,
    correlation: float = 0.3,
    grad_correlation: float = 0.3,
    variance: float = 1.0,
    dropout: float = 0.0,
) -> Formula:
    """`variance`: of the raw scores; tokens have variance one, values are the tokens themselves."""
    r, rg, live = correlation, grad_correlation, (1 - correlation) ** 2 * variance / width
    left = 1 - correlation
    own = math.exp(left * variance) * (4 * live + left) / (1 - dropout)
    keys = ("variance", "covariance", "gradient variance", "gradient covariance")
    printed = (
        ((tokens - 1) * live + own) / tokens + r,
        r + (2 * live + left) / tokens,
        (1 + (tokens - 1) * rg * (1 - dropout)) / (tokens * (1 - dropout)),
        (1 + (tokens - 1) * rg) / tokens,
    )
    std = variance**0.25 / width**0.5
    signal = Signal(_pair(1.0, r, tokens), torch.zeros((), dtype=torch.float64), width)
    op, projected = Attention(head, shared_width=width, dropout=dropout), Linear(width, head, std**2).forward(signal)
    out = op.forward(projected, projected, signal)
    upstream = Gradient(_pair(1.0, rg, tokens))
    query, key, value = (item.kernel for item in op.backward(upstream, out, projected, projected, signal))
    back = value + (query + key).scale(std**2 * width)
    corrected = (*out.kernel.values.tolist(), *back.values.tolist())

    def draw() -> list[float]:
        inputs, given = (_tokens(generator, tokens, width, value) for value in (r, rg))
        inputs.requires_grad_()
        queries, keys_ = (inputs @ (_normal(generator, width, head) * std) for _ in range(2))
        weights = (queries @ keys_.T / math.sqrt(head)).softmax(-1)
        kept = torch.rand(weights.shape, generator=generator, dtype=torch.float64) >= dropout
        output = weights * kept / (1 - dropout) @ inputs
        (gradient,) = torch.autograd.grad(output, inputs, given)
        return [*_second_moments(output.detach()), *_second_moments(gradient)]

    return dict(zip(keys, printed, strict=True)), dict(zip(keys, corrected, strict=True)), draw


def _channels(generator: torch.Generator, width: int = 64, correlation: float = 0.4) -> Formula:
    """Channels that share a part: what is left of their covariance."""
    require(width >= 2 and 0.0 <= correlation <= 1.0, "setting", (width, correlation), "d >= 2, r from 0 to 1")
    r = correlation
    relu = (0.25 + math.asin(r) / (2 * math.pi)) * r - (1 - math.sqrt(1 - r * r)) / (2 * math.pi)
    printed = {"after ReLU": relu, "after LayerNorm": -1 / (width - 1), "after a linear map": 0.0}
    one = torch.ones((), dtype=torch.float64)
    mean, cross = RELU.mean(one), RELU.cross_moment(one, one, torch.tensor(r, dtype=torch.float64))
    corrected = printed | {"after ReLU": float(cross - mean**2)}

    def draw() -> list[float]:
        tokens = _tokens(generator, width, 256, r).T
        norm = torch.nn.functional.layer_norm(tokens, (width,), eps=0.0)
        mapped = tokens @ (_normal(generator, width, width) / math.sqrt(width))
        found = zip((tokens.relu(), norm, mapped), (float(mean), 0.0, 0.0), strict=True)
        return [_second_moments((values - center).T)[1] for values, center in found]

    return printed, corrected, draw


FORMULAS: dict[str, Callable[..., Formula]] = {"softmax": _softmax, "attention": _attention, "channels": _channels}
RELU = get("relu")


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _tokens(generator: torch.Generator, tokens: int, width: int, correlation: float) -> Tensor:
    common, own = _normal(generator, 1, width), _normal(generator, tokens, width)
    return math.sqrt(correlation) * common + math.sqrt(1 - correlation) * own


def _pair(same: float, different: float, tokens: int) -> Exchangeable:
    return Exchangeable(torch.tensor([same, different], dtype=torch.float64), tokens)


def _second_moments(x: Tensor) -> tuple[float, float]:
    """Average product of a token with itself and with another one."""
    tokens, channels = x.shape
    same = x.square().mean()
    different = (x.sum(0).square().sum() / channels - tokens * same) / (tokens * (tokens - 1))
    return float(same), float(different)
