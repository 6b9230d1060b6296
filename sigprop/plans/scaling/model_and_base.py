"""A model and its base, both read from their traces, for what shapes alone cannot tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from sigprop.capture.roles import CONTRACTIONS
from sigprop.errors import InputError, SigpropError, UnsupportedError
from sigprop.inputs.family import config_of_width
from sigprop.isolation import undisturbed
from sigprop.plans.scaling.dimensions import pattern
from sigprop.sites import unwrap
from sigprop.structure import Parameter, Scores, Structure, structure_of
from sigprop.structure.residual import CARRIED, SCALINGS, core, factor

STEPS = 12


@dataclass(frozen=True)
class ModelAndBase:
    """Structures of the model and of its base; `reason` says why there are none."""

    model: Structure | None = None
    base: Structure | None = None
    reason: str = ""

    @property
    def required(self) -> Structure:
        """The model's structure, or the reason why there is none."""
        if self.model is None:
            raise UnsupportedError(f"the model cannot be traced, which this plan needs: {self.reason}")
        return self.model

    def parameter(self, name: str) -> Parameter | None:
        return None if self.model is None else self.model.parameters.get(name)

    @property
    def known(self) -> bool:
        return self.model is not None and self.base is not None

    def branches(self, name: str) -> tuple[float, float] | None:
        """(branches of the model, of the base) in the stream that a parameter's branch, or its block, belongs to."""
        if self.model is None or self.base is None or name not in self.model.parameters:
            return None
        item = self.model.parameters[name]
        beside = (j for j in self.model.junctions if item.block and j.name.startswith(item.block + "."))
        junction = self.model.junction_of(item) or next(beside, None)
        if junction is None or junction.stream >= len(self.base.streams):
            return None
        return float(len(self.model.streams[junction.stream])), float(len(self.base.streams[junction.stream]))

    def ends(self) -> dict[str, float]:
        """Last parameters of all branches, with the shift that they enter with."""
        if self.model is None:
            return {}
        return {name: junction.shift for junction in self.model.junctions for name in junction.weights}

    def table_scale(self, name: str) -> float:
        """The number that the model multiplies a table's rows with, relative to the base's."""
        numbers = [each.table_scales[name].number for each in self._both() if name in each.table_scales]
        return numbers[0] / numbers[1] if len(numbers) == 2 else 1.0

    def tables_scaled_outside(self) -> dict[str, float]:
        """By module of a table that is multiplied after it: what its output is multiplied by, relative to the base."""
        scales = self.model.table_scales if self.model is not None else {}
        outside = [name for name, scale in scales.items() if not scale.inside]
        return {name.rpartition(".")[0]: 1.0 / self.table_scale(name) for name in outside}

    def readout_scales(self) -> dict[str, tuple[float, bool]]:
        """By readout: the number that multiplies what it reads or puts out, relative to the base's, and whether it is
        multiplied after the module."""
        found = [readout_scales(each) for each in self._both()]
        if len(found) < 2:
            return {}
        return {name: (own / found[1][name][0], after) for name, (own, after) in found[0].items() if name in found[1]}

    def _both(self) -> list[Structure]:
        return [each for each in (self.model, self.base) if each is not None]

    def scores(self) -> list[tuple[Scores, Scores]]:
        """Every attention of the model with that of the base."""
        if self.model is None or self.base is None:
            return []
        partners = {pattern(item.module): item for item in reversed(self.base.scores)}
        found = [(item, partners.get(pattern(item.module))) for item in self.model.scores]
        return [(item, partner) for item, partner in found if partner is not None]


def readout_scales(structure: Structure) -> dict[str, tuple[float, bool]]:
    """Numbers between a readout and the model's output, and on what the readout reads."""
    item: Any = structure.traced.signal
    if item is None:
        return {}
    after = 1.0
    for _ in range(STEPS):
        after, item = after * factor(item), core(item)
        fields = item.fields
        weights = item.weights
        if item.made_by in CONTRACTIONS and weights and fields:
            names = {name for weight in weights for name, _ in weight.roots}
            return {name: (after * factor(fields[0]), after != 1.0) for name in names if len(weights[0].shape) > 1}
        if len(fields) != 1 or weights or item.made_by not in CARRIED:
            return {}
        numbers = [value for value in item.call.args if isinstance(value, (int, float))]
        if item.call.name in SCALINGS and numbers:
            after *= numbers[0] if "mul" in item.call.name else 1.0 / numbers[0]
        item = fields[0]
    return {}


def read_model_and_base(
    model: nn.Module, base: nn.Module, batch: Any = None, structure: Structure | None = None
) -> ModelAndBase:
    """Both structures, or the reason why one could not be traced; the batch must suit both."""
    try:
        return ModelAndBase(structure or structure_of(model, batch), structure_of(base, batch))
    except SigpropError as error:
        return ModelAndBase(reason=str(error).splitlines()[0])


def build_base(model: nn.Module, base: Any) -> nn.Module:
    """The base (module, factory, configuration or width) as a module, built without touching the global seed."""
    if isinstance(base, nn.Module):
        return base
    with undisturbed() as interrupts, interrupts.let_through():
        if isinstance(base, int):
            base = config_of_width(getattr(unwrap(model), "config", None), base)
        if callable(base) and not hasattr(base, "to_dict"):
            built: Any = base()
            return built
        kind = type(unwrap(model))
        try:
            return kind(base)
        except TypeError as error:
            raise InputError(
                f"{kind.__name__} cannot be built from {type(base).__name__}: pass the base model"
            ) from error
