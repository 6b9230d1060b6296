"""`PhaseDiagram`: chi_J over a plane of two settings, measured or predicted, as plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sigprop.errors import require
from sigprop.results.files import Result

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


@dataclass(repr=False)
class PhaseDiagram(Result):
    """`chi[i][j]` belongs to `y[i]`, `x[j]`; standard errors over initializations where it was measured.

    A value that is not finite (overflow, the error of one initialization) is nan here and null in a file.
    """

    DOCUMENT = ("phase diagram", 1)

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

    @property
    def finite(self) -> list[float]:
        """All values that are numbers, the smallest first."""
        return sorted(value for row in self.chi for value in row if math.isfinite(value))

    def __str__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """The range of chi_J, the shares that are ordered, critical and chaotic, and the standard errors."""
        values = self.finite
        if not values:
            return "the signal overflows at every point: take smaller --sigma-w"
        ordered, chaotic = sum(value < 0.99 for value in values), sum(value > 1.01 for value in values)
        shares = [count / len(values) for count in (ordered, len(values) - ordered - chaotic, chaotic)]
        lines = [
            f"chi_J over {len(self.x)} x {len(self.y)} points: {values[0]:.4g} to {values[-1]:.4g}, "
            f"median {values[len(values) // 2]:.4g}",
            "ordered {:.0%}, within 1 % of critical {:.0%}, chaotic {:.0%}".format(*shares),
        ]
        if self.standard_error is not None:
            pairs = zip(self.chi, self.standard_error, strict=True)
            ratios = [e / c for chi, error in pairs for c, e in zip(chi, error, strict=True) if c]
            errors = sorted(ratio for ratio in ratios if math.isfinite(ratio))
            lines += (
                [f"standard error: median {errors[len(errors) // 2]:.2%}, largest {errors[-1]:.2%}"] if errors else []
            )
        left = len(self.x) * len(self.y) - len(values)
        lines += [f"{left} points without a value: the signal overflows there"] if left else []
        return "\n".join(lines)
