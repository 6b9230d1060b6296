"""What a run of a model has found: the graph of ops, the records of tensors, the sites and the weights behind each op.

While the model runs (see `mode`) rules add to it; from then on it is only read.

Rules by the name of the torch function that they follow.

A rule is called as `rule(capture, call, *args, **kwargs)` with the function's own arguments, traced tensors replaced by
their records, and returns the record of the result (or a tuple, or real values).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.batches import tensors_in
from sigprop.capture.ensemble import are_uses_unknown, joined, tied
from sigprop.capture.layout import LARGEST, Layout
from sigprop.capture.record import Call, Field, Record, Weight, fields_made, united
from sigprop.capture.replay import Replay
from sigprop.capture.replayed_function import MOST_REPLAYED, ReplayedFunction
from sigprop.compat import DisableTorchFunction
from sigprop.distributions import read_parameters
from sigprop.errors import InputError, TooLarge, UnknownNameError, UnsupportedError, require
from sigprop.graph.evaluate import Evaluation
from sigprop.graph.graph import RECORD, Bound, Doubt, Graph, Node
from sigprop.graph.shared_parts import IN_STEP
from sigprop.registry import Registry
from sigprop.sites import ROOT, outputs
from sigprop.theory.ops.base import Op
from sigprop.theory.ops.drawn import Sampled
from sigprop.theory.ops.gather import Scatter

# -- Modules that run, and what they make


class ModuleSites:
    """The module that runs, and the tensors that modules of a model have made."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.module = ROOT
        self._around: list[str] = []
        self.sites: list[tuple[str, Field]] = []
        self._module_names = {id(module): name for name, module in model.named_modules()}
        self._module_calls: dict[str, int] = {}

    @contextmanager
    def module_hooks(self) -> Iterator[None]:
        """On the modules of this copy alone: other models, in other threads, run as they are."""
        handles = []
        try:
            for module in self.model.modules():
                handles.append(module.register_forward_pre_hook(self._enter, prepend=True))
                handles.append(module.register_forward_hook(self._leave))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        name = self._module_names.get(id(module))
        self._around.append(self.module)
        self.module = self.module if name is None else name or ROOT

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        name, self.module = self.module, self._around.pop()
        if id(module) not in self._module_names:
            return
        call = self._module_calls[name] = self._module_calls.get(name, 0) + 1
        with DisableTorchFunction():  # questions of ours, and draws of a site that is sealed, are no calls of the model
            found = [("", output)] if isinstance(output, Tensor) else tensors_in(output)
            signals = [(path, t) for path, t in found if t.is_floating_point() and t.dim() and t.numel()]
            for label, (_, tensor) in zip(outputs(name, call, [path for path, _ in signals]), signals, strict=True):
                found = getattr(tensor, RECORD, None)
                if isinstance(found, Field):
                    found = found.before_hook or found
                    found.seal()
                    self.sites.append((label, found))


# -- How it is followed, and the shortcuts that may be taken: what is followed in place of the whole


REPEATED, SEQUENCES, LONG = "repeated blocks", "identical sequences", "long contexts"
EXPERTS, THINNED = "experts as one", "thinned heads"
PASSES = {
    REPEATED: "of 40 identical blocks or more some are followed: 2 % of a kernel at each jump (repeated_blocks.py)",
    SEQUENCES: "of 4 sequences or more two are followed: 12 % of what all share, else less (identical_sequences.py)",
    LONG: "sequences beyond `tokens` are continued from shorter ones: rows are assumed (long_contexts.py)",
    EXPERTS: "of stacked experts one is followed: none in expectation, for weights of mean zero (experts_as_one.py)",
    THINNED: "of many heads a part is sampled: the standard errors of the samples (replay.py)",
}
"""Each with what it does, its error, and its file in `sigprop/capture`."""


def require_passes(passes: Collection[str]) -> frozenset[str]:
    """The passes that are allowed; raises for one that is none."""
    for name in (passes,) if isinstance(passes, str) else passes:
        if name not in PASSES:
            raise UnknownNameError("pass", name, PASSES)
    return frozenset(passes)


@dataclass(frozen=True, kw_only=True)
class CaptureOptions:
    """How a model is followed.

    seed: of all that is drawn.
    dtype: of the kernels that are kept; float32 takes half their memory, which counts for many tokens.
    positions: of a tensor with channels, at most (examples times pixels, or times tokens): kernels of more are refused.
    replayed: calls of functions without a rule that are drawn, at most: of a recurrence every step draws those before.
    passes: shortcuts that may be used where they apply, by name; () for none. `meta["passes"]` names those that were,
        `sigprop.capture.capture.PASSES` has what each does and its error.
    network: one of several networks, followed with its own heads; the average network when None.
    """

    seed: int = 0
    dtype: torch.dtype = torch.float64
    positions: int = LARGEST
    replayed: int = MOST_REPLAYED
    passes: Collection[str] = (EXPERTS, THINNED)
    network: int | None = None

    def __post_init__(self) -> None:
        require(self.dtype in (torch.float32, torch.float64), "dtype", self.dtype, "torch.float64 or torch.float32")
        require(self.positions >= 1, "positions", self.positions, "at least 1")
        require(self.replayed >= 1, "replayed", self.replayed, "at least 1")
        object.__setattr__(self, "passes", require_passes(self.passes))

    @property
    def first_seed(self) -> int:
        return self.seed + (self.network or 0)


CHOICES = 32
"""Draws that tell how many positions are picked on average, to a tenth of that of an expert in eight."""


class Capture(ModuleSites):
    """The graph of one run, and what rules use to extend it.

    `states`: an evaluation under the model's own laws, which runs along; `stopped`: records made where gradients were
    off, as they are seen where they are on; `repeats`: how many times a site that was followed once is run; `places`:
    the numbers of the entries of a tensor that was written to. `running`: whether the model still runs.
    """

    def __init__(self, model: nn.Module, options: CaptureOptions):
        super().__init__(model)
        seed, self.options = options.first_seed, options
        self.graph = Graph(seed * 100003 + 1)
        self.states = Evaluation(self.graph, dtype=options.dtype)
        self.records: list[Record] = []
        self.parameters: dict[str, Weight] = {}
        self.stopped: dict[Record, Record] = {}
        self.centred: dict[tuple[Field, Layout], Field] = {}
        self.repeats: dict[Field, int] = {}
        self.places = torch.empty(0, dtype=torch.long)
        self._choices: list[Replay] = []
        self.concrete = Replay(self.states, torch.Generator().manual_seed(seed + 1))
        self.drawn: list[ReplayedFunction] = []
        self.composed: list[Field] = []
        self.attentions = 0
        self.lock = RLock()
        self._replayed = 0
        self._positions: dict[Node, int] = {}
        self.running = False
        self._seeds = self._base = seed * 100003
        self._first_field = fields_made()
        self._adopt_parameters()

    def _adopt_parameters(self) -> None:
        for name, parameter, law, zeros in read_parameters(self.model):
            if not math.isfinite(law.mean) or not math.isfinite(law.variance):
                raise InputError(f"parameter {name!r} has entries that are not finite: nothing follows from it")
            weight = Weight(tuple(parameter.shape), law, name, zero_rows=zeros)
            weight.requires_grad = parameter.requires_grad
            self.parameters[name] = weight
            setattr(parameter, RECORD, weight)

    def apply(self, op: Op, *inputs: Node, weights: Bound | None = None, doubts: Sequence[Doubt] = ()) -> Node:
        """Record an op; `weights` binds its parameters to weights, with their number of entries; `doubts` are what it
        does not follow of this use of it."""
        self.require_followed(max((self._positions[item] for item in inputs), default=0))
        node = Node(op, inputs, weights or {}, tuple(doubts))
        with DisableTorchFunction():  # outside of any traced call the mode would see every draw
            signal = self.states.run_one(node)
        self._positions[node] = len(signal.mean)
        if not math.isfinite(float(signal.kernel.values.sum())):
            made = getattr(op, "reason", type(op).__name__)
            raise UnsupportedError(f"the state in {self.module!r} is not finite ({made})")
        self._follow_routing(node, len(signal.mean))
        self.graph.nodes.append(node)
        return node

    def require_followed(self, positions: int) -> None:
        """Refuse more positions than may be followed, before a kernel of all their pairs is made."""
        most = self.options.positions
        if positions > most:
            raise TooLarge(f"{positions:,} positions in {self.module!r}, of which {most:,} may be followed")

    def _follow_routing(self, node: Node, positions: int) -> None:
        """A node that sees positions which were picked; where all were, until others come together with them."""
        found = [self.graph.routed.get(item, (0, 1.0)) for item in node.inputs]
        whole = max(found, default=(0, 1.0))
        alone = positions == whole[0] == min(found, default=whole)[0] and not isinstance(node.op, (Sampled, Scatter))
        if positions < whole[0] or alone:
            self.graph.routed[node] = whole

    def seed(self) -> int:
        self._seeds += 1
        return self._seeds

    def seed_of(self, item: Field) -> int:
        """The seed of what is drawn for one field, whenever it is asked for."""
        return self._base + (item.number - self._first_field) * 7919

    def sampled(self, target: Field, reason: str) -> Node:
        """The node of a field by Monte Carlo on the functions that lead to it."""
        if target.layout.positions > LARGEST:
            raise TooLarge(
                f"a tensor of shape {target.shape} in {self.module!r} has {target.layout.positions} positions, "
                f"more than the {LARGEST} that are followed: a shorter sequence or a smaller image may help"
            )
        draws = ReplayedFunction(target, self.seed() if self.running else self.seed_of(target))
        self._replayed += draws.calls
        if self._replayed > self.options.replayed:
            raise TooLarge(
                f"{self._replayed:,} calls are to be sampled up to {self.module!r}, {self.options.replayed:,} may be: "
                "in a recurrence every step samples all steps before it"
            )
        groups = tied(self.states, draws.parts)
        for together in groups[:1]:
            op, inputs = joined(self.states, list(dict.fromkeys(item.node for item in together)))
            draws.join(together, self.apply(op, *inputs), self.states)
        doubts = (IN_STEP,) if len(groups) > 1 or are_uses_unknown(self.states, draws.parts) else ()
        node = self.apply(Sampled(draws, reason, draws.reaches), *draws.nodes, doubts=doubts)
        self.drawn.append(draws)
        return node

    def drawn_field(self, layout: Layout, call: Call, inputs: Iterable[Record], reason: str, **known: Any) -> Field:
        """The field of a call that is kept to be replayed, its state sampled when it is asked for."""
        inputs = tuple(inputs)
        sources = united(item for item in inputs if isinstance(item, Field))
        return Field(layout, lambda made: self.sampled(made, reason), sources, call=call, inputs=inputs, **known)

    def field_of(
        self,
        op: Op,
        x: Field,
        layout: Layout,
        call: Call,
        weights: Bound | None = None,
        doubts: Sequence[Doubt] = (),
        **known: Any,
    ) -> Field:
        """The field that an op makes of another, when it is asked for: a function of the same randomness."""
        inputs = (x, *(weight for weight, _ in (weights or {}).values()))
        make = lambda _: self.apply(op, x.node, weights=weights, doubts=doubts)  # noqa: E731
        return Field(layout, make, **{"sources": x.sources, "call": call, "inputs": inputs} | known)

    def value_of(self, item: Any) -> Any:
        """Real numbers for a traced tensor, drawn once: routing, comparisons, branches on values."""
        return self.concrete(item) if isinstance(item, Record) else item

    def picked_on_average(self, choice: Field, count: int) -> float:
        """How many entries a drawn mask has on average, for each of the `count` that it had when it was drawn; 1 for a
        choice that is no mask of so many."""
        if int(self.concrete(choice).count_nonzero()) != count:
            return 1.0
        if not self._choices:
            seeds = (torch.Generator().manual_seed(self._base + 2 + number) for number in range(CHOICES))
            self._choices = [Replay(self.states, generator) for generator in seeds]
        return sum(int(replay(choice).count_nonzero()) for replay in self._choices) / CHOICES / count

    # -- tensors that stand for records

    def tensor_for(self, record: Record, call: Call, target: Tensor | None = None) -> Tensor:
        """The tensor, `target` where it fits, that stands for what a call has made."""
        if record.call is None and not isinstance(record, Weight):
            record.call = call
        if record not in call.records:
            record.without_gradient = not torch.is_grad_enabled()
            differentiated = call.name != "detach" and not record.without_gradient
            record.requires_grad = differentiated and any(item.requires_grad for item in call.records)
        if target is None or tuple(target.shape) != tuple(record.shape):
            target = torch.empty(record.shape, dtype=record.dtype, device="meta")
        self.attach(target, record)
        return target

    def attach(self, tensor: Tensor, record: Record) -> None:
        """Make a record what is known of a tensor."""
        self.records.append(record)
        setattr(tensor, RECORD, record)


# -- Rules by the name of the torch function that they follow


Rule = Callable[..., Any]
RULES: Registry[Rule] = Registry("rule of the torch function", "sigprop.capture.rules")


rule = RULES.register
"""Decorator: the rule of the torch functions with these names."""


def by_rule(capture: Capture, call: Call) -> Any:
    """The result of a call that the model did not make itself, one of the steps that another call stands for."""
    made = RULES[call.name](capture, call, *call.args, **call.kwargs)
    if isinstance(made, Field) and made.call is None:
        made.call = call
    return made
