"""Noticing operations that may write into tensors without a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.autograd import function

STEP = "_is_setup_context_defined"


@contextmanager
def before_unseen_writes(notify: Callable[[], None]) -> Iterator[None]:
    """Call `notify` before an autograd function written in Python runs forward.

    Its kernels may reuse memory unseen by torch, as a fused loss does that puts the gradient in the logits' place.
    What is watched is a step that `Function.apply` takes; a torch without it is not trusted at all.
    """
    step = getattr(function, STEP, None)
    if step is None:
        notify()
        yield
        return

    def noticed(*args: Any) -> Any:
        notify()
        return step(*args)

    setattr(function, STEP, noticed)
    try:
        yield
    finally:
        setattr(function, STEP, step)


def writes_in_place(modules: Iterable[nn.Module]) -> bool:
    """Whether a module says that it overwrites its input."""
    return any(vars(module).get("inplace") for module in modules)
