"""Compiled models, run as they were written, so that hooks and modes see every step."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import nn

from sigprop.compat import any_compiled, uncompiled

Model = TypeVar("Model")


def as_written(model: Model) -> Model:
    """The module behind `torch.compile(module)`; anything else as it is."""
    return uncompiled(model)


def eagerly(modules: Iterable[nn.Module]) -> AbstractContextManager[Any]:
    """Inside, compiled submodules run as written. Torch has one switch for the process: see `undisturbed`."""
    return torch.compiler.set_stance("force_eager") if any_compiled(modules) else nullcontext()
