"""Running a model on a batch of any usual form, and watching modules while it runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from sigprop.batches import run


def outputs_of(model: nn.Module, batch: Any, names: Iterable[str]) -> dict[str, Tensor]:
    """The (first) output of each named module in one run."""
    found: dict[str, Tensor] = {}
    handles = []

    def watch(name: str):
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            found[name] = output[0] if isinstance(output, tuple) else output

        return hook

    try:
        for name in dict.fromkeys(names):
            handles.append(model.get_submodule(name).register_forward_hook(watch(name)))
        run(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return found
