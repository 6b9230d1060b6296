"""Numbers that a model multiplies what it looks up with, before anything else reads it (Gemma: root of the width)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sigprop.capture.record import Field, Weight
from sigprop.structure.residual import SCALINGS

if TYPE_CHECKING:
    from sigprop.structure.residual import Tensors

STEPS = 4


@dataclass(frozen=True)
class TableScale:
    """The number, and whether the module that owns the table multiplies it in."""

    number: float = 1.0
    inside: bool = False


def table_scales(graph: Tensors) -> dict[str, TableScale]:
    """By embedding, its number, where it is not one."""
    found: dict[str, TableScale] = {}
    for item in graph.index:
        if item.call is None or item.call.name != "embedding":
            continue
        scale = _scale(graph, item)
        names = [name for source in item.inputs if isinstance(source, Weight) for name, _ in source.roots]
        found |= dict.fromkeys(names, scale) if scale.number != 1.0 else {}
    return found


def _scale(graph: Tensors, item: Field) -> TableScale:
    scale, owner, inside = 1.0, item.call.module if item.call is not None else "", False
    for _ in range(STEPS):
        readers = graph.readers.get(item, [])
        call = readers[0].call if len(readers) == 1 else None
        if call is None or call.name not in SCALINGS:
            break
        numbers = [number for value in call.args if (number := _number(value)) is not None]
        if len(numbers) != 1:
            break
        scale *= numbers[0] if "mul" in call.name else 1.0 / numbers[0]
        inside = call.module == owner
        item = readers[0]
    return TableScale(scale, inside)


def _number(value: Any) -> float | None:
    """A Python number or a tensor of one."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta:
        return float(value)
    return float(value) if isinstance(value, (int, float)) else None
