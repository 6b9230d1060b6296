r"""Rates of tables and of experts; that of a table of tokens from how often its rows are seen; and the factor of what a
readout reads that is also the table, in the norm before it where there is one.

A row follows the hidden matrices, whose output moves by `kappa` in the direction of one token, where one step changes
it by the share `step` of its size; `p_v` are the frequencies of tokens, `B` the tokens of a batch:

    A = sum_v p_v min(1, kappa sqrt(B p_v)),    step = min(1/2, kappa / A)

docs/do/plan.md#tables says why. kappa = 1/4 was set on stored runs of 256 to 16,384 tokens, width 128, 1,024 tokens a
batch, whose best steps were a half. Hayou and Liu 2025 find the root of the width for the best ratio at large
vocabularies; Kalra and Barkeshli 2026 that this rate is most of muP's benefit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.errors import InputError, require
from sigprop.plans.exponents import read_optimizer
from sigprop.plans.multipliers import Sizes
from sigprop.plans.optimizers import MATRIX_ONLY
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.planning import with_factor
from sigprop.plans.recipes.rows import multiplied
from sigprop.plans.rows import ParameterPlan, ScalePlan
from sigprop.plans.scaling.beside import Beside
from sigprop.plans.scaling.dimensions import Dimensions
from sigprop.plans.suggestion import ADAM_RATE, BESIDE_MUON, batch_factor
from sigprop.sites import modules_of, plain_name, unwrap
from sigprop.structure import Parameter, Structure

AGREEMENT = 0.25
LARGEST_STEP = 0.5
SAME = 1e-9


def zipf(vocabulary: int) -> Tensor:
    """Frequencies that fall like one over the rank."""
    require(vocabulary >= 1, "vocabulary", vocabulary, "one token or more")
    weights = 1.0 / torch.arange(1, vocabulary + 1, dtype=torch.float64)
    return weights / weights.sum()


def frequencies_in(batch: Any, vocabulary: int) -> Tensor:
    """Counted from the ids of a batch that holds as many tokens as the vocabulary; else Zipf's distribution."""
    given = list(batch.values()) if isinstance(batch, Mapping) else list(batch) if isinstance(batch, tuple) else [batch]
    for ids in given:
        if isinstance(ids, Tensor) and not ids.is_floating_point() and vocabulary <= ids.numel():
            seen = ids.flatten().cpu()
            inside = seen[(seen >= 0) & (seen < vocabulary)].long()
            counts = torch.bincount(inside, minlength=vocabulary).double()
            if len(inside) >= vocabulary and int((counts > 0).sum()) > 1:
                return counts / counts.sum()
    return zipf(vocabulary)


def table_step(frequencies: Tensor, tokens: int) -> float:
    """The share of its size by which one step changes a row, for a batch of so many tokens."""
    require(tokens >= 1, "tokens of a batch", tokens, "one or more")
    agreement = (AGREEMENT * (tokens * frequencies).sqrt()).clamp_max(1.0)
    return min(LARGEST_STEP, AGREEMENT / float((frequencies * agreement).sum()))


def with_table_scale(row: ParameterPlan, structure: Structure, optimizer: str) -> ParameterPlan:
    """Rates of a table whose rows the model multiplies by a number: those of the rows that then enter the stream."""
    if row.name not in structure.table_scales:
        return row
    number = structure.table_scales[row.name].number
    row = multiplied(row, Sizes().gauged(1.0 / number), optimizer)
    return replace(row, why=f"{row.why}; the model multiplies its rows by {number:.4g}")


def with_shaping_rate(
    row: ParameterPlan, structure: Structure, optimizer: str, reference_width: int, drawn_as_readout: bool
) -> ParameterPlan:
    r"""Rates of the tables that training has to shape: positions, and a table that is also the readout.

    A step changes their entries by the share of their size by which it changes those of the reference layer, which have
    the size `128^{-1/2}`. Rows of tokens that are only looked up are as good as initialized, and keep the rate one; so
    do all with SGD, whose steps follow the gradient.
    """
    tied = structure.tied_table is not None and structure.tied_table.name == row.name
    shaped = tied and not drawn_as_readout if row.role == "embedding" else row.role == "positional"
    if not shaped or row.name not in structure.starting or row.init.std == 0.0 or read_optimizer(optimizer).gradient:
        return row
    number = structure.table_scale(row.name)
    size = row.init.std * number * math.sqrt(reference_width)
    row = multiplied(row, Sizes(size, size), optimizer)
    told = "also the readout" if tied else "positions"
    return replace(row, why=f"{row.why}; {told}: size x{size:.4g} of the reference layer's")


def with_seen_tables(made: Plan, structure: Structure, optimizer: str, tokens: int) -> Plan:
    """Rates of tables of tokens that are only looked up, by how often their rows are seen; Adam's alone follow it."""
    kind = optimizer.partition(":")[0]
    if kind not in ("adam", "adamw", *MATRIX_ONLY):
        return made
    rate = ADAM_RATE if kind in ("adam", "adamw", "adamh") else BESIDE_MUON
    rows = []
    for row in made.parameters:
        item = structure.parameters.get(row.name)
        looked_up = item is not None and row.role == "embedding" and not (item.tied or item.frozen)
        if not looked_up or row.name not in structure.starting or row.init.size == 0.0 or row.init.kind == "keep":
            rows.append(row)
            continue
        number = structure.table_scale(row.name)
        step = table_step(frequencies_in(structure.batch, row.shape[0]), tokens)
        row = multiplied(row, Sizes(1.0, step * row.init.size * number / rate), "adamw")
        rows.append(replace(row, why=f"{row.why}; a step changes rows by x{step:.3g} of their size, as often as seen"))
    return replace(made, parameters=rows)


def with_expert_rates(made: Plan, structure: Structure, optimizer: str, tokens: int) -> Plan:
    """An expert sees its share of the batch, and takes the rate of a batch of that size; routers see all of it.

    The rule for batches is `suggestion.batch_factor`, swept on dense models; on experts it was not.
    """
    share = structure.expert_share
    if share == 1.0 or optimizer.partition(":")[0] not in ("adam", "adamw", *MATRIX_ONLY):
        return made
    factor = batch_factor(max(1, round(tokens * share))) / batch_factor(tokens)
    rows = []
    for row in made.parameters:
        item = structure.parameters.get(row.name)
        if item is not None and item.expert and not item.frozen and factor != 1.0:
            row = multiplied(row, Sizes(1.0, factor), optimizer)
            row = replace(row, why=f"{row.why}; an expert sees x{share:.3g} of the tokens")
        rows.append(row)
    return replace(made, parameters=rows)


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
    factor = ratio**-beside.rules.width.readout * given * beside.pair.table_scale(tied.name)
    if beside.base is None:
        return tied, min(factor, 1.0)
    own, _ = beside.pair.readout_scales().get(tied.name, (1.0, False))  # T5 multiplies by d^{-1/2} itself
    return tied, 1.0 if own != 1.0 and math.isclose(factor, own, rel_tol=SAME) else factor / own


def _tied_table(beside: Beside) -> Parameter | Dimensions | None:
    """Read from the trace; without one, a parameter that an embedding shares with another module."""
    if beside.structure is not None:
        return beside.structure.tied_table
    owners = modules_of(beside.model)
    for item in beside.dims.values():
        kinds = {isinstance(owners[alias.rpartition(".")[0]], nn.Embedding) for alias in item.aliases}
        if kinds == {True, False}:
            return item
    return None


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
