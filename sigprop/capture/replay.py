"""Replay: run the model's own functions on numbers drawn from the predicted states, and go backward through them.

A tensor is drawn by drawing its sources from their kernels, at their real shapes, and calling again the functions
that lead from them to it. Rotary positions, masks, biases, norms of queries and keys, routing and whatever else a
model does between its linear maps need no rule of their own.

Thinned replays, a pass: a wide model's heads are alike, so a part of them is enough. Head axes keep one in `factor` of
their entries, from the sources on. What is left of several replicas is replayed at once, one replica after the other
along the head axis. Views are replayed by their layouts instead of by the sizes they were called with; a call that
names the full number of heads cannot be thinned.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.ensemble import Ensemble, Joint
from sigprop.capture.layout import Axis, Layout
from sigprop.capture.noise import NOISE, Samples
from sigprop.capture.record import Call, Field, Record, Weight, no_rule
from sigprop.errors import SigpropError
from sigprop.graph.evaluate import Evaluation
from sigprop.graph.graph import Node, mapped
from sigprop.theory.drawing import DTYPE, kernel_of
from sigprop.theory.ops.base import Coupling, ParameterState

SIZED_VIEWS = ("view", "reshape", "flatten", "unflatten", "expand")
FEW = 12
"""Replicas that tell how much they scatter."""


class Replay:
    """One draw of everything that is asked for; the same record gives the same numbers.

    `ensemble` holds what this draw, number `replica`, has in common with others. `slices` are channel slices that are
    drawn by themselves, their source never, `through` sources that are replayed. `states` gives the signals and laws.
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
        through: Collection[Field] = (),
    ):
        self.states = states
        self.gradients = gradients
        self.generator = generator
        self.ensemble = ensemble or Ensemble(states, 1, generator)
        self.replicas = slice(replica, replica + 1)
        self.slices = slices
        self.joint = joint
        self.through = through
        self._together: Tensor | None = None
        self.values: dict[Record, Any] = {}
        self._noise: Samples | None = None
        self.weights: dict[Weight, Tensor] = {}

    def __call__(self, record: Record) -> Tensor:
        if record not in self.values:
            self._play(record)
        return self.values[record]

    def forget(self, but: Collection[Record]) -> None:
        """Keep what was drawn, and these, only; gradients pass through what followed from it."""
        self.values = {record: value for record, value in self.values.items() if value.is_leaf or record in but}

    def _play(self, record: Record) -> None:
        """Iterative depth-first evaluation: chains may be long."""
        stack = [record]
        while stack:
            current = stack[-1]
            if current in self.values:
                stack.pop()
                continue
            leaf = self._is_leaf(current)
            waiting = [] if leaf else [r for r in current.call.records if r not in self.values]  # type: ignore[union-attr]
            if waiting:
                stack.extend(waiting)
                continue
            self.values[current] = self._leaf(current) if leaf else self._call(current)
            stack.pop()

    def _is_leaf(self, record: Record) -> bool:
        drawn = isinstance(record, Field) and (record.is_source or record in self.slices)
        return record.call is None or (drawn and record not in self.through)

    def _leaf(self, record: Record) -> Tensor:
        if isinstance(record, Weight):
            value = self.states.law(record).draw(record.shape, self.generator).to(DTYPE)
            self.weights[record] = value
        elif isinstance(record, Field):
            value = self._draw(record)
        else:
            raise TypeError(f"cannot sample {type(record).__name__}")
        return value.requires_grad_(self.gradients)

    def _call(self, record: Record) -> Tensor:
        call = record.call
        assert call is not None
        args = tuple(self._filled(item) for item in call.args)
        kwargs = {key: self._filled(item) for key, item in call.kwargs.items()}
        if call.in_place and args and isinstance(args[0], Tensor):
            args = (args[0].clone(), *args[1:])
        if call.name == "as_strided":  # by strides of the tensor that stood for it, which is contiguous
            args = (args[0].contiguous(), *args[1:])
        with torch.set_grad_enabled(self.gradients and not record.without_gradient):
            function = torch.Tensor.reshape if call.name == "view" else call.function
            result = _called(call, function, args, kwargs)
        return result if record.output is None else result[record.output]

    def _filled(self, item: Any) -> Any:
        """An argument with values in place of records, and noise of this draw."""
        if isinstance(item, (tuple, list, dict)) and not isinstance(item, torch.Size):
            return mapped(item, self._filled)
        if isinstance(item, Record):
            return self.values[item]
        way = getattr(item, NOISE, None)
        if way is None:
            return item
        self._noise = self._noise or Samples(self.generator)
        return self._noise.of(way)

    def _draw(self, item: Field) -> Tensor:
        """Gaussian numbers of the field's shape with its token kernel and mean, channels independent."""
        source = item.sources[0].field
        if self.joint is not None and source in self.joint.spans:
            return self.from_rows(item, self._drawn_together(self.joint, item)[:, self.joint.spans[source]])
        channels = self.layout(item).channels
        return self.from_rows(item, self.ensemble.rows(source.node, self.replicas, channels, self.generator))

    def _drawn_together(self, joint: Joint, item: Field) -> Tensor:
        if self._together is None:
            channels = item.layout.channels
            self._together = self.ensemble.rows(joint.node, self.replicas, channels, self.generator)
        return self._together

    def arrivals(
        self, output: Tensor, parts: Mapping[Field, list[Field]], sites: Iterable[Field], above: Tensor | None = None
    ) -> tuple[dict[Field, Tensor], dict[Field, Tensor], dict[Weight, Tensor]]:
        """What arrives at drawn parts of sources, at sites on the way and at weights, where anything does."""
        drawn = [part for found in parts.values() for part in found]
        on_way = [site for site in sites if self(site).requires_grad]
        asked = [*map(self, drawn), *map(self, on_way), *self.weights.values()]
        found = iter(torch.autograd.grad(output, asked, above, allow_unused=True))

        def arrived(keys: Iterable[Any]) -> dict[Any, Tensor]:
            return {key: value for key in keys if (value := next(found)) is not None}

        return arrived(drawn), arrived(on_way), arrived(self.weights)

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


def _called(call: Call, function: Any, args: Any, kwargs: Any) -> Any:
    """What a model's own function refuses of drawn numbers is a refusal of its call."""
    try:
        return function(*args, **kwargs)
    except SigpropError:
        raise
    except Exception as error:
        raise no_rule(call, f"it fails on sampled numbers: {type(error).__name__}: {error}") from error


# -- a pass: of many heads a part is drawn


class Thinning:
    """Which axes are thinned, and layouts with the sizes that are left in `replicas` replicas."""

    def __init__(self, heads: list[Axis], factor: int, replicas: int = 1):
        self.factor = factor
        self.heads = heads
        self.replicas = replicas
        self.single = self if replicas == 1 else Thinning(heads, factor)
        self._axes: dict[Axis, Axis] = {}
        self._layouts: dict[Layout, Layout] = {}

    def axis(self, axis: Axis) -> Axis:
        if axis not in self._axes:
            size = self._size(axis)
            self._axes[axis] = axis if size == axis.size else Axis(size, axis.role)
        return self._axes[axis]

    def _size(self, axis: Axis) -> int:
        if axis in self.heads:
            return axis.size // self.factor * self.replicas
        for parts in axis.splits.values():
            sizes = [self.axis(part).size for part in parts]
            if sizes != [part.size for part in parts]:
                return math.prod(sizes)
        return axis.size

    def layout(self, layout: Layout) -> Layout:
        if layout not in self._layouts:
            dims = tuple(tuple(self.axis(axis) for axis in dim) for dim in layout.dims)
            self._layouts[layout] = Layout(dims, tuple(self.axis(axis) for axis in layout.order))
        return self._layouts[layout]

    def place(self, layout: Layout) -> int | None:
        """The dimension along which replicas follow each other: that in which heads come first."""
        return next((place for place, dim in enumerate(layout.dims) if dim and self._leads(dim[0])), None)

    def _leads(self, axis: Axis) -> bool:
        return axis in self.heads or any(self._leads(parts[0]) for parts in axis.splits.values())


class ThinReplay(Replay):
    """A replay on thinned layouts, of all replicas of its ensemble at once."""

    def __init__(self, thinning: Thinning, *args: Any):
        super().__init__(*args)
        self.thinning = thinning
        self.replicas = slice(self.replicas.start, self.replicas.start + thinning.replicas)
        self.weight_share = 1.0 / thinning.factor

    def layout(self, item: Field) -> Layout:
        return self.thinning.single.layout(item.layout)

    def heads_left_out(self, item: Field) -> float:
        """Of one that all heads share: a key of all queries, or a part of all keys."""
        return self.thinning.factor if self.layout(item).channels == item.layout.channels else 1.0

    def from_rows(self, item: Field, rows: Tensor) -> Tensor:
        place = self.thinning.place(item.layout) or 0
        return self.layout(item).from_rows(rows).movedim(0, place).flatten(place, place + 1)

    def to_rows(self, item: Field, values: Tensor) -> Tensor:
        place = self.thinning.place(item.layout) or 0
        return self.layout(item).to_rows(values.unflatten(place, (self.thinning.replicas, -1)).movedim(place, 0))

    def _call(self, record: Record) -> Tensor:
        call = record.call
        if call is not None and call.name in SIZED_VIEWS and isinstance(record, Field):
            source: Any = self.values[record.inputs[0]]
            shape = self.thinning.layout(record.layout).shape
            with torch.set_grad_enabled(self.gradients):
                return source.expand(shape) if call.name == "expand" else source.reshape(shape)
        return super()._call(record)


# -- and back


ROUNDING = 1e-15
"""Of what a weight would receive if all that is sent added up: single precision holds no less."""
SCATTERED = 0.25
"""Relative standard error of a gradient's energy over draws, from which on its mean is made by a few of them."""


def _scatters(energies: Tensor) -> Tensor:
    """Whether draws, along the first axis, do not tell their mean."""
    count = len(energies)
    error = energies.std(0) / energies.mean(0).clamp_min(1e-30) / count**0.5 if count > 1 else energies.new_zeros(())
    return error > SCATTERED


def _of_most(energies: Tensor) -> Tensor:
    """The mean without the largest tenth of draws, relative to the mean, where it scatters; 1 elsewhere."""
    most = energies.sort(0).values[: len(energies) - math.ceil(len(energies) / 10)].mean(0)
    return torch.where(_scatters(energies), most / energies.mean(0).clamp_min(1e-30), torch.ones_like(most))


class Reverse:
    """Gradients at the sources and the weights of replays: added one by one, then averaged.

    `corrections`: what the gradient of a linear source's weight gains because its input and its gradient fluctuate
    together, per entry: the average of `sum G (K - E K)` over replicas. `passed`: kernels at sites on the way.
    `couples`: what arrives is also compared with the signal where it arrives.
    """

    def __init__(
        self,
        parts: dict[Field, list[Field]],
        sites: Sequence[Field] = (),
        joint: Joint | None = None,
        couples: bool = False,
    ):
        self.parts, self._joint = parts, joint
        self._alone = [source for source in parts if joint is None or source not in joint.spans]
        self.passed: dict[Field, Tensor] = dict.fromkeys(sites, torch.zeros(()))
        self.kernels: list[Tensor | None] = [None] * (len(self._alone) + (joint is not None))
        self.weights: dict[Weight, float] = {}
        self.corrections: dict[Node, float] = {}
        self._energies: list[list[Tensor]] = [[] for _ in self.kernels]
        self._levels: list[list[Tensor]] = [[] for _ in self.kernels]
        self._each: dict[Weight, list[float]] = {}
        self._couplings = {source: Coupling() for source in parts if couples}

    def add(self, replay: Replay, output: Tensor, gradient: Tensor) -> None:
        found, passed, weights = replay.arrivals(output, self.parts, self.passed, gradient)
        for site, value in passed.items():
            kernel = kernel_of(replay.to_rows(site, value)).sum(0) * replay.heads_left_out(site)
            self.passed[site] = self.passed[site] + kernel
        arrived = {part: replay.to_rows(part, value) for part, value in found.items()}
        for source, coupling in self._couplings.items():
            self._couple(coupling, replay, source, [part for part in self.parts[source] if part in arrived], arrived)
        for place, source in enumerate(self._alone):
            kernels = [
                kernel_of(arrived[part]) * (replay.heads_left_out(part) * part.layout.channels / source.layout.channels)
                for part in self.parts[source]
                if part in arrived
            ]
            if kernels:
                self._receive(place, replay, source.node, torch.stack(kernels).sum(0))
        if self._joint is not None:
            rows = torch.zeros(())
            for source, span in self._joint.spans.items():
                if source in arrived:
                    after = replay.states.positions(self._joint.node) - span.stop
                    rows = rows + torch.nn.functional.pad(arrived[source], (0, 0, span.start, after))
            if rows.ndim:
                self._receive(-1, replay, self._joint.node, kernel_of(rows))
        sent = float(gradient.double().square().sum()) * gradient.numel()
        for weight, value in weights.items():
            total = float(value.double().square().sum()) / replay.weight_share
            total = total if total * value.numel() > ROUNDING * sent else 0.0
            self._each.setdefault(weight, []).append(total)
            self.weights[weight] = self.weights.get(weight, 0.0) + total

    def _receive(self, place: int, replay: Replay, node: Node, kernels: Tensor) -> None:
        """The kernels that arrive at a source, one for every replica."""
        self._levels[place].append(kernels.diagonal(dim1=1, dim2=2))
        before, kernel = self.kernels[place], kernels.sum(0)
        self.kernels[place] = kernel if before is None else before + kernel
        met = replay.ensemble.met(node, replay.replicas, kernels)
        if met is not None:
            change, energies = met
            self._energies[place].append(energies)
            self.corrections[node] = self.corrections.get(node, 0.0) + float(change.sum())

    def _couple(
        self, coupling: Coupling, replay: Replay, source: Field, parts: list[Field], arrived: dict[Field, Tensor]
    ) -> None:
        """What arrives at the parts of a source that are drawn, with the signal there."""
        if parts:
            x = torch.cat([replay.to_rows(part, replay(part).detach()) for part in parts], -1)
            gradient = torch.cat([arrived[part] for part in parts], -1)
            share = sum(part.layout.channels for part in parts) / source.layout.channels
            coupling.add(x, gradient, replay.states.signal(source.node).kernel.values, share)

    def coupling(self, number: int) -> Coupling:
        if self._joint is None or number < len(self._alone):
            return self._couplings[self._alone[number]]
        found = [(self._couplings[source], span) for source, span in self._joint.spans.items()]
        return Coupling.joined(found, self._joint.positions)

    def has_tail(self, receiver: int | Weight) -> bool:
        """Whether few draws make most of the energy that a source, by its number, or a weight has received."""
        if isinstance(receiver, Weight):
            return bool(_scatters(torch.tensor(self._each[receiver])))
        return bool(self._levels[receiver]) and bool(_scatters(torch.cat(self._levels[receiver]).sum(1)))

    def _without_tails(self) -> None:
        """What most draws bring, where few bring most: their largest tenth is left out, position by position."""
        for number, kernel in enumerate(self.kernels):
            if kernel is not None and self.has_tail(number):
                kept = _of_most(torch.cat(self._levels[number])).sqrt()
                self.kernels[number] = kernel * kept[:, None] * kept
        for weight, each in self._each.items():
            if self.has_tail(weight):
                self.weights[weight] *= float(_of_most(torch.tensor(each)))

    def is_steady(self, error: float, few: int) -> bool:
        """Whether `few` replicas or more tell gradients of linear sources and of weights to a relative standard error.

        Replicas are taken as independent, which is cautious: in groups their fluctuations cancel.
        """
        found = [torch.cat(energies) for energies in self._energies if energies]
        found += [torch.tensor(each) for each in self._each.values()]
        steady = [len(e) >= few and float(e.std()) <= error * float(e.mean()) * len(e) ** 0.5 for e in found]
        return bool(steady) and all(steady)

    def scale(self, factor: float) -> None:
        """Multiply all that was added, less what few draws brought."""
        self._without_tails()
        self.kernels = [None if kernel is None else kernel * factor for kernel in self.kernels]
        self.passed = {site: kernel * factor for site, kernel in self.passed.items()}
        self.weights = {weight: total * factor for weight, total in self.weights.items()}
        self.corrections = {node: change * factor for node, change in self.corrections.items()}
        self._couplings = {source: found.scaled(factor) for source, found in self._couplings.items()}

    def states(self) -> list[ParameterState]:
        return [
            ParameterState(str(number), weight.shape, "", 0.0, torch.tensor(total / math.prod(weight.shape)))
            for number, (weight, total) in enumerate(self.weights.items())
        ]
