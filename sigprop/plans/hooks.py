"""Residual junctions scaled from outside: hooks that turn `x + f(x)` into `skip * x + branch * f(x)`.

One hook holds what enters the branch, the other adds `(skip - 1) own x` to the branch's output, so that the model's
own sum `a x + b f`, with `own = a / b`, gives `skip a x + branch b f`. A learnable branch scale is a parameter of the
branch's module, `branch_scale`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sigprop.compat import forward_hooks, own_parameters, remove_forward_hooks
from sigprop.errors import InputError, UnknownNameError, UnsupportedError

if TYPE_CHECKING:
    from sigprop.plans.rows import JunctionPlan

LEARNED = "branch_scale"
UNREAD = "_sigprop_unread"
"""Attribute of a module whose learned scale was attached to loaded weights and has not been loaded itself."""


class Hold:
    """Forward hook that holds the first tensor its module takes in, or what it puts out, for a later one."""

    def __init__(self, place: str):
        self.place, self.value = place, None

    def __call__(self, module: nn.Module, inputs: tuple, rest: Any) -> None:
        self.value = rest if self.place == "output" else inputs[0] if inputs else next(iter(rest.values()))


class Change:
    """Forward hook: the first tensor that a module takes in (`place="input"`) or puts out, times `scale`, plus `share`
    of what is held. A parameter of the module, `branch_scale`, stands in for a learned scale."""

    learned = False

    def __init__(self, place: str, scale: float, share: float = 0.0, held: Hold | None = None, dropped: bool = False):
        self.place, self.scale, self.share, self.held, self.dropped = place, scale, share, held, dropped

    def __call__(self, module: nn.Module, inputs: tuple, rest: Any) -> Any:
        if self.place == "output":
            if isinstance(rest, (tuple, list)):
                return type(rest)([self._changed(module, rest[0]), *rest[1:]])
            return self._changed(module, rest)
        if inputs:
            return (self._changed(module, inputs[0]), *inputs[1:]), rest
        first = next(iter(rest))
        return inputs, {**rest, first: self._changed(module, rest[first])}

    def _changed(self, module: nn.Module, x: Tensor) -> Tensor:
        scaled = (getattr(module, LEARNED, self.scale) if self.learned else self.scale) * x
        if self.held is None:
            return scaled
        if self.dropped and module.training:
            raise UnsupportedError(
                f"a dropout follows the {type(module).__name__} that ends a scaled branch and would drop the skip's "
                "share too: fold the scales (surgery=False), or set the dropout to 0"
            )
        value, self.held.value = self.held.value, None
        if value is None or value.shape != x.shape:
            raise UnsupportedError("a scaled junction does not meet what was held for it: the model runs it otherwise")
        return scaled + self.share * value


class ScaleHook(Change):
    """What a row of `plan.scales` asks for."""


class JunctionHook(Change):
    """The end of a hooked junction."""

    learned = True


class Loading:
    """Hook before values are loaded: the learned scale of a module is no longer unread when it is among them."""

    def __call__(self, module: nn.Module, values: dict[str, Any], prefix: str, *rest: Any) -> None:
        if prefix + LEARNED in values:
            module.__dict__.pop(UNREAD, None)


def register(module: nn.Module, hook: Hold | Change) -> None:
    if hook.place == "output":
        module.register_forward_hook(hook)
    else:
        module.register_forward_pre_hook(hook, with_kwargs=True)


def learned_names(junctions: list[JunctionPlan]) -> set[str]:
    """Names of the parameters that junctions bring with them."""
    return {f"{row.name}.{LEARNED}" for row in junctions if row.learnable}


def install(junctions: list[JunctionPlan], modules: dict[str, nn.Module]) -> None:
    """Put the hooks and learnable scales of every junction that is not folded, in place of earlier ones."""
    remove(modules)
    for row in junctions:
        if not is_hooked(row):
            continue
        if row.skip != 1.0 and not row.entry:
            raise UnsupportedError(
                f"{row.name}: a skip scale of {row.skip:g} needs `entry`, the module that takes x in"
            )
        for name in (row.name, row.entry or row.name):
            if name not in modules:
                raise UnknownNameError("module of a junction", name, modules)
        if row.place == "input" and not row.entry:
            raise UnsupportedError(f"{row.name}: a junction at an input needs `entry`, the module that is mixed in")
        module, held, share = modules[row.name], None, row.skip
        if row.place == "input" or row.skip != 1.0:
            held = Hold("output" if row.place == "input" else "input")
            register(modules[row.entry], held)
        if row.place == "output":  # the model's own sum adds the skip once
            share = (row.skip - 1.0) * row.own
        register(module, JunctionHook(row.place, row.branch, share, held, row.dropped))
        if row.learnable:
            like = next(module.parameters(), None)
            options = {} if like is None else {"device": like.device, "dtype": like.dtype}
            module.register_parameter(LEARNED, nn.Parameter(torch.full(row.shape, row.branch, **options)))


def is_hooked(row: JunctionPlan) -> bool:
    """Whether a junction needs hooks: it is not folded and scales something."""
    scales = row.skip != 1.0 or row.branch != 1.0 or row.learnable or row.place == "input"
    return not row.folded and scales


def installed(modules: dict[str, nn.Module]) -> set[str]:
    """Names of the modules that end a hooked junction."""
    kinds = {name: {type(hook) for hook in forward_hooks(module)} for name, module in modules.items()}
    return {name for name, found in kinds.items() if JunctionHook in found}


def mark_unread(modules: dict[str, nn.Module], names: set[str]) -> None:
    """Learned scales that have their first values still, though the weights beside them were loaded."""
    for name in names:
        module = modules[name.removesuffix(f".{LEARNED}")]
        setattr(module, UNREAD, True)
        module.register_load_state_dict_pre_hook(Loading())


def unread(modules: dict[str, nn.Module]) -> list[str]:
    return [f"{name}.{LEARNED}" for name, module in modules.items() if getattr(module, UNREAD, False)]


def remove(modules: dict[str, nn.Module]) -> None:
    """Take off every hook and learnable scale that `install` put."""
    for module in modules.values():
        if remove_forward_hooks(module, (Hold, JunctionHook)):
            own_parameters(module).pop(LEARNED, None)
            module.__dict__.pop(UNREAD, None)


def fold_for_inference(junctions: list[JunctionPlan], modules: dict[str, nn.Module]) -> None:
    """Multiply the last parameters of every branch by its scale, as learned by now, and take the hooks off.

    The function of the model stays the same, up to the norms' epsilon where skip scales are folded.
    """
    rows = [row for row in junctions if not row.folded]
    for row in rows:
        if row.level == 0.0:
            raise UnsupportedError(
                f"{row.name}: a skip scale of {row.skip:g} cannot be folded where no norm follows; keep the hooks"
            )
    with torch.no_grad():
        for row in rows:
            scale = getattr(modules[row.name], LEARNED, torch.tensor(row.branch)) / row.level
            for name in row.weights:
                owner, _, leaf = name.rpartition(".")
                parameter = getattr(modules[owner], leaf)
                factor = _along_outputs(scale.to(parameter), parameter, modules[owner], name)
                parameter.add_(row.shift).mul_(factor).sub_(row.shift)
    remove(modules)


def _along_outputs(scale: Tensor, parameter: Tensor, owner: nn.Module, name: str) -> Tensor:
    """A scale per channel, shaped to multiply the output axis of a parameter."""
    if scale.dim() == 0 or parameter.dim() <= 1:
        return scale
    if isinstance(owner, nn.Linear):
        return scale[:, None]
    if type(owner).__name__ == "Conv1D":
        return scale
    if isinstance(owner, nn.Conv2d):
        return scale[:, None, None, None]
    raise InputError(f"{name}: a scale per channel can be folded into Linear, Conv1D and Conv2d only")
