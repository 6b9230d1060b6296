"""Rows of a profile from the states of a traced model."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.layout import Layout
from sigprop.capture.record import Field
from sigprop.capture.replayed_function import function_of
from sigprop.capture.roles import find_roles
from sigprop.capture.summaries import axes_of, fitting_mask, padding_masks, summary
from sigprop.capture.tracing import TracedModel
from sigprop.graph.evaluate import Evaluation, Start
from sigprop.graph.graph import Node
from sigprop.results import ParameterRow, SiteRow
from sigprop.results.depth import DepthCounter
from sigprop.results.stated_errors import stated_by_theory
from sigprop.theory import Evidence, Gradient, Signal
from sigprop.theory.ops.linear import Linear

LARGEST = 1024
"""Positions of a tensor between others that are followed for its row alone."""
FEW = 32
"""Channels up to which their own average counts: beyond it is at most 3 % of a variance."""


class SiteRows:
    """Rows of the sites: signals at once, gradients as the backward pass comes by."""

    def __init__(self, found: TracedModel, states: Evaluation, start: Start):
        self._states, self._repeats = states, found.capture.repeats
        self.sites: list[SiteRow] = []
        self._waiting: dict[Node, list[tuple[SiteRow, Field]]] = {}
        self._kept: dict[Field, Gradient] = {}
        self._masks = padding_masks(found.batch)
        self._last: tuple[Any, tuple[float, float, float], Any] | None = None
        depth = DepthCounter()
        for name, item in found.sites:
            if any(axis.role == "key" for dim in item.layout.dims for axis in dim):
                continue
            if item._node is None and item.layout.positions > LARGEST:
                count = f"{item.layout.positions:,} positions, more than the {LARGEST:,} of a tensor between others"
                self.sites.append(SiteRow(name, depth(name), status="assumed", reason=f"not followed: {count}"))
                continue
            with found.capture.lock:
                signal = states.signal(item.node)
            mean, variance, correlation = self._summary(name, signal, signal.mean, item.layout)
            if isinstance(item.node.op, Linear):
                variance = max(variance - _of_the_average(signal), 0.0)
            row = SiteRow(name, depth(name), mean, variance, correlation, status=str(signal.evidence.status))
            row.reason = signal.evidence.reason
            row.stated_errors = stated_by_theory(variance=signal.evidence)
            self.sites.append(row)
            if item.requires_grad:
                self._waiting.setdefault(item.node, []).append((row, item))
        drawn = filter(None, map(function_of, found.capture.graph.nodes))
        self._bypassed = {site for function in drawn for site in function.sites_between}.union(start.passed)

    def take_gradient(self, node: Node, gradient: Gradient) -> None:
        for row, item in self._waiting.get(node, ()):
            self._fill(row, item, gradient)
            if item in self._bypassed:
                self._kept[item] = gradient

    def finish(self) -> list[SiteRow]:
        """Add the gradients that passed sites without their nodes."""
        for found in self._waiting.values():
            for row, item in found:
                passed, kept = self._states.passed.get(item), self._kept.get(item)
                if passed is not None:
                    self._fill(row, item, passed if kept is None else passed + kept)
        return self.sites

    def _fill(self, row: SiteRow, item: Field, gradient: Gradient) -> None:
        signal = self._states.signal(item.node)
        none = torch.zeros_like(signal.mean)
        _, level, row.grad_token_correlation = self._summary(row.name, gradient, none, item.layout)
        row.grad_variance = level / self._repeats.get(item, 1)
        worst = signal.evidence.join(gradient.evidence)
        row.status, row.reason = str(worst.status), worst.reason
        row.stated_errors |= stated_by_theory(grad_variance=worst)

    def _summary(self, name: str, state: Signal | Gradient, mean: Tensor, layout: Layout) -> tuple[float, float, float]:
        """That of the site before where both have one state, as a module and its last layer do."""
        axes = axes_of(layout)
        mask = fitting_mask(self._masks, name, axes)
        key = (state, axes, mask)
        if self._last is None or any(
            one is not two and one != two for one, two in zip(self._last[0], key, strict=True)
        ):
            self._last = (key, summary(state.kernel.values, mean, axes, mask), state)
        return self._last[1]


def _of_the_average(signal: Signal) -> float:
    """Variance over networks of the average over all entries, about which each network's variance is taken.

    Of independent channels `1 / d` of the average covariance of two positions: it counts where channels are few, as in
    a gate of one channel whose tokens have much in common.
    """
    if signal.width > FEW:
        return 0.0
    return max(float(signal.covariance.total() / signal.kernel.tokens**2), 0.0) / signal.width


def parameter_rows(found: TracedModel, states: Evaluation) -> list[ParameterRow]:
    energy, evidence = states.energy, states.evidence
    roles = find_roles(found, [item for item in found.capture.records if isinstance(item, Field)])
    rows = []
    for name, weight in found.weights.items():
        row = ParameterRow(name, weight.shape, roles[name].role, weight.distribution.variance**0.5)
        found_evidence = evidence.get(name, Evidence())
        row.status, row.reason = str(found_evidence.status), found_evidence.reason
        if name in energy and weight.requires_grad:
            row.grad_second_moment = energy[name] / math.prod(weight.shape)
            row.stated_errors = stated_by_theory(grad_second_moment=found_evidence)
        rows.append(row)
    return rows
