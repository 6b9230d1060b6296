"""Noticing operations that may write into tensors without a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.function import Function, FunctionMeta

ASKED = "forward"


class _Probe(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x


@contextmanager
def before_unseen_writes(notify: Callable[[], None]) -> Iterator[None]:
    """Call `notify` before an autograd function written in Python runs forward.

    Its kernels may reuse memory unseen by torch, as a fused loss does that puts the gradient in the logits' place.
    However a torch applies such a function, it asks the class for `forward`; one that does not is not trusted at all.
    """
    seen = False

    def noticed(function: Any, name: str) -> Any:
        nonlocal seen
        if name == ASKED and function is _Probe:
            seen = True
        elif name == ASKED:
            notify()
        return type.__getattribute__(function, name)

    FunctionMeta.__getattribute__ = noticed  # type: ignore[method-assign]
    try:
        _Probe.apply(torch.zeros(()))
        if not seen:
            notify()
        yield
    finally:
        del FunctionMeta.__getattribute__


def writes_in_place(modules: Iterable[nn.Module]) -> bool:
    """Whether a module says that it overwrites its input."""
    return any(vars(module).get("inplace") for module in modules)
