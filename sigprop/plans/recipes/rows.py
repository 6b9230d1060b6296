"""Building blocks of a recipe: one row per parameter from a rule for matrices, one per junction from two scales;
and the recipes by name. One file, one registration, one test.

The usual choices are made here once: biases zero, gains at what the model sets (one), embeddings normal.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import torch
from torch import nn

from sigprop.errors import InputError, UnsupportedError
from sigprop.plans.application import APPLIED
from sigprop.plans.hooks import LEARNED
from sigprop.plans.multipliers import Matrix, Sizes, multipliers
from sigprop.plans.optimizers import algorithm_of
from sigprop.plans.plan import Plan
from sigprop.plans.rows import JunctionPlan, ParameterPlan
from sigprop.registry import Registry
from sigprop.results import Init
from sigprop.results.parameters import KEEP, TABLES
from sigprop.structure import Junction, Parameter, Part, Structure

Initializer = Callable[[Parameter, str, int], Init]
Scales = Callable[[Junction], tuple[float, float]]
NAMES = {
    "query_key": "query or key",
    "value": "value",
    "hidden": "inside a branch",
    "output": "last weight of a branch",
    "input": "before the first branch",
    "unused": "kept",
}


def init_all(structure: Structure, matrix: Initializer, embedding: float | None = 0.02, kind: str = "normal") -> Plan:
    """A plan that initializes every parameter: matrices by the rule, embeddings with one std, biases zero, gains as
    set.

    The rule gets the parameter, the role of the piece (a fused matrix has several) and the piece's outputs.
    `embedding=None` keeps the model's own embeddings.
    """
    planned = hasattr(structure.model, APPLIED)
    return Plan([_row(item, matrix, embedding, kind, planned) for item in structure])


def _row(item: Parameter, matrix: Initializer, embedding: float | None, kind: str, planned: bool) -> ParameterPlan:
    """`planned`: the model carries a plan already, whose factors in the gains of norms are not its own."""
    role = item.role
    if item.frozen:
        return kept_row(item)
    if item.is_matrix:
        parts = item.parts or (Part(role, item.fan_out),)
        inits = tuple(matrix(item, part.role, part.size) for part in parts)
        same = all(init == inits[0] for init in inits)
        init = inits[0] if same else Init("blocks", axis=item.axis, sizes=tuple(p.size for p in parts), parts=inits)
    elif role in TABLES and item.junction is None and embedding is not None:
        init = Init(kind if kind != "orthogonal" else "normal", std=embedding)
    elif role == "bias":
        init = Init("constant", value=0.0)
    elif role == "norm gain" and planned and item.constant not in (None, 0.0, 1.0):
        init = Init("constant", value=1.0)
    else:
        init = Init("keep") if item.constant is None else Init("constant", value=item.constant)
    return ParameterPlan(item.name, item.shape, init, why=NAMES.get(role, role), role=role)


def kept_row(item: Parameter) -> ParameterPlan:
    told = ", frozen" if item.frozen else ""
    return ParameterPlan(item.name, item.shape, KEEP, why=NAMES.get(item.role, item.role) + told, role=item.role)


def scale_rows(
    plan: Plan, factors: Mapping[str, float], why: str = "", shifts: Mapping[str, float] | None = None
) -> Plan:
    """The plan with the initializations of some parameters multiplied, by name; `shifts` as in `times`, `why` may have
    a place for the factor."""
    rows = []
    for row in plan.parameters:
        number = factors.get(row.name, 1.0)
        text = row.why if number == 1.0 or not why else f"{row.why}, {why.format(number)}"
        rows.append(replace(row, init=times(row.init, number, (shifts or {}).get(row.name, 0.0)), why=text))
    return replace(plan, parameters=rows)


def times(init: Init, factor: float, shift: float = 0.0) -> Init:
    """The initialization of `w'` with `shift + w' = factor * (shift + w)`."""
    if factor == 1.0:
        return init
    if shift and init.kind != "constant":
        raise UnsupportedError(
            f"a gain that enters as {shift:g} + w can be scaled from one value only, not from {init}"
        )
    if shift:
        return replace(init, value=factor * (shift + init.value) - shift)
    if init.kind == "blocks":
        return replace(init, parts=tuple(times(part, factor) for part in init.parts))
    if init.kind in ("constant", "keep"):
        return replace(init, value=init.value * factor)
    return replace(init, std=init.std * factor)


def multiplied(
    row: ParameterPlan, sizes: Sizes, optimizer: str, matrix: Matrix | None = None, alpha: float = 1.0
) -> ParameterPlan:
    """The row with the settings that these sizes ask of what trains it; `matrix` for the plan's own optimizer."""
    algorithm = algorithm_of(optimizer, row.role, row.shape)
    lr, decay, eps = multipliers(sizes, algorithm, matrix if algorithm == optimizer else None, alpha)
    return replace(row, lr=row.lr * lr, weight_decay=row.weight_decay * decay, eps=row.eps * eps)


def with_inits(plan: Plan, inits: Mapping[str, Init], why: str = "") -> Plan:
    """The plan with other initializations of some parameters; `why` is added to theirs."""
    rows = [
        replace(row, init=inits[row.name], why=f"{row.why}{why}") if row.name in inits else row
        for row in plan.parameters
    ]
    return replace(plan, parameters=rows)


def with_junctions(plan: Plan, structure: Structure, scales: Scales, why: str, learnable: str = "") -> Plan:
    """The plan with `skip * x + branch * f(x)` at every junction; `learnable` is `""`, `scalar` or `channel`.

    Of parallel branches that share one sum, the first carries the skip scale.
    """
    rows = []
    for junction in structure.junctions:
        skip, branch = scales(junction)
        if junction.projected and skip != 1.0:
            raise UnsupportedError(
                f"{junction.exit}: the skip here has a weight of its own and takes no scale ({skip:.4g}); choose a "
                "recipe or an option that scales branches alone"
            )
        rows.append(
            JunctionPlan(
                junction.exit,
                1.0 if junction.parallel else skip,
                branch,
                folded=False,
                entry=junction.entry if junction.exit else "",
                weights=junction.weights,
                shift=junction.shift,
                own=junction.own,
                dropped=junction.dropped,
                learnable=bool(learnable),
                shape=(structure.width,) if learnable == "channel" else (),
                why=why,
            )
        )
    added = [scale_row(row) for row in rows if row.learnable]
    return replace(plan, parameters=plan.parameters + added, junctions=rows)


def initialized_copy(structure: Structure, plan: Plan, seed: int) -> nn.Module:
    """A copy of the model under a plan, for recipes that measure."""
    if structure.model is None or any(parameter.is_meta for parameter in structure.model.parameters()):
        raise InputError("this recipe measures: the model's parameters must be real, not on the meta device")
    made = copy.deepcopy(structure.model)
    plan.apply_(made, torch.Generator().manual_seed(seed))
    return made


def scale_row(row: JunctionPlan) -> ParameterPlan:
    """The row of a junction's learnable branch scale."""
    init = Init("constant", value=row.branch)
    return ParameterPlan(f"{row.name}.{LEARNED}", row.shape, init, why=row.why, role="scale")


Function = Callable[..., Plan]


@dataclass(frozen=True)
class Recipe:
    """A pure function from a model's structure (and options) to a plan whose junctions are not folded yet.

    `data` marks the ones that run the model on a batch and need its parameters to be real, `solves` those whose
    matrices go like `fan_in^{-1/2}` because they solve for predicted states, or by assumption (`own`). `needs`:
    `junctions` or `transformer`; `norms`: the placement that it is for.
    """

    name: str
    function: Function
    paper: str
    applies_to: str
    effect: str
    data: bool = False
    solves: bool = False
    needs: str = ""
    norms: str = ""

    def default(self, option: str) -> Any:
        """The default of one of the recipe's options."""
        return signature(self.function).parameters[option].default

    def __call__(self, structure: Any, **options: Any) -> Plan:
        structure.require(self.name, self.needs, self.norms)
        try:
            plan = self.function(structure, **options)
        except TypeError as error:
            if "unexpected keyword argument" not in str(error):
                raise
            raise InputError(f"recipe {self.name!r}: {str(error).partition(') ')[2] or error}") from error
        plan.meta = {"recipe": self.name, "paper": self.paper, **plan.meta}
        return plan


RECIPES: Registry[Recipe] = Registry("recipe", f"{__package__}.schemes", "`sigprop recipes` lists them all.")


def recipe(name: str, **about: Any) -> Callable[[Function], Function]:
    """Decorator: register a scheme under a name, with the other fields of `Recipe`."""

    def add(function: Function) -> Function:
        RECIPES.add(name, Recipe(name, function, **about))
        return function

    return add
