"""Names of sites and parameters, made here alone, so that a prediction and a measurement join by name.

blocks.3.mlp          the output of a module
(output)              of the model itself
blocks.3.mlp@2        of its second call
lstm[1][0]            a further tensor of its output
blocks.3.scores       the attention scores that it computes
blocks.3.add          a residual sum that it computes

Parameters go by the names of the plain model: the prefixes of wrappers (`torch.compile`, FSDP, DDP, activation
checkpointing) are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import torch
from torch import nn

WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
ROOT = "(output)"
SCORES, ADDITION = "scores", "add"
BLOCK_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|@|\[|$)")


def nth(name: str, call: int) -> str:
    """The name of a module's or function's n-th call, counted from one."""
    return name if call == 1 else f"{name}@{call}"


def outputs(name: str, call: int, paths: list[str]) -> list[str]:
    """The names of the tensors of a module's n-th output, which have these places in it."""
    return [part(nth(name, call), path, number) for number, path in enumerate(paths)]


def inside(module: str, kind: str) -> str:
    """What a module computes between its inputs and its output: scores, or a sum."""
    return f"{module}.{kind}"


def part(name: str, path: str, number: int) -> str:
    """The n-th tensor of an output, counted from zero; `path` is its place in it, such as `[1][0]`."""
    return name if number == 0 else name + path


class CallCounter:
    """Counts the calls of each name, and names them."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def next(self, name: str) -> str:
        self._counts[name] = call = self._counts.get(name, 0) + 1
        return nth(name, call)


def plain_name(name: str) -> str:
    """The qualified name without the prefixes that wrappers add."""
    for prefix in WRAPPERS:
        name = name.replace(prefix, "")
    return name


def pattern(name: str) -> str:
    """The name with every number as `*`."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside DataParallel or DistributedDataParallel; any other model as it is."""
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return model.module
    return model


def modules_of(model: nn.Module) -> dict[str, nn.Module]:
    """Modules by the names that plans and predictions use, without the prefixes of wrappers."""
    return {plain_name(f"{name}.").rstrip("."): module for name, module in unwrap(model).named_modules()}


def hookable_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All modules but TorchScript's, which take no hooks."""
    return ((name, item) for name, item in model.named_modules() if not isinstance(item, torch.jit.ScriptModule))


def parameter_names(model: nn.Module) -> dict[str, list[str]]:
    """First name of every parameter -> all of its names (several if tied). Whole numbers are not initialized."""
    names: dict[int, list[str]] = {}
    for name, parameter in unwrap(model).named_parameters(remove_duplicate=False):
        if parameter.is_floating_point() or parameter.is_complex():
            names.setdefault(id(parameter), []).append(plain_name(name))
    return {aliases[0]: aliases for aliases in names.values()}


def depths(names: Iterable[str]) -> list[int]:
    """The depth of each site, in order of execution."""
    return list(map(DepthCounter(), names))


class DepthCounter:
    """The depth of a site: how many repeated blocks the signal has entered, asked site by site in order of execution.

    Inside a block it is the block's number counted from one, elsewhere the deepest block so far.
    """

    def __init__(self) -> None:
        self.deepest = 0

    def __call__(self, name: str) -> int:
        number = BLOCK_NUMBER.search(name)
        if number is None:
            return self.deepest
        depth = int(number.group(1)) + 1
        self.deepest = max(self.deepest, depth)
        return depth
