"""Replay: run the model's own functions on numbers drawn from the predicted states.

A tensor is drawn by drawing its sources from their kernels, at their real shapes, and calling again the functions
that lead from them to it. Rotary positions, masks, biases, norms of queries and keys, routing and whatever else a
model does between its linear maps need no rule of their own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sigprop.theory import Node
from sigprop.theory.ops.linear import Linear
from sigprop.trace.layout import Layout
from sigprop.trace.record import Field, Record, Weight, mapped
from sigprop.trace.structural import Gather, Part

DTYPE = torch.float32
NARROW = 50.0
_ROOT = "_sigprop_root"


class Replay:
    """One draw of everything that is asked for; the same record gives the same numbers."""

    def __init__(self, generator: torch.Generator, gradients: bool = False):
        self.generator = generator
        self.gradients = gradients
        self.values: dict[Record, Any] = {}
        self.weights: dict[Weight, Tensor] = {}
        self._realized: dict[Node, Tensor] = {}

    def __call__(self, record: Record) -> Tensor:
        if record not in self.values:
            self._play(record)
        return self.values[record]

    def _play(self, record: Record) -> None:
        """Iterative depth-first evaluation: chains may be long."""
        stack = [record]
        while stack:
            current = stack[-1]
            if current in self.values:
                stack.pop()
                continue
            waiting = [] if self._is_leaf(current) else [r for r in _needed(current) if r not in self.values]
            if waiting:
                stack.extend(waiting)
                continue
            self.values[current] = self._leaf(current) if self._is_leaf(current) else self._call(current)
            stack.pop()

    @staticmethod
    def _is_leaf(record: Record) -> bool:
        return record.call is None or (isinstance(record, Field) and record.is_source)

    def _leaf(self, record: Record) -> Tensor:
        if isinstance(record, Weight):
            value = record.distribution.draw(record.shape, self.generator).to(DTYPE)
            self.weights[record] = value
        elif isinstance(record, Field):
            value = self._draw(record)
        else:
            raise TypeError(f"cannot draw {type(record).__name__}")
        return value.requires_grad_(self.gradients)

    def _call(self, record: Record) -> Tensor:
        call = record.call
        assert call is not None

        def value(item: Any) -> Any:
            return self.values[item] if isinstance(item, Record) else item

        args, kwargs = mapped(call.args, value), mapped(call.kwargs, value)
        if call.in_place and args and isinstance(args[0], Tensor):
            args = (args[0].clone(), *args[1:])
        with torch.set_grad_enabled(self.gradients):
            function = torch.Tensor.reshape if call.name == "view" else call.function
            result = function(*args, **kwargs)
        return result if record.output is None else result[record.output]

    def _draw(self, item: Field) -> Tensor:
        """Gaussian numbers of the field's shape with its token kernel and mean, channels independent."""
        layout = self.layout(item)
        rows = rows_from(self.kernel(item.node), item.node.signal.mean, layout.channels, self.generator)
        return layout.from_rows(rows).contiguous()

    def layout(self, item: Field) -> Layout:
        """The layout that a field is drawn in."""
        return item.layout

    def kernel(self, node: Node) -> Tensor:
        """The kernel of one initialization: that of a linear map follows the drawn kernel of its input.

        Queries, keys and values made from one input of finite width share its fluctuations, which are of order
        1/sqrt(width) for pairs of tokens and do not average out in products of two kernels.
        """
        if isinstance(node.op, Part):
            return self.kernel(node.inputs[0])
        if isinstance(node.op, Gather):
            return self.kernel(node.inputs[0])[node.op.index][:, node.op.index]
        if not isinstance(node.op, Linear) or NARROW * len(node.signal.mean) < node.op.fan_in:
            return node.signal.kernel.values
        shift = node.op.bias_variance or 0.0
        return self._input_kernel(node.inputs[0]) * (node.op.fan_in * node.op.variance) + shift

    def fluctuation(self, node: Node) -> Tensor | None:
        """How far the drawn kernel of a linear map's input is from its expectation, where it was drawn."""
        if not isinstance(node.op, Linear) or node.inputs[0] not in self._realized:
            return None
        return self._realized[node.inputs[0]] - node.inputs[0].signal.kernel.values

    def _input_kernel(self, node: Node) -> Tensor:
        if node not in self._realized:
            signal = node.signal
            expected = signal.kernel.values
            rows = rows_from(expected, signal.mean, signal.width, self.generator).double()
            drawn = rows @ rows.T / signal.width
            if isinstance(signal.norm_fluctuation, float) and signal.norm_fluctuation == 0.0:
                level = (expected.diagonal() / drawn.diagonal().clamp_min(1e-300)).clamp_min(0.0).sqrt()
                drawn = drawn * level[:, None] * level
            self._realized[node] = drawn
        return self._realized[node]


def _needed(record: Record) -> list[Record]:
    return record.call.records() if record.call is not None else []


def rows_from(kernel: Tensor, mean: Tensor, channels: int, generator: torch.Generator) -> Tensor:
    """`[positions, channels]` with the given second moments and mean over channels."""
    noise = torch.randn(len(kernel), channels, generator=generator, dtype=DTYPE)
    found = getattr(kernel, _ROOT, None)
    if found is None or found[0] is not mean:
        found = mean, root(kernel - mean[:, None] * mean).to(DTYPE)
        setattr(kernel, _ROOT, found)
    return found[1] @ noise + mean.to(DTYPE)[:, None]


def root(kernel: Tensor) -> Tensor:
    """A matrix `R` with `R R^T` the kernel."""
    scale = kernel.diagonal().mean().clamp_min(1e-300)
    eye = torch.eye(len(kernel), dtype=kernel.dtype)
    factor, failed = torch.linalg.cholesky_ex(kernel / scale + 1e-7 * eye)
    if not failed:
        return factor * scale.sqrt()
    values, vectors = torch.linalg.eigh(kernel / scale)
    return vectors * (values.clamp_min(0.0) * scale).sqrt()
