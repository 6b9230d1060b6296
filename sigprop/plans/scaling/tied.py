r"""A table that is also the readout: the factor of what the readout reads, in the norm before it where there is one."""

from __future__ import annotations

import math
from dataclasses import replace

from torch import nn

from sigprop.errors import InputError
from sigprop.plans.multipliers import Sizes
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.folding import with_factor
from sigprop.plans.recipes.rows import multiplied
from sigprop.plans.rows import ScalePlan
from sigprop.plans.scaling.beside import Beside
from sigprop.plans.scaling.dimensions import Dimensions
from sigprop.sites import plain_name, unwrap
from sigprop.structure import Parameter


def tied_factor(beside: Beside, made: Plan | None = None) -> tuple[Parameter | Dimensions, float] | None:
    r"""A table that is also the readout, and the factor of what the readout reads.

    A table of fixed size takes `update 1` and the factor `m^{-A}`, `m` the ratio of widths, of which a recipe may have
    given `m^{-1/2}`: a table of its own for the readout, or a factor that keeps logits at one, which it gives from the
    width on where they would be larger.
    """
    assert beside.rules.width is not None
    tied = _tied_table(beside)
    if tied is None:
        return None
    ratio = beside.dims[tied.name].fan_out
    meta = {} if made is None else made.meta
    given = ratio**0.5 if meta.get("tied_as_readout") else min(ratio**0.5, 1.0 / meta.get("tied_factor", 1.0))
    factor = beside.rules.width.tied_multiplier(ratio) * given * beside.pair.table_scale(tied.name)
    if beside.base is None:
        return tied, min(factor, 1.0)
    return tied, factor / _own_output_scale(beside.model, beside.base)


def _tied_table(beside: Beside) -> Parameter | Dimensions | None:
    """Read from the trace; without one, a parameter that an embedding shares with another module."""
    if beside.structure is not None:
        return beside.structure.tied_table
    owners = {plain_name(name): module for name, module in unwrap(beside.model).named_modules()}
    for item in beside.dims.values():
        kinds = {isinstance(owners[alias.rpartition(".")[0]], nn.Embedding) for alias in item.aliases}
        if kinds == {True, False}:
            return item
    return None


def _own_output_scale(model: nn.Module, base: nn.Module) -> float:
    """T5 multiplies the decoder's output by d^{-1/2} before a tied readout."""
    inner, other = unwrap(model), unwrap(base)
    sizes = getattr(inner, "model_dim", None), getattr(other, "model_dim", None)
    scales = getattr(getattr(inner, "config", None), "scale_decoder_outputs", False)
    return math.sqrt(sizes[1] / sizes[0]) if scales and sizes[0] and sizes[1] else 1.0


def with_tied_factor(made: Plan, beside: Beside, optimizer: str) -> Plan:
    r"""The factor in the norm before a tied readout, or as a forward factor where there is none.

    A table that the recipe initializes for the readout, of size `d^{-1/2}`, is the same function written as `m^{-1/2}`
    times that table; where the model multiplies its rows, that factor is in the rates already.
    """
    found = tied_factor(beside, made)
    if found is None:
        return made
    assert beside.rules.width is not None
    (tied, factor), rows, scales = found, [], list(made.scales)
    ratio, names = beside.dims[tied.name].fan_out, beside.structure.readout_input if beside.structure else ()
    scaled = beside.structure is not None and tied.name in beside.structure.table_scales
    for row in made.parameters:
        if row.name == tied.name and made.meta.get("tied_as_readout") and not scaled:
            told = f"{row.why}; {beside.rules.width.name}: also the readout, size x{ratio**-0.5:.4g}"
            row = replace(multiplied(row, Sizes().gauged(ratio**-0.5), optimizer), why=told)
        rows.append(with_factor(row, factor, optimizer) if row.name in names else row)
    if not names and factor != 1.0:
        place = _readout_module(beside.model, tied.name)
        scales.append(ScalePlan(place, factor, "input", f"readout tied to {tied.name}, no norm before it"))
    return Plan(rows, made.junctions, scales, made.meta)


def _readout_module(model: nn.Module, tied: str) -> str:
    """The module that uses a table as its weight but is no embedding."""
    table = {plain_name(name): item for name, item in unwrap(model).named_parameters()}[tied]
    for name, module in unwrap(model).named_modules():
        if getattr(module, "weight", None) is table and not isinstance(module, nn.Embedding):
            return plain_name(name)
    raise InputError(f"{tied} is also the readout, but no module holds it: scale the readout in the model")
