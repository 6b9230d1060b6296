"""What the entries of every parameter say about the law they were drawn from.

A tensor in memory is sampled evenly (all of it when small); extremes and not-a-numbers are looked for in every entry.
A parameter on the meta device has the law that its builder recorded, which is exact.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.checks.thresholds import limit
from sigprop.compat import ConvNd, ConvTransposeNd, own_parameters
from sigprop.distributions import INDEPENDENT, ORTHOGONAL, distribution

SAMPLE = 1 << 17
QUANTILE_SAMPLE = 1 << 14
NUMBER = re.compile(r"\d+")
FUSED = re.compile(r"qkv|c_attn|in_proj_weight|query_key_value|Wqkv", re.IGNORECASE)
KURTOSIS = {"normal": 3.0, "truncated normal": 2.37, "uniform": 1.8}
TRANSPOSED = ("Conv1D",)


@dataclass(frozen=True)
class Draw:
    """Sample moments of one parameter (or of a named part of it) and what they are known to.

    `scale` is the standard deviation by the quartiles (those of a normal law), which a few wild entries do not move.
    `largest` is the largest distance from the mean over all entries, `smallest` the smallest absolute value that is not
    zero, both in that unit. `total` is the number of entries, `count` that of the sample.
    `recorded`: no sample but the law itself; `independent`: its entries are draws, not the values of a formula.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    total: int
    count: int
    mean: float
    std: float
    scale: float
    kurtosis: float
    largest: float
    smallest: float
    zeros: float
    non_finite: int
    digest: str
    fan_in: int = 0
    fan_out: int = 0
    recorded: bool = False
    independent: bool = True
    dtype: torch.dtype = torch.float32
    parts: tuple[Draw, ...] = field(default=(), repr=False)

    @property
    def is_random(self) -> bool:
        return self.std > 0 and math.isfinite(self.std) and self.zeros < 0.5

    @property
    def is_matrix(self) -> bool:
        return len(self.shape) > 1 and min(self.shape[:2]) > 1

    @property
    def family(self) -> str:
        """The name with its numbers left open: the same parameter of other layers and experts."""
        return NUMBER.sub("*", self.name)

    @property
    def log_std_error(self) -> float:
        """Standard error of log std: sqrt((kurtosis - 1) / 4 n)."""
        return math.sqrt(max(self.kurtosis - 1.0, 0.2) / (4.0 * self.count)) if self.count else math.inf

    @property
    def law(self) -> str:
        """`normal`, `truncated normal`, `uniform`, `constant`, or `other`, by the kurtosis and its standard error."""
        if not self.is_random:
            return "constant" if self.std == 0 else "other"
        nearest = min(KURTOSIS, key=lambda name: abs(KURTOSIS[name] - self.kurtosis))
        allowed = 0.3 if nearest != "uniform" else 0.1
        return nearest if abs(KURTOSIS[nearest] - self.kurtosis) < allowed + 12 / math.sqrt(self.count) else "other"


@dataclass(frozen=True)
class DrawnParameters:
    """All parameters by name, and the families that they form."""

    rows: dict[str, Draw]

    def __iter__(self) -> Iterator[Draw]:
        return iter(self.rows.values())

    def __getitem__(self, name: str) -> Draw:
        return self.rows[name]

    def families(self) -> dict[tuple[str, tuple[int, ...]], list[Draw]]:
        """Parameters alike up to numbers in their names, of one shape, in order."""
        found: dict[tuple[str, tuple[int, ...]], list[Draw]] = {}
        for row in self:
            found.setdefault((row.family, row.shape), []).append(row)
        return found

    @property
    def matrices(self) -> list[Draw]:
        """Random matrices with enough entries to say something."""
        few = limit("fewest_entries")
        return [row for row in self if row.is_matrix and row.is_random and row.total >= few and not row.non_finite]

    @property
    def recorded(self) -> bool:
        """Whether these are laws, not samples."""
        return any(row.recorded for row in self)


def read_draws(model: nn.Module) -> DrawnParameters:
    """Look at every parameter once."""
    rows: dict[str, Draw] = {}
    seen: set[int] = set()
    for path, module in model.named_modules():
        for leaf, parameter in own_parameters(module).items():
            if parameter is None or id(parameter) in seen or isinstance(parameter, nn.UninitializedParameter):
                continue
            seen.add(id(parameter))
            if parameter.is_floating_point() and parameter.numel():
                name = f"{path}.{leaf}" if path else leaf
                rows[name] = _draw(name, parameter, module, leaf)
    return DrawnParameters(rows)


def fans(module: Any, leaf: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Fan in and fan out as the module multiplies; zeros where that cannot be told from the module."""
    if leaf != "weight" or len(shape) < 2:
        return 0, 0
    field = math.prod(shape[2:])
    if isinstance(module, nn.Linear):
        return shape[1], shape[0]
    if type(module).__name__ in TRANSPOSED:
        return shape[0], shape[1]
    if isinstance(module, ConvTransposeNd):
        return shape[0] * field // module.groups, shape[1] * field
    if isinstance(module, ConvNd):
        return shape[1] * field, shape[0] * field // module.groups
    return 0, 0


def _draw(name: str, parameter: Tensor, module: nn.Module, leaf: str) -> Draw:
    shape = tuple(parameter.shape)
    fan_in, fan_out = fans(module, leaf, shape)
    kind = type(module).__name__
    if parameter.is_meta:
        return _recorded(name, parameter, kind, fan_in, fan_out)
    values = parameter.detach()
    if isinstance(module, nn.Embedding) and module.padding_idx is not None and len(values) > 1:
        keep = torch.arange(len(values), device=values.device) != module.padding_idx
        values = values[keep]
    made = moments(name, values, kind, fan_in, fan_out, shape)
    return _with_parts(made, values, module, leaf)


def moments(
    name: str, values: Tensor, kind: str = "", fan_in: int = 0, fan_out: int = 0, shape: tuple[int, ...] | None = None
) -> Draw:
    """The moments of a sample of the entries, extremes over all of them."""
    flat = values.reshape(-1)
    step = max(1, flat.numel() // SAMPLE) | 1
    sample = flat[::step].double().cpu()
    low, high = (float(item) for item in flat.aminmax())
    bad = 0 if math.isfinite(low) and math.isfinite(high) else int((~flat.isfinite()).sum())
    finite = sample[sample.isfinite()] if bad else sample
    mean = float(finite.mean()) if len(finite) else math.nan
    centred = finite - mean
    variance = float(centred.square().mean()) if len(finite) else math.nan
    constant = not bad and low == high
    std = 0.0 if constant else math.sqrt(variance) if variance >= 0 else math.nan
    sizes = finite.abs()
    nonzero = sizes[sizes > 0]
    scale = _quartile_scale(finite) or std
    spread = std if std and math.isfinite(std) else 1.0
    return Draw(
        name,
        tuple(values.shape) if shape is None else shape,
        kind,
        flat.numel(),
        len(finite),
        low if constant else mean,
        std,
        scale,
        float((centred / spread).pow(4).mean()) if std and len(finite) else 0.0,
        max(abs(low), abs(high)) / scale if scale and not bad else 0.0 if not bad else math.inf,
        float(nonzero.min()) / scale if len(nonzero) and scale else math.inf,
        float((sizes == 0).double().mean()) if len(finite) else 0.0,
        bad,
        _digest(sample),
        fan_in,
        fan_out,
        dtype=values.dtype,
    )


def _quartile_scale(sample: Tensor) -> float:
    """Half the distance of the quartiles, as the standard deviation of the normal law that has it."""
    few = sample[:: max(1, len(sample) // QUANTILE_SAMPLE)].sort().values
    if len(few) < 4:
        return 0.0
    return float(few[3 * len(few) // 4] - few[len(few) // 4]) / 1.349


def _digest(sample: Tensor) -> str:
    """Equal for parameters whose sampled entries are equal bit for bit."""
    return hashlib.blake2b(sample.numpy().tobytes(), digest_size=12).hexdigest()


def _recorded(name: str, parameter: Tensor, kind: str, fan_in: int, fan_out: int) -> Draw:
    law = distribution(parameter)
    std = math.sqrt(law.variance)
    unit = (law.quantiles - law.mean) / std if std else law.quantiles * 0
    return Draw(
        name,
        tuple(parameter.shape),
        kind,
        parameter.numel(),
        parameter.numel(),
        law.mean,
        std,
        std,
        float(unit.pow(4).mean()),
        0.0,
        math.inf,
        1.0 if not std and law.mean == 0 else 0.0,
        0 if math.isfinite(law.mean) and math.isfinite(std) else parameter.numel(),
        name,
        fan_in,
        fan_out,
        recorded=True,
        independent=law.kind in (INDEPENDENT, ORTHOGONAL),
        dtype=parameter.dtype,
    )


def _with_parts(made: Draw, values: Tensor, module: nn.Module, leaf: str) -> Draw:
    """Parts that should be alike: the thirds of a fused query, key and value, and stacked experts."""
    pieces: list[tuple[str, Tensor]] = []
    shape = made.shape
    if len(shape) == 2 and FUSED.search(made.name):
        axis = 1 if type(module).__name__ in TRANSPOSED else 0
        if shape[axis] == 3 * shape[1 - axis]:
            pieces = list(zip(("query", "key", "value"), values.chunk(3, axis), strict=True))
    elif len(shape) == 3 and not isinstance(module, ConvNd) and shape[0] <= 512:
        pieces = [(str(index), values[index]) for index in range(shape[0])]
    if not pieces or not made.is_random:
        return made
    return replace(made, parts=tuple(moments(f"{made.name}[{label}]", piece) for label, piece in pieces))
