r"""Whether what reads a tensor undoes its scale, however that is spelt.

A step is homogeneous of degree p where `f(c x) = c^p f(x)` for every c > 0. Degrees follow from those of the arguments:
they add in products, subtract in quotients, must agree in sums, pass through linear steps without a bias, halve under a
root; a norm, spelt out or not, is where they come to 0. A small number that is added or clamped at is an epsilon. What
has no degree (an activation, a bias) ends the search: the scale is not undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from sigprop.capture.functions import MOVES
from sigprop.capture.record import Field, Record, Statistic, Weight, leaves
from sigprop.capture.roles import CONTRACTIONS

EPSILON = 1e-3
NORMS = ("layer_norm", "rms_norm", "group_norm", "instance_norm", "normalize", "cosine_similarity")
PRODUCTS = ("mul", "rmul", "multiply", "matmul", "mm", "bmm", "mv", "einsum", "linear", "conv1d", "conv2d", "conv3d")
QUOTIENTS = ("div", "truediv", "true_divide", "divide")
INVERSES = ("rdiv", "rtruediv")
SUMS = ("add", "radd", "sub", "rsub", "subtract", "cat", "stack", "maximum", "minimum", "clamp", "clamp_min")
POWERS = {"sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0, "square": 2.0, "var": 2.0}
KEPT = MOVES.union(
    ("neg", "abs", "relu", "dropout", "mean", "sum", "std", "norm", "vector_norm", "amax"),
    ("avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "pad", "masked_fill", "where"),
)


class Readers:
    """Who uses every field, also through statistics of it that a rule keeps out of the graph."""

    def __init__(self, fields: Iterable[Field]):
        self.of: dict[Field, list[Field]] = {}
        for reader in fields:
            for item in dict.fromkeys(arguments(reader)):
                if isinstance(item, Field):
                    self.of.setdefault(item, []).append(reader)

    def undoing(
        self,
        start: Field,
        ends: Callable[[Field], bool] = lambda item: False,
        within: set[Field] | None = None,
        norms: Callable[[Field], bool] = lambda item: False,
        matrices: bool = True,
    ) -> list[Field] | None:
        """The fields at which the scale of `start` is gone; None where it is not undone everywhere.

        `ends`: steps at which the search need not go on. `within`: readers that count. `norms`: further steps that
        undo a scale. `matrices`: whether a scaled tensor may pass through a matrix.
        """
        degrees = Degrees(start, norms, matrices)
        waiting = self._readers(start, within)
        found: list[Field] = []
        seen: set[Field] = set()
        if not waiting:
            return None
        while waiting:
            reader = waiting.pop()
            if reader in seen or ends(reader):
                continue
            seen.add(reader)
            degree, readers = degrees.of(reader), self._readers(reader, within)
            unread = not readers and reader.statistic is None
            if degree is None or (degree != 0.0 and unread):
                return None
            if degree == 0.0:
                found.append(reader)
            else:
                waiting |= readers
        return sorted(found, key=lambda item: item.number)

    def _readers(self, item: Field, within: set[Field] | None) -> set[Field]:
        return {reader for reader in self.of.get(item, []) if within is None or reader in within}


def arguments(item: Field) -> list[Record]:
    """The records that a field was made from."""
    called = item.call.records if item.call is not None else []
    behind = [item.statistic.field] if item.statistic is not None and item.root is None else []
    return [*called, *item.inputs, *behind]


def made_between(start: Field, ends: Iterable[Field]) -> set[Field]:
    """Everything that some fields were made from after `start`."""
    found: set[Field] = set()
    waiting = list(ends)
    while waiting:
        item = waiting.pop()
        if item not in found and item.number > start.number:
            found.add(item)
            waiting += [inner for inner in arguments(item) if isinstance(inner, Field)]
    return found


class Degrees:
    """Degrees of fields in the scale of one of them; None for what has none."""

    def __init__(self, start: Field, norms: Callable[[Field], bool], matrices: bool):
        self.start, self.norms, self.matrices = start, norms, matrices
        self.known: dict[Field, float | None] = {start: 1.0}

    def of(self, item: Any) -> float | None:
        if not isinstance(item, Field) or item.number < self.start.number:
            return 0.0
        if item not in self.known:
            self.known[item] = 0.0
            self.known[item] = self._made(item)
        return self.known[item]

    def _made(self, item: Field) -> float | None:
        behind = [self.of(record) for record in arguments(item)]
        if not any(behind) and None not in behind:
            return 0.0
        if item.call is None or None in behind:
            return None
        name, given = item.call.name, leaves((item.call.args, item.call.kwargs))
        if name in NORMS or self.norms(item):
            return 0.0
        if item.statistic is not None and item.root is None:
            power = _power(item.statistic)
            return None if power is None else power * (self.of(item.statistic.field) or 0.0)
        own = [self.of(value) or 0.0 for value in given if isinstance(value, Field)]
        if name in PRODUCTS:
            weights = [value for value in given if isinstance(value, Weight)]
            stops = name in CONTRACTIONS and (len(weights) > 1 or (weights and not self.matrices))
            return None if stops else sum(own)
        if name in QUOTIENTS:
            return (self.of(given[0]) or 0.0) - (self.of(given[1]) or 0.0)
        if name in INVERSES:
            return (self.of(given[1]) or 0.0) - (self.of(given[0]) or 0.0)
        if name in SUMS:
            return _agreed(given, own)
        if name in POWERS:
            return POWERS[name] * own[0]
        if name == "pow" and isinstance(given[1], (int, float)):
            return own[0] * given[1]
        return own[0] if name in KEPT and len(set(own)) == 1 else None


def _agreed(given: list[Any], own: list[float]) -> float | None:
    constant = any(isinstance(value, Weight) for value in given)
    large = any(isinstance(value, float) and abs(value) > EPSILON for value in given)
    agree = len(set(own)) == 1 and not constant and not large
    return own[0] if agree else None


def _power(statistic: Statistic) -> float | None:
    """The degree of an average's function, from its values at a few numbers and at twice them."""
    numbers = torch.tensor([-1.7, -0.6, 0.8, 2.3], dtype=torch.float64)
    once, twice = statistic.function(numbers), statistic.function(2 * numbers)
    if not bool((once != 0).all()):
        return None
    powers = torch.log2((twice / once).abs())
    return round(float(powers.mean()), 6) if float(powers.std()) < 1e-6 else None
