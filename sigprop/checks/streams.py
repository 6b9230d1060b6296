"""The residual streams of a model as lists of sites in depth, and laws fitted to what lies along them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from torch import nn

from sigprop.compat import ConvNd
from sigprop.results import Profile, SiteRow
from sigprop.structure import Structure

CHAIN = (nn.Linear, ConvNd)


@dataclass(frozen=True)
class Stream:
    """Sites in order of depth: outputs of blocks, or of the matrices of a chain without residual branches.

    `even`: all of one width, so that gradients of entries can be compared.
    """

    names: tuple[str, ...]
    residual: bool
    even: bool = True

    def rows(self, profile: Profile | None) -> list[SiteRow]:
        """The rows that a profile has of it."""
        if profile is None:
            return []
        known = {row.name: row for row in profile.sites}
        found = (known.get(name) or known.get(f"{name}[0]") for name in self.names)
        return [row for row in found if row is not None]

    def values(self, profile: Profile | None, column: str) -> list[float]:
        return [getattr(row, column) for row in self.rows(profile)]


@dataclass(frozen=True)
class StreamLaw:
    """How a quantity changes along the stream: `exponential` (rate per block) or `power` (exponent of depth)."""

    kind: str
    rate: float
    ratio: float

    def __str__(self) -> str:
        if self.kind == "exponential":
            return f"{self.rate:.3g} times per block"
        return f"as depth^{self.rate:.2g}"


def find_streams(structure: Structure | None, model: nn.Module, profile: Profile | None) -> list[Stream]:
    """Blocks (visits, where one is reused) joined by the residual stream that they add to, those of one shape: where a
    stage halves an image, the gradient of an entry changes with their number. Else the chain of equally wide matrices;
    none where the structure is not known."""
    if structure is None:
        return []
    if any(junction.block for junction in structure.junctions):
        joined: dict[tuple, list[str]] = {}
        for junction, spot in zip(structure.junctions, structure.sums, strict=True):
            if junction.block:
                joined.setdefault((junction.stream, tuple(spot.total.shape)), []).append(junction.block)
        found = [list(dict.fromkeys(names)) for names in joined.values()]
        return [Stream(tuple(names), True) for names in found if len(names) > 1]
    if structure.junctions:
        return []
    return _chain(dict(model.named_modules()), profile)


def _chain(modules: Mapping[str, nn.Module], profile: Profile | None) -> list[Stream]:
    """The longest chain between two changes of an image's size; all of it where widths differ, for variances alone."""
    if profile is None:
        return []
    runs: list[list[str]] = [[]]
    for row in profile.sites:
        module = modules.get(row.name)
        if _is_smaller(module):
            runs.append([])
        if isinstance(module, CHAIN):
            runs[-1].append(row.name)
    widths = {name: modules[name].weight.shape[0] for run in runs for name in run}  # type: ignore[union-attr]
    chains = [
        tuple(name for name in run if widths[name] == Counter(widths[name] for name in run).most_common(1)[0][0])
        for run in runs
    ]
    longest = max(chains, key=len)
    if len(longest) > 2:
        return [Stream(longest, False)]
    whole = tuple(chain(*runs))[:-1]  # the last makes the output, and may start small on purpose
    longest = max((*(tuple(name for name in run if name in whole) for run in runs), whole), key=len)
    return [Stream(longest, False, even=False)] if len(longest) > 2 else []


def _is_smaller(module: nn.Module | None) -> bool:
    """Whether a module's output has fewer positions than its input: pooling, and convolutions with a stride."""
    stride = getattr(module, "stride", 1)
    return any(step != 1 for step in stride) if isinstance(stride, tuple) else stride != 1


def fitted_law(values: Sequence[float]) -> StreamLaw:
    """The better of an exponential and a power law of depth, by least squares of the logarithm."""
    logs = [math.log(value) for value in values]
    places = list(range(1, len(values) + 1))
    slope, left = _fit([float(x) for x in places], logs)
    power, right = _fit([math.log(x) for x in places], logs)
    total = values[-1] / values[0]
    return StreamLaw("exponential", math.exp(slope), total) if left <= right else StreamLaw("power", power, total)


def _fit(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Slope and residual of a straight line."""
    centre, height = sum(x) / len(x), sum(y) / len(y)
    spread = sum((item - centre) ** 2 for item in x) or 1.0
    slope = sum((a - centre) * (b - height) for a, b in zip(x, y, strict=True)) / spread
    return slope, sum((b - height - slope * (a - centre)) ** 2 for a, b in zip(x, y, strict=True))


def usable(values: Sequence[float]) -> bool:
    """Whether a law can be fitted: three and more numbers, all finite and above zero."""
    return len(values) > 2 and all(math.isfinite(value) and value > 0 for value in values)
