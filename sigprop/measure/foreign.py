"""Noticing operations that may write into tensors without a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from torch import nn
from torch.autograd.function import BackwardCFunction


@contextmanager
def before_foreign_functions(notify: Callable[[], None]) -> Iterator[None]:
    """Call `notify` before an autograd function written in Python runs.

    Its kernels may reuse memory unseen by torch, as a fused loss does that puts the gradient in the logits' place.
    """

    def noticed(self: BackwardCFunction, *arguments: object) -> None:
        notify()

    BackwardCFunction.__init__ = noticed  # type: ignore[method-assign]
    try:
        yield
    finally:
        del BackwardCFunction.__init__


def writes_in_place(modules: Iterable[nn.Module]) -> bool:
    """Whether a module says that it overwrites its input."""
    return any(vars(module).get("inplace") for module in modules)
