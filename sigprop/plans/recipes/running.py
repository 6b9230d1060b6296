"""Running a model on a batch of any usual form, and watching modules while it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn


def run_model(model: nn.Module, batch: Any) -> Any:
    """The model's output on a tensor, a tuple of arguments or a mapping of keywords."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple) else model(batch)


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
        run_model(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return found
