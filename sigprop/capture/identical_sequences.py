"""A batch of many sequences from two of them: sequences do not meet before the loss, and are alike in law.

Let `W` be the expected squared norm of what one sequence sends to a parameter, and `C` the expected product of what two
send. A batch of `B` sends `B W + B (B - 1) C`, at the scale of its loss. Both come from one trace of two sequences: the
gradient of both gives `W + W' + 2 C`, and with its sign changed at the second `W + W' - 2 C`.

Kernels of two sequences are kept instead of those of all, so that from four sequences on time and memory do not grow.
What this costs is the difference between this pair and the rest. A batch in which they repeat tokens less or more than
the others is followed as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.batches import mapped
from sigprop.capture.layout import BATCH, Layout
from sigprop.capture.record import Field
from sigprop.capture.tracing import TracedModel
from sigprop.compat import BatchNorm
from sigprop.errors import SigpropError
from sigprop.graph.evaluate import Start
from sigprop.graph.graph import Node
from sigprop.losses import NOISE
from sigprop.results import SiteRow
from sigprop.theory import Gradient
from sigprop.theory.kernels import Dense
from sigprop.theory.states import AlongSignal, ThroughActivation

FOLLOWED = 2
FEWEST = 4
REPEATS = 0.04
"""Of a token's share in a sequence, on average over positions: what the first two sequences may differ from all."""
TOLERANCE = 0.05


def alike_sequences(model: nn.Module, batch: Any) -> int:
    """How many sequences a batch of token ids has, if they are alike and do not meet; else 0."""
    tensors = [item for item in _items(batch) if isinstance(item, Tensor)]
    others = [item for item in _items(batch) if not isinstance(item, (Tensor, bool, int, float, str, type(None)))]
    ids = [item for item in tensors if item.dim() == 2 and not (item.is_floating_point() or item.is_complex())]
    if not ids or others or any(item.dim() < 2 or item.shape[0] != ids[0].shape[0] for item in tensors):
        return 0
    if any(_uneven(item) or _repeats_differ(item) for item in ids):
        return 0
    if any(isinstance(module, BatchNorm) and module.training for module in model.modules()):
        return 0
    return ids[0].shape[0]


def _items(batch: Any) -> list[Any]:
    return list(batch.values()) if isinstance(batch, Mapping) else list(batch) if isinstance(batch, tuple) else [batch]


def _uneven(ids: Tensor) -> bool:
    """Padding or ignored labels that differ between sequences."""
    flags = ids < 0 if ids.dtype != torch.bool and int(ids.max()) > 1 else ids > 0
    return bool((flags != flags[:1]).any())


def _repeats_differ(ids: Tensor) -> bool:
    """Whether the first two sequences repeat tokens, their own or each other's, less or more than those of the batch:
    padding without a mask, a few sequences of one token."""
    if ids.shape[0] < FEWEST:
        return False
    same = torch.stack([_shares(ids, other) for other in ids])
    own = same.diagonal(dim1=0, dim2=1).T
    others = (same.sum(0) - own) / (len(ids) - 1)
    pair = torch.stack((same[1, 0], same[0, 1]))
    apart = [(own[:FOLLOWED].mean(0) - own.mean(0)).abs().mean(), (pair.mean(0) - others.mean(0)).abs().mean()]
    return max(map(float, apart)) > REPEATS


def _shares(ids: Tensor, other: Tensor) -> Tensor:
    """For every token of a batch its share in another sequence."""
    values, counts = other.unique(return_counts=True)
    place = torch.searchsorted(values, ids).clamp_max(len(values) - 1)
    return torch.where(values[place] == ids, counts[place], 0).double() / len(other)


def first_sequences(batch: Any, count: int) -> Any:
    return mapped(batch, lambda item: item[:count] if isinstance(item, Tensor) else item)


def opposed(found: TracedModel, start: Start) -> Start | None:
    """The gradient with its sign changed at the second sequence; None where that cannot be told apart."""
    if start.weights or start.passed:
        return None
    records = (item for item in found.capture.records if isinstance(item, Field) and item.is_made)
    layouts = {item.node: item.layout for item in records}
    seeds = []
    for node, gradient in start.seeds:
        signs = _signs(layouts[node]) if node in layouts else None
        made = None if signs is None else _times(gradient, signs)
        if made is None:
            return None
        seeds.append((node, made))
    return replace(start, seeds=seeds)


def _signs(layout: Layout) -> Tensor | None:
    """1 at the positions of the first sequence and -1 at those of the second, in the order of the kernel."""
    axes = [place for place, axis in enumerate(layout.order) if axis.role == BATCH]
    if len(axes) != 1 or layout.order[axes[0]].size != FOLLOWED:
        return None
    signs = torch.ones([axis.size for axis in layout.order], dtype=torch.float64)
    signs.select(axes[0], 1).fill_(-1.0)
    return signs.flatten()


def _times(gradient: Gradient, signs: Tensor) -> Gradient | None:
    along, through = gradient.along_signal, gradient.through_activation
    if through != ThroughActivation():
        return None
    slope, rest = along.slope, along.rest
    if isinstance(slope, Tensor):
        slope = signs[:, None] * slope if slope.dim() == 2 else signs * slope
    elif slope:
        slope = signs * slope
    if isinstance(rest, Tensor) and rest.dim():
        rest = rest * signs
    elif rest:
        return None
    kernel = Dense(gradient.kernel.values * signs[:, None] * signs)
    return replace(gradient, kernel=kernel, along_signal=AlongSignal(slope, rest))


Started = tuple[TracedModel, Start, str]
"""A traced model, where its gradient starts, and the words for that."""


@dataclass(frozen=True)
class TwoSequences:
    """A trace of two sequences that stands for a batch of many; `scale` is that of a gradient from here to there."""

    started: Started
    opposed: Start
    sequences: int
    scale: float

    def continue_to_batch(self, sites: list[SiteRow]) -> None:
        """After the backward pass: gradients of the rows, and the energies of the trace, as in the whole batch."""
        states = self.started[0].states
        both, evidence = states.energy, states.evidence
        apart, levels = self._passed(self.opposed)
        states.energy = {name: self._total(both[name], apart.get(name, 0.0)) for name in both}
        states.evidence = evidence
        for row in sites:
            if row.name in levels:  # of all sequences together, as positions are
                row.grad_variance = self._total(row.grad_variance, levels[row.name])
            else:
                row.grad_variance *= self.scale**2

    def _passed(self, start: Start) -> tuple[dict[str, float], dict[str, float]]:
        """Energies of the parameters, and gradients of the sites that all sequences share."""
        found = self.started[0]
        shared: dict[Node, list[str]] = {}
        for name, item in found.sites:
            if item.is_made and not any(axis.role == BATCH for axis in item.layout.order):
                shared.setdefault(item.node, []).append(name)
        levels = {name: 0.0 for names in shared.values() for name in names}

        def take(node: Node, gradient: Gradient) -> None:
            for name in shared.get(node, ()):
                levels[name] = float(gradient.kernel.values.diagonal().mean())

        found.states.backward(start, take)
        return found.states.energy, levels

    def _total(self, both: float, apart: float) -> float:
        own, common = (both + apart) / 4, (both - apart) / 4
        count = self.sequences
        return max(self.scale**2 * (count * own + count * (count - 1) * common), 0.0)


def two_sequences(model: nn.Module, batch: Any, started: Callable[[int], Started]) -> TwoSequences | None:
    """What stands for a batch of many alike sequences; None for few, or where they meet."""
    sequences = alike_sequences(model, batch)
    if sequences < FEWEST:
        return None
    try:
        two = started(FOLLOWED)
    except SigpropError:  # a loss with targets of its own, which are those of the whole batch
        return None
    traced, start, name = two
    apart = opposed(traced, start)
    if apart is None:
        return None
    scale = 1.0 if name == NOISE else _scale(_level(started(1)[1]) / max(_level(start), 1e-300), sequences)
    return None if scale is None else TwoSequences(two, apart, sequences, scale)


def _scale(ratio: float, sequences: int) -> float | None:
    """Of a loss that is a mean over sequences, or a sum, by its gradient in one sequence beside that in two."""
    if abs(ratio / FOLLOWED**2 - 1.0) < TOLERANCE:
        return FOLLOWED / sequences
    return 1.0 if abs(ratio - 1.0) < TOLERANCE else None


def _level(start: Start) -> float:
    return sum(float(gradient.kernel.values.diagonal().mean()) for _, gradient in start.seeds)
