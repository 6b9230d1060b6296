"""`PhaseDiagram`: chi_J over a plane of two settings, measured or predicted, as plain data."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sigprop.errors import InputError, require
from sigprop.results.files import write_whole

PHASE_SCHEMA = 1
AXES = ("sigma_w", "sigma_b", "residual")
Axis = tuple[str, Sequence[float]]


def check_plane(x: Axis, y: Axis, fixed: dict[str, float] | None = None) -> None:
    """Refuse what is no plane of settings: unknown or equal axes, no values, values that make no sense."""
    values = {**{key: [value] for key, value in (fixed or {}).items()}, x[0]: list(x[1]), y[0]: list(y[1])}
    for name, numbers in values.items():
        require(name in AXES, "axis", name, " or ".join(AXES))
        require(len(numbers) > 0, name, numbers, "at least one value")
        for number in numbers:
            require(math.isfinite(number) and number >= 0, name, number, "finite values that are not negative")
            require(name != "residual" or number <= 1, name, number, "strengths between 0 and 1")
    require(x[0] != y[0], "axes", (x[0], y[0]), "two different settings")


def plane_values(x: Axis, y: Axis, fixed: dict[str, float] | None, start: dict[str, float]) -> dict[str, Tensor]:
    """sigma_w, sigma_b and residual as tensors that broadcast to the plane [y, x]; `start` is what is not given."""
    check_plane(x, y, fixed)
    values = {name: torch.tensor(float(value)) for name, value in {**start, **(fixed or {})}.items()}
    values[x[0]] = torch.tensor(list(x[1]), dtype=torch.float32)[None, :]
    values[y[0]] = torch.tensor(list(y[1]), dtype=torch.float32)[:, None]
    return values


@dataclass
class PhaseDiagram:
    """`chi[i][j]` belongs to `y[i]`, `x[j]`; standard errors over initializations where it was measured.

    A value that is not finite (overflow, the error of one initialization) is nan here and null in a file.
    """

    x_name: str
    x: list[float]
    y_name: str
    y: list[float]
    chi: list[list[float]]
    standard_error: list[list[float]] | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def over(
        cls, x: Axis, y: Axis, chi: Any, standard_error: Any = None, settings: dict[str, Any] | None = None
    ) -> PhaseDiagram:
        """Of numbers in the order [y, x]."""
        return cls(x[0], list(x[1]), y[0], list(y[1]), chi, standard_error, settings or {})

    def to_dict(self) -> dict[str, Any]:
        fields = {**asdict(self), "chi": _finite(self.chi), "standard_error": _finite(self.standard_error)}
        return {"schema": PHASE_SCHEMA, "kind": "phase", **fields}

    def save(self, path: str | Path) -> Path:
        write_whole(Path(path), json.dumps(self.to_dict()))
        return Path(path)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PhaseDiagram:
        if data.get("kind") != "phase" or data.get("schema") != PHASE_SCHEMA:
            raise InputError(f"not a phase diagram of schema {PHASE_SCHEMA}: keys {sorted(data)[:6]}")
        fields = {key: value for key, value in data.items() if key not in ("schema", "kind")}
        for key in ("chi", "standard_error"):
            if fields.get(key) is not None:
                fields[key] = [[math.nan if value is None else value for value in row] for row in fields[key]]
        return cls(**fields)

    @classmethod
    def load(cls, path: str | Path) -> PhaseDiagram:
        return cls.from_dict(json.loads(Path(path).read_text()))


def _finite(rows: list[list[float]] | None) -> list[list[float | None]] | None:
    if rows is None:
        return None
    return [[value if math.isfinite(value) else None for value in row] for row in rows]
