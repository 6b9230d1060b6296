"""Builds of a factory at many sizes, and the plan that carries the smallest one to each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import nn

from sigprop.errors import InputError
from sigprop.isolation import cuda_devices, undisturbed
from sigprop.plans.plan import Plan
from sigprop.plans.scaling.beside import Rules, beside_of
from sigprop.plans.scaling.composition import own_plan
from sigprop.plans.scaling.dimensions import Dimensions, compare
from sigprop.plans.scaling.model_and_base import ModelAndBase
from sigprop.plans.scaling.width_rules import width_rule

PlanMaker = Callable[[nn.Module, nn.Module], "Plan | None"]


def build_seeded(build: Callable[..., nn.Module], shape: tuple[int, ...], seed: int) -> nn.Module:
    with undisturbed(cuda_devices()) as interrupts, interrupts.let_through():
        torch.manual_seed(seed)
        built: object = build(*shape)
    if not isinstance(built, nn.Module):
        raise InputError(f"the factory returned {type(built).__name__} for {shape}: it has to return the model")
    return built


def compare_known(
    model: nn.Module,
    base: nn.Module,
    known: Mapping[str, str],
    roles: Mapping[str, str] | None = None,
    pair: ModelAndBase | None = None,
) -> list[Dimensions]:
    """The comparison with the base; where nothing grows, with the roles that a wider build has shown."""
    dims = compare(model, base, roles, None if pair is None else pair.model)
    if any(item.shape != item.base_shape for item in dims):
        return dims
    return [replace(item, role=known.get(item.name, item.role)) for item in dims]


def make_plan(
    plan: str | PlanMaker | None,
    model: nn.Module,
    base: nn.Module,
    dims: list[Dimensions],
    optimizer: str,
    pair: ModelAndBase | None = None,
    rules: Rules | None = None,
) -> Plan | None:
    """A rule's name, a function (model, base) -> Plan, or None, as a plan for the model."""
    if isinstance(plan, str):
        asked = replace(rules or Rules(), width=width_rule(plan))
        return own_plan(beside_of(model, base, dims, pair or ModelAndBase(), asked), optimizer)
    return plan(model, base) if plan is not None else None
