"""Replay: run the model's own functions on numbers drawn from the predicted states.

A tensor is drawn by drawing its sources from their kernels, at their real shapes, and calling again the functions
that lead from them to it. Rotary positions, masks, biases, norms of queries and keys, routing and whatever else a
model does between its linear maps need no rule of their own.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.ensemble import Ensemble, fewest_balanced
from sigprop.capture.joint import Joint
from sigprop.capture.layout import Layout
from sigprop.capture.record import Call, Field, Record, Weight, mapped
from sigprop.capture.shapes import no_rule
from sigprop.errors import SigpropError
from sigprop.graph.evaluate import Evaluation
from sigprop.graph.graph import Node
from sigprop.theory.drawing import DTYPE, drawn_rows
from sigprop.theory.ops.linear import Linear

NARROW = 50.0


class Replay:
    """One draw of everything that is asked for; the same record gives the same numbers.

    `ensemble` holds what this draw, number `replica`, has in common with others. `slices` are channel slices that are
    drawn by themselves, their source never. `states` gives the signals and laws.
    `weight_share`: how much of the energy of a weight's gradient one draw has.
    """

    weight_share = 1.0

    def __init__(
        self,
        states: Evaluation,
        generator: torch.Generator,
        gradients: bool = False,
        ensemble: Ensemble | None = None,
        replica: int = 0,
        slices: Collection[Field] = (),
        joint: Joint | None = None,
    ):
        self.states = states
        self.generator = generator
        self.gradients = gradients
        self.ensemble = ensemble or Ensemble(states, 1, generator)
        self.replicas = slice(replica, replica + 1)
        self.slices = slices
        self.joint = joint
        self._together: Tensor | None = None
        self.values: dict[Record, Any] = {}
        self.weights: dict[Weight, Tensor] = {}

    def __call__(self, record: Record) -> Tensor:
        if record not in self.values:
            self._play(record)
        return self.values[record]

    def forget(self) -> None:
        """Keep what was drawn only; gradients pass through what followed from it."""
        self.values = {record: value for record, value in self.values.items() if value.is_leaf}

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

    def _is_leaf(self, record: Record) -> bool:
        return record.call is None or (isinstance(record, Field) and (record.is_source or record in self.slices))

    def _leaf(self, record: Record) -> Tensor:
        if isinstance(record, Weight):
            value = self.states.law(record).draw(record.shape, self.generator).to(DTYPE)
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
        if call.name == "as_strided":  # by strides of the tensor that stood for it, which is contiguous
            args = (args[0].contiguous(), *args[1:])
        with torch.set_grad_enabled(self.gradients and not record.without_gradient):
            function = torch.Tensor.reshape if call.name == "view" else call.function
            result = _called(call, function, args, kwargs)
        return result if record.output is None else result[record.output]

    def _draw(self, item: Field) -> Tensor:
        """Gaussian numbers of the field's shape with its token kernel and mean, channels independent."""
        source = item.sources[0].field
        if self.joint is not None and source in self.joint.spans:
            return self.from_rows(item, self._drawn_together(self.joint, item)[:, self.joint.spans[source]])
        node = source.node
        rows = drawn_rows(self.roots(node), self.layout(item).channels, self.generator)
        return self.from_rows(item, rows + self.states.signal(node).mean.to(DTYPE)[:, None])

    def _drawn_together(self, joint: Joint, item: Field) -> Tensor:
        if self._together is None:
            rows = drawn_rows(self.roots(joint.node), item.layout.channels, self.generator)
            self._together = rows + self.states.signal(joint.node).mean.to(DTYPE)[:, None]
        return self._together

    def heads_left_out(self, item: Field) -> float:
        """How many times more heads than were drawn send a gradient to a field."""
        return 1.0

    def layout(self, item: Field) -> Layout:
        """The layout that a field is drawn in, in every replica."""
        return item.layout

    def from_rows(self, item: Field, rows: Tensor) -> Tensor:
        """Numbers `[replica, position, channel]` in the shape of a field."""
        return item.layout.from_rows(rows[0]).contiguous()

    def to_rows(self, item: Field, values: Tensor) -> Tensor:
        """The inverse of `from_rows`."""
        return item.layout.to_rows(values)[None]

    def roots(self, node: Node) -> Tensor:
        """For every replica `R` with `R R^T` the covariance in one initialization: that of a linear map follows the
        drawn kernel of its input.

        Queries, keys and values made from one input of finite width share its fluctuations, which are of order
        1/sqrt(width) for pairs of tokens and do not average out in products of two kernels.
        """
        picked = self.states.op(node).picks
        if picked is not None:
            return self.roots(node.inputs[0])[:, picked]
        if not is_narrow(self.states, node):
            return self.ensemble.expected(node).expand(self.replicas.stop - self.replicas.start, -1, -1)
        op = self.states.op(node)
        assert isinstance(op, Linear)
        inside = self.ensemble.drawn(node.inputs[0])[self.replicas] * (op.fan_in * op.variance) ** 0.5
        if not op.bias_variance:
            return inside
        return torch.cat((inside, torch.full_like(inside[..., :1], float(op.bias_variance) ** 0.5)), -1)

    def fluctuation(self, node: Node) -> Tensor | None:
        """How far the drawn kernels of a linear map's input are from their expectation; None where none is drawn."""
        if not is_narrow(self.states, node):
            return None
        roots = self.ensemble.drawn(node.inputs[0])[self.replicas]
        return roots @ roots.mT - self.states.signal(node.inputs[0]).kernel.values


def _called(call: Call, function: Any, args: Any, kwargs: Any) -> Any:
    """What a model's own function refuses of drawn numbers is a refusal of its call."""
    try:
        return function(*args, **kwargs)
    except SigpropError:
        raise
    except Exception as error:
        raise no_rule(call, f"it fails on drawn numbers: {type(error).__name__}: {error}") from error


def is_narrow(states: Evaluation, node: Node) -> bool:
    """A linear map of channels, position by position, whose input has so few that its kernel fluctuates."""
    op = states.op(node)
    if op.picks is not None:
        return is_narrow(states, node.inputs[0])
    return isinstance(op, Linear) and op.by_position and NARROW * states.positions(node) >= op.fan_in


def balanced_replicas(states: Evaluation, node: Node) -> int:
    """How many replicas are needed for the fluctuations of a node to balance."""
    if states.op(node).picks is not None:
        return balanced_replicas(states, node.inputs[0])
    if not is_narrow(states, node):
        return 1
    return fewest_balanced(states.positions(node), states.signal(node.inputs[0]).independent_channels)


def _needed(record: Record) -> list[Record]:
    return record.call.records() if record.call is not None else []


def parts_of_sources(target: Field) -> dict[Field, list[Field]]:
    """For each source of a field what must be drawn of it: itself, or the slices that the field uses, if disjoint."""
    parts: dict[Field, list[Field]] = {source.field: [] for source in target.sources}
    stack, seen = [target], set()
    while stack:
        record = stack.pop()
        if record in seen or not isinstance(record, Field):
            continue
        seen.add(record)
        source = record.sources[0] if len(record.sources) == 1 else None
        if source is not None and (record.is_source or (source.ranges and not _is_sliced(record.inputs[0]))):
            parts.setdefault(source.field, []).append(record)
        else:
            stack.extend(_needed(record))  # type: ignore[arg-type]
    return {source: found if _are_disjoint(found) else [source] for source, found in parts.items()}


def sites_between(target: Field, parts: dict[Field, list[Field]]) -> list[Field]:
    """Sites that a replay passes on the way to a target, neither drawn nor the target itself."""
    return [record for record in records_between(target, parts) if isinstance(record, Field) and record.is_site]


def records_between(target: Field, parts: dict[Field, list[Field]]) -> set[Record]:
    """What a replay passes on the way to a target, neither drawn nor the target itself."""
    drawn = {part for found in parts.values() for part in found}
    stack, seen = list(_needed(target)), set()
    while stack:
        record = stack.pop()
        if record not in seen and record not in drawn:
            seen.add(record)
            stack.extend(_needed(record))
    return seen


def _is_sliced(record: Record) -> bool:
    return not isinstance(record, Field) or len(record.sources) != 1 or bool(record.sources[0].ranges)


def _are_disjoint(fields: list[Field]) -> bool:
    return all(a.sources[0].disjoint(b.sources[0]) for n, a in enumerate(fields) for b in fields[:n])
