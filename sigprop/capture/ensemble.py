"""What a replay draws: its sources, and kernels of finite width, together for several replays.

The kernel of `d` drawn channels fluctuates by 1/sqrt(d) about its expectation. Where only effects of second order are
wanted, what is linear in the fluctuations is noise: it is removed by making their average over the replicas zero.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.functions import VIEWS
from sigprop.capture.record import Field, Record, Weight
from sigprop.compat import standard_gamma
from sigprop.graph.evaluate import Evaluation
from sigprop.graph.graph import Node
from sigprop.graph.shared_parts import IN_STEP, settled
from sigprop.graph.visits import equal, same_weight
from sigprop.theory.drawing import DTYPE, root_of
from sigprop.theory.ops.base import Op
from sigprop.theory.ops.cat import CatPositions
from sigprop.theory.ops.convolution import Convolution
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.residual import Piece
from sigprop.theory.states import Signal

ENTANGLED = "functions of one tensor, taken as independent"
NARROW = 50.0
"""Positions, times which a linear map has fewer inputs where their kernel is drawn and not the expected one."""
APART = 1009
"""How far the seeds of two functions stand apart: each of its draws has one of its own."""


@dataclass(frozen=True)
class Joint:
    """Sources that are drawn from the state of one node, each at its positions."""

    node: Node
    spans: dict[Field, slice]
    positions: int


def joined(states: Evaluation, nodes: Sequence[Node]) -> tuple[CatPositions, list[Node]]:
    """The op that puts positions of several tensors one after another, with its inputs; in doubt where they have more
    in common than parts: outputs of one weight, functions of one tensor."""
    parts, behind = states.shared_parts, states.weights_behind
    found: list[tuple[Node, tuple[int, Piece, int, Piece]]] = []
    doubt, uses = "", []
    for second, other in enumerate(nodes):
        for first, node in enumerate(nodes[:second]):
            if parts.of(node) & parts.of(other):
                found += [(part, (first, one, second, two)) for part, one, two in parts.in_common(node, other)]
            if behind.in_common(node, other):
                known = states.visits.of(node, other) is not None
                doubt, uses = doubt if known else IN_STEP, [*uses, (first, second)] if known else uses
            elif parts.beyond(node, other):
                doubt = doubt or ENTANGLED
    op = CatPositions(len(nodes), tuple(pieces for _, pieces in found), doubt, tuple(uses))
    return op, [*nodes, *(part for part, _ in found)]


def tied(states: Evaluation, sources: dict[Field, list[Field]]) -> list[list[Field]]:
    """Sources drawn as a whole that have something known in common with another one of as many channels, by their
    number of channels, most first."""
    whole = [item for item, drawn in sources.items() if drawn == [item]]
    found: dict[int, list[Field]] = {}
    for item in whole:
        if any(
            other.node is not item.node
            and other.layout.channels == item.layout.channels
            and _have_in_common(states, item.node, other.node)
            for other in whole
        ):
            found.setdefault(item.layout.channels, []).append(item)
    return [found[count] for count in sorted(found, reverse=True)]


def _have_in_common(states: Evaluation, first: Node, second: Node) -> bool:
    """Parts, or what uses of one weight are known to bring both."""
    reached, behind = states.shared_parts.reached, states.weights_behind
    if not reached(first).isdisjoint(reached(second)):
        return True
    found = states.visits.of(first, second) if behind.in_common(first, second) else None
    return found is not None and bool(found.any())


def are_uses_unknown(states: Evaluation, sources: dict[Field, list[Field]]) -> bool:
    """Whether two sources are made with one weight of different inputs, and what they have in common is not known.

    Not asked where the input of one is made of that of the other, as in steps of a recurrence.
    """
    whole = list(dict.fromkeys(item.node for item, drawn in sources.items() if drawn == [item]))
    pairs = ((one, other) for place, other in enumerate(whole) for one in whole[:place])
    return any(
        states.weights_behind.in_common(*pair)
        and states.visits.of(*pair) is None
        and not _follows(*pair)
        and not _follows(*reversed(pair))
        for pair in pairs
    )


def _follows(node: Node, other: Node) -> bool:
    """Whether one tensor is made of what the other is made of directly."""
    stack, seen = [node], set()
    while stack:
        current = stack.pop()
        if current in other.inputs:
            return True
        if current not in seen:
            seen.add(current)
            stack.extend(current.inputs)
    return False


def joint_of(states: Evaluation, sources: list[Field], node: Node) -> Joint:
    """Sources that stand one after another in a node."""
    starts, size = {}, 0
    for source in sources:
        if source.node not in starts:
            starts[source.node] = size
            size += states.positions(source.node)
    places = {item: (starts[item.node], states.positions(item.node)) for item in sources}
    return Joint(node, {item: slice(start, start + count) for item, (start, count) in places.items()}, size)


class SourceState:
    """A node that is drawn from: its op and its mean, and the expected kernel of its input where that is drawn.

    `below`: whose kernel is drawn; of outputs of one map for several inputs, one after another, that of all these."""

    def __init__(self, states: Evaluation, node: Node):
        self.op, self.mean, self.below = states.op(node), states.signal(node).mean.to(DTYPE), node
        self.inside = None
        if is_narrow(states, node):
            self.below, self.inside = node.inputs[0], states.signal(node.inputs[0]).kernel.values
        elif made := _inputs_of_uses(states, node):
            self.op, self.below = states.op(node.inputs[0]), made


def _inputs_of_uses(states: Evaluation, node: Node) -> Node | None:
    """Where outputs of one linear map stand one after another, and its input is narrow: all inputs, likewise."""
    op, each = states.op(node), node.inputs
    if not isinstance(op, CatPositions) or len(op.uses) * 2 != len(each) * (len(each) - 1):
        return None
    if not all(is_narrow(states, item) and states.visits.alike(item, each[0]) for item in each):
        return None
    below, inputs = joined(states, [item.inputs[0] for item in each])
    made = Node(below, tuple(inputs))
    states.run_one(made)
    return made


class Ensemble:
    """Roots of the kernels of nodes, expected ones and drawn ones, the latter for each replica; made when asked for."""

    def __init__(
        self,
        states: Evaluation,
        replicas: int,
        generator: torch.Generator,
        expected: Mapping[Node, Tensor] | None = None,
        channels: int | None = None,
    ):
        self.replicas = replicas
        self._states = states
        self._generator = generator
        self._channels = channels
        self._expected: dict[tuple[Node, float], Tensor] = {
            (node, 0.0): root for node, root in (expected or {}).items()
        }
        self._drawn: dict[tuple[Node, int], Tensor] = {}
        self._known: dict[Node, SourceState] = {}
        self._fluctuating: dict[tuple[Node, int], tuple[Signal, int]] = {}

    def again(self, generator: torch.Generator) -> Ensemble:
        """Other draws about the same expectations."""
        made = copy(self)
        made._generator, made._drawn = generator, {}
        return made

    def expected(self, node: Node, less: float = 0.0) -> Tensor:
        """`R` with `R R^T` the covariance of a node, less that of what is the same for all tokens, as of a bias."""
        if (node, less) not in self._expected:
            self._expected[node, less] = root_of(self._states.signal(node).covariance.values - less)
        return self._expected[node, less]

    def _source(self, node: Node) -> SourceState:
        if node not in self._known:
            self._known[node] = SourceState(self._states, node)
        return self._known[node]

    def rows(self, node: Node, replicas: slice, channels: int, generator: torch.Generator) -> Tensor:
        """`[replica, position, channel]`: Gaussian channels, independent, with kernel and mean of a node."""
        roots = self.roots(node, replicas).to(DTYPE)
        noise = torch.randn((len(roots), roots.shape[-1], channels), generator=generator, dtype=DTYPE)
        return roots @ noise + self._source(node).mean[:, None]

    def with_mean(self, node: Node, replicas: slice) -> Tensor:
        """For each of the replicas `R` with `R R^T` the kernel in one initialization, the mean among it."""
        roots, mean = self.roots(node, replicas).to(DTYPE), self._source(node).mean[:, None]
        return torch.cat((roots, mean.expand(len(roots), -1, -1)), -1)

    def roots(self, node: Node, replicas: slice) -> Tensor:
        """For each of the replicas `R` with `R R^T` the covariance in one initialization: that of a linear map follows
        the drawn kernel of its input.

        Queries, keys and values made from one input of finite width share its fluctuations, which are of order
        1/sqrt(width) for pairs of tokens and do not average out in products of two kernels.
        """
        source = self._source(node)
        op = source.op
        if op.picks is not None:
            return self.roots(node.inputs[0], replicas)[:, op.picks]
        if source.below is node:
            return self.expected(node).expand(replicas.stop - replicas.start, -1, -1)
        assert isinstance(op, Linear)
        inside = self.drawn(source.below, groups_of(op))[replicas] * (op.fan_in * op.variance) ** 0.5
        if not op.bias_variance:
            return inside
        return torch.cat((inside, torch.full_like(inside[..., :1], float(op.bias_variance) ** 0.5)), -1)

    def met(self, node: Node, replicas: slice, gradients: Tensor) -> tuple[Tensor, Tensor] | None:
        """`sum G (K - E K)` and `sum G K` of each replica, `K` the drawn kernel of a linear map's input; None where it
        is not drawn."""
        inside = self._source(node).inside
        if inside is None:
            return None
        roots = self.drawn(node.inputs[0], groups_of(self._source(node).op))[replicas]
        change = (gradients * (roots @ roots.mT - inside)).sum((1, 2))
        return change, change + (gradients * inside).sum((1, 2))

    def drawn(self, node: Node, groups: int = 1) -> Tensor:
        """For each replica `R` with `R R^T` the kernel of the channels, or of one group, in one initialization."""
        if (node, groups) not in self._drawn:
            if (node, groups) not in self._fluctuating:
                signal = self._states.signal(node)
                channels = self._channels or signal.independent_channels
                self._fluctuating[node, groups] = signal, max(1, channels // groups)
            (signal, channels), root = self._fluctuating[node, groups], self.expected(node)
            noise = channel_noise(root.shape[1], channels, self.replicas, self._generator)
            made = root.to(DTYPE) @ noise
            made[..., -1] += signal.mean.to(DTYPE)
            if groups == 1 and isinstance(signal.fluctuation.norm, float) and signal.fluctuation.norm == 0.0:
                level = signal.kernel.diagonal.clamp_min(0.0).to(DTYPE)
                made *= (level / made.square().sum(-1).clamp_min(torch.finfo(DTYPE).tiny)).sqrt()[..., None]
            self._drawn[node, groups] = made
        return self._drawn[node, groups]


def channel_noise(positions: int, width: int, replicas: int, generator: torch.Generator) -> Tensor:
    """`N` of every replica, `N N^T` the mean square over `width` channels of standard normal numbers, the last column
    their mean.

    Where there are channels enough, the replicas are recentred so that `N N^T` is the identity on average over them,
    exactly, and the last column zero. They are drawn with `width (1 - 1/replicas)` channels, so that their variance
    after it is that of `width` channels.
    """
    balanced = replicas >= fewest_balanced(positions, width)
    channels = width * (1.0 - 1.0 / replicas) if balanced else float(width)
    made = torch.stack([_columns(positions, channels, generator) for _ in range(replicas)])
    if balanced:
        made[..., -1] -= made[..., -1].mean(0)
        average = (made @ made.mT).mean(0)
        made = torch.linalg.solve_triangular(torch.linalg.cholesky(average), made, upper=False)
    return made


def fewest_balanced(positions: int, width: int) -> int:
    """Replicas that have channels enough to be balanced, twice as many as there are positions."""
    return 1 + math.ceil(2 * positions / width)


def _columns(positions: int, channels: float, generator: torch.Generator) -> Tensor:
    """With more channels than positions by Bartlett's decomposition: `sum (z - mean)(z - mean)^T = B B^T`, `B` lower
    triangular with standard normal entries and chi on its diagonal."""
    if channels <= positions + 1:
        count = max(1, round(channels))
        noise = torch.randn(positions, count, generator=generator, dtype=DTYPE)
        average = noise.mean(1, keepdim=True)
        return torch.cat(((noise - average) / count**0.5, average), 1)
    noise = torch.randn(positions, positions + 1, generator=generator, dtype=DTYPE)
    freedom = channels - 1.0 - torch.arange(positions, dtype=DTYPE)
    chi = (2.0 * standard_gamma(freedom / 2.0, generator=generator)).sqrt()
    return torch.cat((noise[:, :-1].tril(-1) + chi.diag(), noise[:, -1:]), 1) / channels**0.5


def is_narrow(states: Evaluation, node: Node) -> bool:
    """A linear map of channels, position by position, whose input has so few that its kernel fluctuates."""
    op = states.op(node)
    if op.picks is not None:
        return is_narrow(states, node.inputs[0])
    return isinstance(op, Linear) and bool(groups_of(op)) and NARROW * states.positions(node) >= op.fan_in


def drawn_behind(states: Evaluation, node: Node) -> Node:
    """The node whose kernel is drawn in place of another's."""
    while states.op(node).picks is not None:
        node = node.inputs[0]
    return node.inputs[0] if is_narrow(states, node) else node


def groups_of(op: Op) -> int:
    """Of a linear map of channels, position by position, the groups that it maps apart, as heads with inputs of their
    own; 0 for any other op."""
    if isinstance(op, Convolution) and op.groups > 1:
        return op.groups if op.rows.T.tolist() == [list(range(len(op.rows)))] else 0
    return int(isinstance(op, Linear) and op.by_position)


def balanced_replicas(states: Evaluation, node: Node) -> int:
    """How many replicas are needed for the fluctuations of a node to balance."""
    if states.op(node).picks is not None:
        return balanced_replicas(states, node.inputs[0])
    if not is_narrow(states, node):
        return 1
    channels = states.signal(node.inputs[0]).independent_channels // groups_of(states.op(node))
    return fewest_balanced(states.positions(node), max(1, channels))


def parts_of_sources(target: Field, through: Collection[Field] = ()) -> dict[Field, list[Field]]:
    """For each source of a field what must be drawn of it: itself, or the slices that the field uses, if disjoint.

    `through`: sources that are replayed from their own, with the weights between.
    """
    parts: dict[Field, list[Field]] = {s.field: [] for s in target.sources if s.field not in through}
    stack: list[Record] = [target]
    seen: set[Record] = set()
    while stack:
        record = stack.pop()
        if record in seen or not isinstance(record, Field):
            continue
        seen.add(record)
        source = record.sources[0] if len(record.sources) == 1 else None
        fresh = source is not None and source.field not in through
        if fresh and (record.is_source or (_is_slice(record) and not _is_sliced(record.inputs[0]))):
            parts.setdefault(record.sources[0].field, []).append(record)
        else:
            stack.extend(_needed(record))
    return {source: found if _are_disjoint(found) else [source] for source, found in parts.items()}


def chosen_alike(target: Field, parts: dict[Field, list[Field]]) -> set[Field]:
    """Sources that follow from a choice which the target makes as well, as what an expert makes of its tokens: drawn
    from their kernels they would not be those of the same choice."""
    choices = {
        item for item in records_between(target, parts) if isinstance(item, Field) and not item.dtype.is_floating_point
    }
    if not choices:
        return set()
    first = min(item.number for item in choices)
    follows: dict[Record, bool] = dict.fromkeys(choices, True)

    def above(record: Record) -> list[Record]:
        return [item for item in _needed(record) if isinstance(item, Field) and item.number > first]

    for source in parts:
        settled(source, follows, above, lambda item: any(follows[other] for other in above(item)))
    return {item for item, found in follows.items() if found and isinstance(item, Field) and item.is_source}


LARGEST_SITE, LARGEST_FUNCTION = 1024, 4096
"""Positions of a tensor between others, and of a function of one, that are followed for its row alone."""


def sites_between(target: Field, parts: dict[Field, list[Field]]) -> list[Field]:
    """Sites with a row that a replay passes on the way to a target: neither drawn, nor views of what is, whose node
    receives it all, nor the target itself."""
    passed = [item for item in records_between(target, parts) if isinstance(item, Field) and item.is_site]
    made = [item for item in passed if item.root not in parts or item.function is not None]
    return followed([item for item in made if not item.layout.has_keys])


def followed(sites: Sequence[Field]) -> list[Field]:
    """Sites that have rows: for their rows alone only small ones are followed, and functions of what is."""
    return [item for item in sites if item.layout.positions <= LARGEST_SITE or item.is_made or _is_near(item)]


def _is_near(item: Field) -> bool:
    """Whether a site is a function, entry by entry, of Gaussian channels with a state."""
    root = item.root
    if root is None or item.function is None or item.statistic is not None or not root.is_made:
        return False
    if item.layout.positions > LARGEST_FUNCTION:
        return False
    return not (root.is_drawn or root.of_few or root.is_curved or root.beside is not None)


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


def same_calls(first: Record, second: Record, mine: Sequence[Field], theirs: Sequence[Field]) -> bool:
    """Whether two tensors are made by the same calls, one by one, of the same weights and of what is drawn."""
    stack: list[Any] = [(first, second)]
    while stack:
        one, other = stack.pop()
        calls = [item.call for item in (one, other) if isinstance(item, Record) and item.call is not None]
        if isinstance(one, Weight) and isinstance(other, Weight):
            same = same_weight(one, other)
        elif isinstance(one, Field) and isinstance(other, Field) and one in mine and other in theirs:
            spans = [[span[1:] for span in item.sources[0].ranges] for item in (one, other)]
            same = mine.index(one) == theirs.index(other) and spans[0] == spans[1]
        elif len(calls) == 2 and one not in mine and other not in theirs:
            mine_made, its_made = calls
            names = mine_made.name == its_made.name and one.output == other.output
            same = names and len(mine_made.given) == len(its_made.given)
            stack += zip(mine_made.given, its_made.given, strict=True) if same else ()
        else:
            same = equal(one, other)
        if not same:
            return False
    return True


def fewest_entries(target: Field, parts: dict[Field, list[Field]]) -> float:
    """Those of the smallest weight that a replay passes on the way to a target."""
    passed = records_between(target, parts)
    return min((math.prod(item.shape) for item in passed if isinstance(item, Weight)), default=math.inf)


def _is_slice(record: Record) -> bool:
    """Whether a tensor consists of some channels of its source as they are: of a function of it no state is drawn."""
    if not isinstance(record, Field) or not record.sources[0].ranges:
        return False
    while isinstance(record, Field) and not record.is_source:
        if record.call is None or record.call.name not in VIEWS:
            return False
        record = record.inputs[0]
    return isinstance(record, Field)


def _is_sliced(record: Record) -> bool:
    return not isinstance(record, Field) or len(record.sources) != 1 or bool(record.sources[0].ranges)


def _are_disjoint(fields: list[Field]) -> bool:
    return all(a.sources[0].disjoint(b.sources[0]) for n, a in enumerate(fields) for b in fields[:n])


def _needed(record: Record) -> list[Record]:
    return record.call.records if record.call is not None else []
