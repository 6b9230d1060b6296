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


class BranchInput:
    """The input of a branch, from its entry to its end."""

    def __init__(self) -> None:
        self.value: Tensor | None = None


class Entry:
    """Forward pre-hook that holds the first tensor given to its module."""

    def __init__(self, held: BranchInput):
        self.held = held

    def __call__(self, module: nn.Module, inputs: tuple, kwargs: dict[str, Any]) -> None:
        self.held.value = inputs[0] if inputs else next(iter(kwargs.values()))


class Exit:
    """Forward hook that scales the branch and adds what the skip lacks."""

    def __init__(self, row: JunctionPlan, held: BranchInput | None):
        self.skip, self.branch, self.own, self.dropped, self.held = row.skip, row.branch, row.own, row.dropped, held

    def __call__(self, module: nn.Module, inputs: tuple, output: Any) -> Any:
        if isinstance(output, (tuple, list)):
            return type(output)([self._scaled(module, output[0]), *output[1:]])
        return self._scaled(module, output)

    def _scaled(self, module: nn.Module, branch: Tensor) -> Tensor:
        scaled = getattr(module, LEARNED, self.branch) * branch
        if self.held is None:
            return scaled
        skip, self.held.value = self.held.value, None
        if self.dropped and module.training:
            raise UnsupportedError(
                f"a dropout follows the {type(module).__name__} that ends a scaled branch and would drop the skip's "
                "share too: fold the scales (surgery=False), or set the dropout to 0"
            )
        if skip is None:
            raise UnsupportedError("a scaled junction ended before its branch began: the model runs it out of order")
        return scaled + (self.skip - 1.0) * self.own * skip


class Loading:
    """Hook before values are loaded: the learned scale of a module is no longer unread when it is among them."""

    def __call__(self, module: nn.Module, values: dict[str, Any], prefix: str, *rest: Any) -> None:
        if prefix + LEARNED in values:
            module.__dict__.pop(UNREAD, None)


class Hold:
    """Forward hook that holds the output of its module."""

    def __init__(self, held: BranchInput):
        self.held = held

    def __call__(self, module: nn.Module, inputs: tuple, output: Tensor) -> None:
        self.held.value = output


class Blend:
    """Forward pre-hook that adds what is held, scaled, to the scaled input of its module."""

    def __init__(self, skip: float, branch: float, held: BranchInput):
        self.skip, self.branch, self.held = skip, branch, held

    def __call__(self, module: nn.Module, inputs: tuple) -> tuple:
        value, self.held.value = self.held.value, None
        if value is None or value.shape != inputs[0].shape:
            raise UnsupportedError("a blended input does not match what was held for it: the model runs it otherwise")
        return (getattr(module, LEARNED, self.branch) * inputs[0] + self.skip * value, *inputs[1:])


HOOKS = (Entry, Exit, Hold, Blend)


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
        module, held = modules[row.name], None
        if row.place == "input":
            held = BranchInput()
            modules[row.entry].register_forward_hook(Hold(held))
            module.register_forward_pre_hook(Blend(row.skip, row.branch, held))
        elif row.skip != 1.0:
            held = BranchInput()
            modules[row.entry].register_forward_pre_hook(Entry(held), with_kwargs=True)
        if row.learnable:
            like = next(module.parameters(), None)
            options = {} if like is None else {"device": like.device, "dtype": like.dtype}
            module.register_parameter(LEARNED, nn.Parameter(torch.full(row.shape, row.branch, **options)))
        if row.place == "output":
            module.register_forward_hook(Exit(row, held))


def is_hooked(row: JunctionPlan) -> bool:
    """Whether a junction needs hooks: it is not folded and scales something."""
    scales = row.skip != 1.0 or row.branch != 1.0 or row.learnable or row.place == "input"
    return not row.folded and scales


def installed(modules: dict[str, nn.Module]) -> set[str]:
    """Names of the modules that end a hooked junction."""
    return {
        name
        for name, module in modules.items()
        if any(isinstance(hook, (Exit, Blend)) for hook in forward_hooks(module))
    }


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
        if remove_forward_hooks(module, HOOKS):
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
