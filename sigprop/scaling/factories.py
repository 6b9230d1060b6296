"""Builds of a factory at many sizes: with a seed, without values, and with a plan from the smallest one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sigprop.results import Plan
from sigprop.scaling.dimensions import compare
from sigprop.scaling.parametrize import parametrize

PlanMaker = Callable[[nn.Module, nn.Module], "Plan | None"]


def build_seeded(build: Callable[..., nn.Module], shape: tuple[int, ...], seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build(*shape)


def skeleton(build: Callable[..., nn.Module], shape: tuple[int, ...]) -> nn.Module:
    """The model without values, where its factory can be run on the meta device."""
    try:
        with torch.device("meta"), _StayOnMeta():
            return build_seeded(build, shape, 0)
    except (NotImplementedError, RuntimeError):
        return build_seeded(build, shape, 0)


class _StayOnMeta(TorchFunctionMode):
    """A factory that ends with `.to(device)` leaves a model on the meta device where it is."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (Tensor.to, Tensor.cuda, Tensor.cpu) and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


def plan_maker(plan: str | PlanMaker | None, optimizer: str, depth_rule: str, wide: nn.Module) -> PlanMaker:
    """A function (model, base) -> Plan; the base itself takes its roles from the comparison with `wide`."""
    if plan is None:
        return lambda model, base: None
    if not isinstance(plan, str):
        return plan
    name = plan

    def make(model: nn.Module, base: nn.Module) -> Plan:
        dims = compare(model, base)
        roles = None
        if all(item.fan_in == item.fan_out == item.depth == 1.0 for item in dims):
            known = {item.name: item.role for item in compare(wide, base)}
            roles = {item.name: known[item.name] for item in dims if item.name in known}
        return parametrize(model, name, base=base, optimizer=optimizer, depth=depth_rule, roles=roles)

    return make
