"""Norms spelt out with means and roots."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sigprop.capture.capture import Capture
from sigprop.capture.layout import Layout
from sigprop.capture.record import Call, Field, Function
from sigprop.graph.graph import Node
from sigprop.theory.ops.layer_norm import LayerNorm, RMSNorm
from sigprop.theory.ops.narrow import Narrow
from sigprop.theory.ops.scale import Scale


def one_group(capture: Capture, node: Node, width: int, groups: int) -> Node:
    """One group of channels, which stands for all."""
    return capture.apply(Narrow(1.0, width, groups), node)


def centre(capture: Capture, x: Field) -> Field:
    """`x` minus its own average over channels; one record for each `x` and layout, as heads have averages each."""
    found = capture.centred.get((x.base, x.layout))
    if found is None:
        call = Call(_subtract_mean, "sub", (x,), {}, capture.module)
        found = capture.drawn_field(x.layout, call, (x,), "centred", centred=x.base)
        capture.centred[x.base, x.layout] = found
    return found


def _subtract_mean(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def centred(capture: Capture, call: Call, x: Field, average: Field) -> Field | None:
    """`x - mean(x)` over channels."""
    statistic = average.statistic
    if statistic is None or average.function is not None or x.function is not None or statistic.field is not x.base:
        return None
    if _power(statistic.function, 1) != 1.0 or statistic.count != 1.0:
        return None
    return centre(capture, x)


def normalized(capture: Capture, call: Call, x: Field, statistic: Field, inverse: bool) -> Field | None:
    """`x` times (or divided by) a function of its own mean square: RMSNorm, or LayerNorm when `x` was centred.

    With `v` the mean square, the factor must be `c / sqrt(v + epsilon)`; both are read off the function.
    """
    found = statistic.statistic
    if found is None or found.field is not x.base or (x.function is not None and x.slope is None):
        return None
    factor = _power(found.function, 2)
    if factor is None:
        return None
    points = torch.tensor([0.5, 1.0, 4.0, 9.0], dtype=torch.float64)
    values = statistic.apply(points * factor * found.count)
    level = values**2 if inverse else values**-2
    slope = float(level[2] - level[1]) / 3.0
    offset = float(level[1]) - slope
    if slope <= 0 or not torch.allclose(level, slope * points + offset, rtol=1e-4, atol=1e-9):
        return None
    scale = (1.0 if x.slope is None else x.slope) / math.sqrt(slope)
    epsilon = max(offset / slope, 0.0)
    epsilon = 0.0 if epsilon < 1e-12 else epsilon
    width = _norm_width(x.layout, statistic.layout)
    target, kind = (x.base.centred, LayerNorm) if x.base.centred is not None else (x.base, RMSNorm)
    assert target is not None

    groups = x.layout.channels // width
    node = target.node if groups == 1 else one_group(capture, target.node, width, groups)
    node = capture.apply(kind(epsilon=epsilon, affine=False), node)
    if groups > 1:
        node = capture.apply(Narrow(1.0, x.layout.channels), node)
    if abs(scale - 1.0) > 1e-6:
        node = capture.apply(Scale(scale), node)
    return Field(x.layout, lambda _: node, sources=x.sources, call=call, inputs=(x,))


def _norm_width(x: Layout, statistic: Layout) -> int:
    left = [axis for dim in statistic.dims for axis in dim if not axis.is_position]
    own = [axis for dim in x.dims for axis in dim if not axis.is_position and axis not in left]
    return max(1, math.prod(axis.size for axis in own))


def _power(function: Function, order: int) -> float | None:
    """`k` such that the function is `k x^order`, or None."""
    points = torch.tensor([1.0, 2.0, -3.0, 0.5], dtype=torch.float64)
    values = function(points)
    factor = float(values[0])
    return factor if factor and torch.allclose(values, factor * points**order, rtol=1e-6) else None
