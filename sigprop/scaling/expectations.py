"""What a width and depth rule expects of every size in a coordinate check, as exponents of width or depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from sigprop.errors import InputError
from sigprop.scaling.attention import AttentionScales, attention_scales
from sigprop.scaling.dimensions import compare, pattern
from sigprop.scaling.fit import fit_exponent
from sigprop.scaling.parametrize import output_scales, relative_sizes
from sigprop.scaling.record import OUTPUT
from sigprop.scaling.width import width_rule
from sigprop.theory.exponents import read_optimizer


@dataclass(frozen=True)
class Expectations:
    """Exponents by parameter and by site, along `scales` (the widths or the depths).

    The update of an optimizer that follows the gradient's size is judged by its `rate`, update over gradient;
    the entries of an orthogonal update depend on the gradient's rank and are not judged.
    """

    scales: list[int]
    weight: dict[str, float]
    update: dict[str, float]
    rate: dict[str, float]
    site: dict[str, float]
    change: float
    along_depth: bool

    @classmethod
    def of_builds(
        cls,
        models: Sequence[nn.Module],
        scales: list[int],
        rule: str,
        depth_rule: str,
        optimizer: str,
        along_depth: bool = False,
    ) -> Expectations:
        """From builds at every scale, the first being the base."""
        tables: dict[str, dict[str, list[float]]] = {"weight": {}, "update": {}, "rate": {}, "site": {}}
        width, orthogonal, changed = width_rule(rule), read_optimizer(optimizer).orthogonal, False
        for model in models:
            dims = compare(model, models[0])
            changed = changed or any(item.shape != item.base_shape or item.depth != 1.0 for item in dims)
            scores = attention_scales(model, models[0], dims)
            scaled = scores if width.scales_attention else AttentionScales()
            sizes = relative_sizes(dims, width, scaled, depth_rule)
            power = -0.5 if width.scales_attention else 0.0
            random_scores = {f"{name}.scores": ratio**power for name, ratio in scores.heads.items()}
            rows = {
                "weight": {name: item.weight for name, item in sizes.items()},
                "update": {
                    item.name: sizes[item.name].update for item in dims if not orthogonal or item.role != "hidden"
                },
                "rate": {name: item.update / item.gradient for name, item in sizes.items()},
                "site": output_scales(dims, scaled, depth_rule) | random_scores,
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
        weights = fits["weight"] if depth_rule != "none" or not along_depth else {}
        return cls(scales, weights, fits["update"], fits["rate"], fits["site"], width.change, along_depth)

    def of(self, quantity: str, name: str, step: int, finite: bool) -> tuple[float | None, float | None]:
        """(expected exponent, upper bound); both None where nothing is asked.

        `finite` sites do not grow with width: logits and scores. They may start smaller, never larger. A branch
        of scale l^{-alpha} may move less than that, down to 1/l when its own update dominates.
        """
        if quantity in ("weight", "update", "rate"):
            return getattr(self, quantity).get(name), None
        scores = name.endswith(".scores")
        shift = self.site.get(name, 0.0)
        if quantity == "activation" and step == 0:
            free = name not in self.site if scores else finite and not self.along_depth
            return (None, shift) if free else (shift, None)
        if quantity == "change" and step > 0:
            if scores:
                return None, 0.0
            if self.along_depth and shift != 0.0:
                return None, shift
            moves = name == OUTPUT or finite or self.along_depth
            return (shift if moves else shift - self.change), None
        return None, None
