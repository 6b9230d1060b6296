"""One batch for everything: what a user brings, as what a model's forward takes; and the one walk through nests.

A batch is a tensor, a tuple of positional arguments, a mapping of keyword arguments, or a `DataLoader` (its first
batch). A tuple whose last tensor the forward has no place for is `(inputs, targets)`: the targets become `labels`,
which a loss of `sigprop.losses` finds and a forward without `labels` never sees.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from sigprop.errors import InputError
from sigprop.isolation.observers import as_written

LABELS = "labels"


class Labelled(dict):
    """Keyword arguments with `labels`, made of `(inputs, targets)`; `given` is what a loss of the user's own gets."""

    def __init__(self, arguments: Mapping[str, Any], given: Any):
        super().__init__(arguments)
        self.given = given


def first_batch(data: Any) -> Any:
    """The batch itself, or the first one of a `DataLoader` or another iterable of batches."""
    if data is None or isinstance(data, (Tensor, Mapping, tuple)) or hasattr(data, "keys"):
        return data
    if hasattr(data, "__array__"):
        raise InputError(f"batch is {type(data).__name__}: needs a tensor; pass torch.as_tensor(batch)")
    if isinstance(data, list) and data and all(isinstance(item, (int, float)) for _, item in leaves(data)):
        raise InputError("batch is a list of numbers: needs a tensor; pass torch.tensor(batch)")
    if isinstance(data, list):
        return tuple(data)
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes)):
        for item in data:
            return tuple(item) if isinstance(item, list) else item
        raise InputError(f"the {type(data).__name__} given as batch is empty: needs at least one batch")
    raise InputError(f"batch is {type(data).__name__}: needs a tensor, a tuple, a mapping or a DataLoader")


def as_batch(data: Any, model: nn.Module) -> Any:
    """The first batch, with targets that the model's forward has no place for as `labels`."""
    batch = first_batch(data)
    if type(batch) is not tuple or len(batch) < 2 or not isinstance(batch[-1], Tensor):
        return batch
    forward = _signature(model)
    if LABELS not in forward.parameters and _takes(forward, batch):
        return batch
    if not _takes(forward, batch[:-1]):
        return batch
    bound = forward.bind(*batch[:-1])
    plain = all(forward.parameters[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for name in bound.arguments)
    return Labelled({**bound.arguments, LABELS: batch[-1]}, batch) if plain else batch


def run(model: nn.Module, batch: Any) -> Any:
    """`model(tensor)`, `model(*tuple)` or `model(**mapping)`, without labels that it does not take."""
    if isinstance(batch, Mapping):
        return model(**_taken(model, batch))
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


def _taken(model: nn.Module, batch: Mapping[str, Any]) -> Mapping[str, Any]:
    if LABELS not in batch:
        return batch
    parameters = _signature(model).parameters
    if LABELS in parameters or any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values()):
        return batch
    return {key: value for key, value in batch.items() if key != LABELS}


def _signature(model: nn.Module | Callable[..., Any]) -> inspect.Signature:
    """What a model, or a function that stands for one, takes."""
    return inspect.signature(getattr(as_written(model), "forward", model))


def _takes(forward: inspect.Signature, arguments: tuple[Any, ...]) -> bool:
    try:
        forward.bind(*arguments)
    except TypeError:
        return False
    return True


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """What nested tuples, lists, mappings and dataclasses hold, with its place: `[0]`, `[key]`."""
    if isinstance(value, Mapping):
        items: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, (tuple, list)):
        items = enumerate(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = ((field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value))
    else:
        yield place, value
        return
    for key, item in items:
        yield from leaves(item, f"{place}[{key}]")


def tensors_in(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a nest, with its place in it."""
    if isinstance(value, Tensor):
        return iter([("", value)])
    return ((place, item) for place, item in leaves(value) if isinstance(item, Tensor))


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same nest of tuples and mappings with every leaf changed."""
    if isinstance(value, Labelled):
        return Labelled({key: mapped(item, change) for key, item in value.items()}, mapped(value.given, change))
    if isinstance(value, Mapping):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(item, change) for item in value))
    if isinstance(value, (tuple, list)):
        return tuple(mapped(item, change) for item in value)
    return change(value)


def copied(batch: Any) -> Any:
    """A batch that a model may write into: copies of its tensors, and of objects that hold some, such as a cache."""

    def copy_of(item: Any) -> Any:
        if not isinstance(item, Tensor):
            return copy.deepcopy(item)
        made = item.detach().clone()
        return made.requires_grad_() if item.requires_grad else made

    return mapped(batch, copy_of)


def shortened(batch: Any, tokens: int) -> tuple[Any, tuple[int, int] | None]:
    """The batch with sequences cut to `tokens`, and the lengths before and after if any was cut."""
    lengths: list[int] = []

    def cut(item: Any) -> Any:
        if isinstance(item, Tensor) and item.dim() == 2 and not item.is_floating_point() and item.shape[1] > tokens:
            lengths.append(item.shape[1])
            return item[:, :tokens]
        return item

    batch = mapped(batch, cut)
    return batch, (max(lengths), tokens) if lengths else None
