"""A function of tensors with the derivatives it takes, recorded once as plain operations and compiled as one program.

`torch.compile` reads Python, and cannot read the rules that run layers of all stacked networks as one kernel each.
Recorded are the operations that the function ends in, whatever Python led to them. Random numbers are drawn as without
the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sigprop.compat import compile_graph, make_fx
from sigprop.errors import UnsupportedError

Tensors = Mapping[str, Tensor]


class Compiled:
    """A function of tensors by name, compiled for the shapes of its first call."""

    def __init__(self, work: Callable[..., Any]):
        self.work = work
        self.program: Callable[..., Any] | None = None

    def __call__(self, *inputs: Tensors) -> Any:
        if self.program is None:
            self.program = _compiled(self.work, inputs)
        return self.program(*inputs)


def _compiled(work: Callable[..., Any], inputs: tuple[Tensors, ...]) -> Callable[..., Any]:
    """Recorded with tensors of the same shapes, each its own: what is given under two names would become one input."""
    apart = [{name: torch.empty_like(value) for name, value in group.items()} for group in inputs]
    try:
        with torch.autograd.set_multithreading_enabled(False):
            recorded = make_fx(lambda *groups: work(*groups), tracing_mode="fake")(*apart)
        return compile_graph(recorded, apart, options={"fallback_random": True})
    except Exception as error:
        raise UnsupportedError(
            f"the networks' step could not be compiled ({str(error).strip().splitlines()[0]}): use mode 'graph' on a "
            "CUDA device, or 'eager'"
        ) from error
