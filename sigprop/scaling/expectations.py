"""What a width and depth rule expects of every size in a coordinate check, as exponents of width or depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from sigprop.errors import InputError
from sigprop.scaling.attention import attention_scales
from sigprop.scaling.dimensions import compare, pattern
from sigprop.scaling.fit import fit_exponent
from sigprop.scaling.parametrize import output_scales, relative_sizes
from sigprop.scaling.record import OUTPUT
from sigprop.scaling.width import width_rule


@dataclass(frozen=True)
class Expectations:
    """Exponents by parameter (`weight`, `update`) and by site, along `scales` (the widths or the depths)."""

    scales: list[int]
    weight: dict[str, float]
    update: dict[str, float]
    site: dict[str, float]
    change: float
    along_depth: bool

    @classmethod
    def of_builds(
        cls, models: Sequence[nn.Module], scales: list[int], rule: str, depth_rule: str, along_depth: bool = False
    ) -> Expectations:
        """From builds at every scale, the first being the base."""
        tables: dict[str, dict[str, list[float]]] = {"weight": {}, "update": {}, "site": {}}
        width, changed = width_rule(rule), False
        for model in models:
            dims = compare(model, models[0])
            changed = changed or any(item.shape != item.base_shape or item.depth != 1.0 for item in dims)
            scores = attention_scales(model, models[0], dims)
            sizes = relative_sizes(dims, width, scores, depth_rule)
            rows = {
                "weight": {name: item.weight for name, item in sizes.items()},
                "update": {name: item.update for name, item in sizes.items()},
                "site": output_scales(dims, scores, depth_rule),
            }
            for quantity, values in rows.items():
                by_name = {pattern(name) if along_depth else name: value for name, value in values.items()}
                for name, value in by_name.items():
                    tables[quantity].setdefault(name, []).append(value)
        if not changed:
            raise InputError(f"the builds at {scales} have the same parameters: the factory ignores its argument")
        fits = {
            quantity: {
                name: fit_exponent(scales, np.array([values]))[0]
                for name, values in table.items()
                if len(values) == len(models)
            }
            for quantity, table in tables.items()
        }
        asks_weights = not along_depth or depth_rule != "none"
        return cls(
            scales, fits["weight"] if asks_weights else {}, fits["update"], fits["site"], width.change, along_depth
        )

    def of(self, quantity: str, name: str, step: int, finite: bool) -> tuple[float | None, float | None]:
        """(expected exponent, upper bound); both None where nothing is asked.

        `finite` sites do not grow with width: logits and scores. They may start smaller, never larger. A branch
        of scale l^{-alpha} may move less than that, down to 1/l when its own update dominates.
        """
        if quantity in ("weight", "update"):
            return getattr(self, quantity).get(name), None
        scores = name.endswith(".scores")
        shift = self.site.get(name, 0.0)
        if quantity == "activation" and step == 0:
            return (None, shift) if scores or (finite and not self.along_depth) else (shift, None)
        if quantity == "change" and step > 0:
            if scores:
                return None, 0.0
            if self.along_depth and shift != 0.0:
                return None, shift
            moves = name == OUTPUT or finite or self.along_depth
            return (shift if moves else shift - self.change), None
        return None, None
