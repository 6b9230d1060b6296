"""torchtitan: `param_init` of every module by name, and `ParamGroupConfig` patterns for its optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sigprop.plans.export.targets import (
    TARGETS,
    as_regex,
    commented,
    decayed_settings,
    folded,
    forward_rows,
    spelled,
)
from sigprop.sites import pattern

if TYPE_CHECKING:
    from sigprop.plans.plan import Plan

CODE = '''

def param_inits(module_name):
    """What `Module.Config(param_init=...)` takes, for the module of this name."""
    starred = ".".join("*" if part.isdigit() else part for part in module_name.split("."))
    return PARAM_INIT.get(module_name) or PARAM_INIT.get(starred)


def set_param_init(model):
    """Give every module of a built model its functions; `model.init_states()` then calls them, on DTensors too."""
    for name, module in model.named_modules():
        found = param_inits(name)
        if found is not None:
            module._param_init = found
    return model


def optimizer_groups(lr, weight_decay=0.0, betas=(0.9, 0.95), eps=1e-8):
    """For `OptimizersContainer.Config(param_groups=...)`; gains and biases do not decay."""
    from torchtitan.components.optimizer import ParamGroupConfig

    found = []
    for pattern, name, rate, decay, floor in GROUPS:
        settings = {"lr": lr * rate, "weight_decay": weight_decay * decay, "betas": betas, "eps": eps * floor}
        found.append(ParamGroupConfig(pattern=pattern, optimizer_name=name, optimizer_kwargs=settings))
    return found
'''


def call_of(how: tuple[Any, ...]) -> str:
    """A torch initializer as code."""
    kind, value = how[0], how[-1]
    if kind == "constant":
        exact = "nn.init.zeros_" if value == 0.0 else "nn.init.ones_" if value == 1.0 else ""
        return exact or f"partial(nn.init.constant_, val={value!r})"
    if kind == "normal":
        return f"partial(nn.init.normal_, std={value!r})"
    if kind == "truncated":
        wide = value / 0.9866
        return f"partial(nn.init.trunc_normal_, std={wide!r}, a={-3 * wide!r}, b={3 * wide!r})"
    if kind == "uniform":
        return f"partial(nn.init.uniform_, a={-value * 3**0.5!r}, b={value * 3**0.5!r})"
    if kind == "orthogonal":
        return f"partial(orthogonal, std={value!r})"
    if kind == "blocks":
        parts = ", ".join(map(call_of, how[3]))
        return f"partial(blocks, axis={how[1]}, sizes={how[2]}, parts=({parts},))"
    return "skip" if value == 1.0 else f"partial(multiply, by={value!r})"


HELPERS = '''
import math
from functools import partial

import torch
from torch import nn


def skip(parameter):
    """What the module holds already stays."""


def multiply(parameter, by):
    with torch.no_grad():
        parameter.mul_(by)


def orthogonal(parameter, std):
    longer = max(parameter.shape[0], parameter.numel() // parameter.shape[0])
    nn.init.orthogonal_(parameter, gain=std * math.sqrt(longer))


def blocks(parameter, axis, sizes, parts):
    with torch.no_grad():
        for piece, init in zip(parameter.split(sizes, dim=axis), parts):
            init(piece)

'''


@TARGETS.register("torchtitan")
def written(plan: Plan) -> tuple[str, list[str]]:
    missing = forward_rows(plan)
    if plan.meta.get("optimizer", "adamw").partition(":")[0] not in ("adam", "adamw"):
        missing.append(
            f"optimizer {plan.meta['optimizer']}: torchtitan builds Adam and AdamW by name; rates are AdamW's"
        )
    by_module: dict[str, list[str]] = {}
    for name, (how, row) in folded(plan, lambda row: spelled(row.init)).items():
        module, _, leaf = name.rpartition(".")
        by_module.setdefault(module, []).append(commented(f"        {leaf!r}: {call_of(how)},", row.why))
    lines = [HELPERS, "# module name: its parameters' initializers", "PARAM_INIT = {"]
    for module, parts in by_module.items():
        # a module that stands by itself also has the rows of its pattern: torchtitan wants all of its parameters
        shared = by_module.get(pattern(module), []) if module != pattern(module) else []
        lines += [f"    {module!r}: {{", *shared, *parts, "    },"]
    lines += ["}", "# pattern, optimizer, factors of learning rate, weight decay and epsilon; the first match counts"]
    lines.append("GROUPS = [")
    groups: dict[tuple, list[str]] = {}
    for name, (value, _) in folded(plan, decayed_settings).items():
        groups.setdefault(value, []).append(as_regex(name))
    kind = "Adam" if plan.meta.get("optimizer") == "adam" else "AdamW"
    for (rate, decay, floor), names in groups.items():
        lines.append(f"    ({'|'.join(names)!r}, {kind!r}, {rate!r}, {decay!r}, {floor!r}),")
    return "\n".join([*lines, "]"]) + CODE, missing
