"""GroupNorm: statistics over some channels and all pixels of an image."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sigprop.theory import Dense, Gradient, Node, Signal, Status
from sigprop.theory.ops.base import Op, ParameterState
from sigprop.theory.ops.normalization import gated_gain
from sigprop.trace.layout import BATCH, Layout
from sigprop.trace.record import Call, Field, Weight
from sigprop.trace.rules import rule
from sigprop.trace.rules.elementwise import replayed

if TYPE_CHECKING:
    from sigprop.trace.capture import Capture

FEWEST = 32


@dataclass(frozen=True, eq=False)
class GroupNorm(Op):
    """`y = gain * (x - mean) / std + bias`, statistics over channels and pixels; `image` numbers the positions' images.

    Forward   `K_y = (K_x - m m' ...) / (s s')`, `m` and `s^2` the mean and the variance over an image's pixels
    Backward  `G_x = G_y / (s s')`: the two directions removed are few against channels times pixels

    For groups of many channels; few channels are sampled.
    """

    image: Tensor
    gain_second_moment: float
    bias_second_moment: float
    epsilon: float
    affine: bool

    def _unit(self, x: Signal) -> tuple[Tensor, Tensor, Tensor]:
        """Kernel and mean before gain and bias, and the scale of each position."""
        count = int(self.image.max()) + 1
        size = torch.bincount(self.image, minlength=count).to(x.mean)

        def average(values: Tensor) -> Tensor:
            return (torch.zeros(count, dtype=values.dtype).index_add(0, self.image, values) / size)[self.image]

        shift = average(x.mean)
        centred = x.kernel.values - x.mean[:, None] * shift - shift[:, None] * (x.mean - shift)
        scale = (average(centred.diagonal()) + self.epsilon).sqrt()
        return centred / (scale[:, None] * scale), (x.mean - shift) / scale, scale

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel, mean, _ = self._unit(x)
        values = kernel * self.gain_second_moment + self.bias_second_moment
        return replace(x, kernel=Dense(values), mean=mean).note(Status.ASYMPTOTIC, "statistics of large groups")

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        _, _, scale = self._unit(inputs[0])
        values = gradient.kernel.values * (self.gain_second_moment / (scale[:, None] * scale))
        return (Gradient(Dense(values), evidence=gradient.evidence),)

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        if not self.affine:
            return []
        (x,) = inputs
        values, mean, _ = self._unit(x)
        kernel = Dense(values)
        gain = gradient.kernel.contract(kernel) + gated_gain(gradient, kernel, mean, self.gain_second_moment)
        return [
            ParameterState("weight", (x.width,), "norm gain", 0.0, gain),
            ParameterState("bias", (x.width,), "bias", 0.0, gradient.kernel.total()),
        ]


@rule("group_norm")
def group_norm(
    trace: Capture,
    call: Call,
    input: Any,
    num_groups: int,
    weight: Weight | None = None,
    bias: Weight | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Any:
    known = isinstance(input, Field) and all(isinstance(item, Weight) or item is None for item in (weight, bias))
    if not known or input.shape[1] // num_groups < FEWEST or not _is_image(input.layout):
        return replayed(trace, call)
    op = GroupNorm(
        _images(input.layout),
        1.0 if weight is None else weight.distribution.second_moment,
        0.0 if bias is None else bias.distribution.second_moment,
        eps,
        weight is not None,
    )
    bound = {
        name: (item, math.prod(item.shape)) for name, item in (("weight", weight), ("bias", bias)) if item is not None
    }

    def make(_: Field) -> Node:
        return trace.apply(op, input.node, weights=bound)

    inputs = tuple(item for item in (input, weight, bias) if item is not None)
    return Field(input.layout, make, sources=input.sources, call=call, inputs=inputs)


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
