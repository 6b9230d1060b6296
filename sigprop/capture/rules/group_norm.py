"""GroupNorm: statistics over some channels and all pixels of an image."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.capture import Capture
from sigprop.capture.fields.norms import affine, channel_shape, image_layout, of_real
from sigprop.capture.fields.replayed import replayed
from sigprop.capture.layout import BATCH, Layout
from sigprop.capture.record import Call, Field, Weight, few_entries
from sigprop.capture.registry import rule
from sigprop.graph.graph import Node
from sigprop.theory.ops.group_norm import GroupNorm

FEWEST = 32
"""Channels of a group that a rule follows; those of fewer are drawn."""


@rule("group_norm")
def group_norm(
    capture: Capture,
    call: Call,
    input: Any,
    num_groups: int,
    weight: Weight | None = None,
    bias: Weight | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Any:
    if isinstance(input, Tensor):
        values = torch.group_norm(input, num_groups, eps=eps)
        return of_real(capture, call, values, weight, bias, image_layout(values), channel_shape(values))
    known = isinstance(input, Field) and all(isinstance(item, Weight) or item is None for item in (weight, bias))
    if not known or input.shape[1] // num_groups < FEWEST or not _is_image(input.layout):
        return _replayed(capture, call, input.shape, num_groups)
    told, bound = affine(weight, bias)
    op = GroupNorm(epsilon=eps, affine=bool(bound), image=_images(input.layout), **told)

    def make(_: Field) -> Node:
        return capture.apply(op, input.node, weights=bound)

    inputs = tuple(item for item in (input, weight, bias) if item is not None)
    return Field(input.layout, make, sources=input.sources, call=call, inputs=inputs)


@rule("instance_norm")
def instance_norm(capture: Capture, call: Call, input: Any, *_: Any, **__: Any) -> Any:
    return _replayed(capture, call, input.shape, input.shape[1])


def _replayed(capture: Capture, call: Call, shape: tuple[int, ...], groups: int) -> Any:
    """Drawn, and so is what follows it where a group has few entries."""
    made = replayed(capture, call)
    if isinstance(made, Field):
        made.of_few = few_entries(math.prod(shape[1:]) // groups)
    return made


def _is_image(layout: Layout) -> bool:
    """Channels second, positions everywhere else."""
    others = [axis for place, dim in enumerate(layout.dims) if place != 1 for axis in dim]
    return all(axis.is_position for axis in others) and not any(axis.is_position for axis in layout.dims[1])


def _images(layout: Layout) -> Tensor:
    """Which image each row of the kernel belongs to."""
    index = torch.zeros([axis.size for axis in layout.order] or [1], dtype=torch.long)
    for axis in (a for a in layout.order if a in layout.dims[0] or a.role == BATCH):
        shape = [-1 if other is axis else 1 for other in layout.order]
        index = index * axis.size + torch.arange(axis.size).reshape(shape)
    return index.flatten()
