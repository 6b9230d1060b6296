"""What a run of a model has found: the tape of ops, the records of tensors, the sites and the weights behind each op.

While the model runs (see `mode`) rules add to it; from then on it is only read.
"""

from __future__ import annotations

import math
from dataclasses import replace
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.capture.attached import attach
from sigprop.capture.dependent_entries import law_of, note_dependent_entries
from sigprop.capture.layout import LARGEST, Layout
from sigprop.capture.module_sites import ModuleSites
from sigprop.capture.record import Call, Field, Record, Weight, fields_made
from sigprop.capture.replay import Replay
from sigprop.capture.replayed_function import MOST_REPLAYED, ReplayedFunction
from sigprop.capture.shared_parts import SharedParts
from sigprop.capture.shared_weights import Bindings, WeightsBehind
from sigprop.capture.tied_logits import TiedLogits
from sigprop.compat import DisableTorchFunction
from sigprop.distributions import zero_rows
from sigprop.errors import InputError, UnsupportedError
from sigprop.theory import Dense, Node, Signal, Status, Tape
from sigprop.theory.ops.base import Op
from sigprop.theory.ops.sampled import Sampled


class Capture(ModuleSites):
    """The graph of one run, and what rules use to extend it.

    `bindings`: for each node the weights of its op; `embedded`: nodes that are rows of a table, its name and the ids;
    `contacts`: logits of a tied head; `edges`: nodes whose gradients are kept; `doubts`: what an op does not follow of
    one use of it; `stopped`: records made where gradients were off, as they are seen where they are on; `repeats`: how
    many times a site that was followed once is run. `running`: whether the model still runs.
    """

    def __init__(
        self,
        model: nn.Module,
        seed: int = 0,
        preview: bool = False,
        single: bool = False,
        tape: Tape | None = None,
    ):
        super().__init__(model)
        self.preview = preview
        self.single = single
        self.tape = tape or Tape()
        self.records: list[Record] = []
        self.parameters: dict[str, Weight] = {}
        self.bindings: Bindings = {}
        self.embedded: dict[Node, tuple[str, Tensor]] = {}
        self.contacts: dict[Node, TiedLogits] = {}
        self.edges: set[Node] = set()
        self.shared_parts = SharedParts()
        self.weights_behind = WeightsBehind(self.bindings, self.shared_parts)
        self.doubts: dict[Node, str] = {}
        self.stopped: dict[Record, Record] = {}
        self.centred: dict[tuple[Field, Layout], Field] = {}
        self.repeats: dict[Field, int] = {}
        self.concrete = Replay(torch.Generator().manual_seed(seed + 1))
        self.attentions = 0
        self.lock = RLock()
        self.most_positions, self.most_replayed = LARGEST, MOST_REPLAYED
        self._replayed = 0
        self.running = False
        self._seeds = self._base = seed * 100003
        self._first_field = fields_made()
        self._adopt_parameters()

    def _adopt_parameters(self) -> None:
        for name, parameter in self.model.named_parameters():
            if parameter.is_meta:
                law = law_of(parameter)
                if not math.isfinite(law.mean) or not math.isfinite(law.variance):
                    raise InputError(f"parameter {name!r} has entries that are not finite: nothing follows from it")
                weight = Weight(tuple(parameter.shape), law, name, zero_rows=zero_rows(parameter))
                weight.requires_grad = parameter.requires_grad
                self.parameters[name] = weight
                attach(parameter, weight)

    def apply(self, op: Op, *inputs: Node, weights: dict[str, tuple[Weight, int]] | None = None) -> Node:
        """Apply an op on the tape; `weights` binds the op's parameters to weights, with their number of entries."""
        count = max((node.positions for node in inputs), default=0)
        if count > self.most_positions:
            raise UnsupportedError(
                f"{count:,} positions in {self.module!r}, of which {self.most_positions:,} may be followed"
            )
        with DisableTorchFunction():  # a site is sealed outside of any traced call, where the mode would see every draw
            node = self.tape.apply(op, *inputs)
        if self.preview:
            node.signal = _alike(node.signal)
        if not math.isfinite(float(node.signal.kernel.values.sum())):
            made = getattr(op, "reason", type(op).__name__)
            raise UnsupportedError(f"the state in {self.module!r} is not finite ({made})")
        if weights:
            self.bindings[node] = weights
            note_dependent_entries(node, [weight for weight, _ in weights.values()])
        return node

    def doubt(self, node: Node, reason: str) -> None:
        """What an op does not follow of this use of it."""
        self.doubts[node] = reason
        node.signal = node.signal.note(Status.ASSUMED, reason)

    def source(self, signal: Signal) -> Node:
        return self.tape.source(signal)

    def seed(self) -> int:
        self._seeds += 1
        return self._seeds

    @property
    def loss_seed(self) -> int:
        """The seed of outputs that are drawn for a loss: the same for every loss."""
        return self._base + 1

    def seed_of(self, item: Field) -> int:
        """The seed of what is drawn for one field, whenever it is asked for."""
        return self._base + (item.number - self._first_field) * 7919

    def sampled(self, target: Field, reason: str) -> Node:
        """The node of a field by Monte Carlo on the functions that lead to it."""
        if target.layout.positions > LARGEST:
            raise UnsupportedError(
                f"a tensor of shape {target.shape} in {self.module!r} has {target.layout.positions} positions, "
                f"more than the {LARGEST} that are followed: a shorter sequence or a smaller image may help"
            )
        draws = ReplayedFunction(target, self.seed() if self.running else self.seed_of(target))
        self._replayed += draws.calls
        if self._replayed > self.most_replayed:
            raise UnsupportedError(
                f"{self._replayed:,} calls are to be drawn up to {self.module!r}, {self.most_replayed:,} may be: "
                "in a recurrence every step draws all steps before it"
            )
        return self.apply(Sampled(draws, reason), *(source.node for source in draws.parts))

    def value_of(self, item: Any) -> Any:
        """Real numbers for a traced tensor, drawn once: routing, comparisons, branches on values."""
        return self.concrete(item) if isinstance(item, Record) else item

    # -- tensors that stand for records

    def tensor_for(self, record: Record, call: Call, target: Tensor | None = None) -> Tensor:
        """The tensor, `target` where it fits, that stands for what a call has made."""
        if record.call is None and not isinstance(record, Weight):
            record.call = call
        if record not in call.records():
            record.without_gradient = not torch.is_grad_enabled()
            differentiated = call.name != "detach" and not record.without_gradient
            record.requires_grad = differentiated and any(item.requires_grad for item in call.records())
        if target is None or tuple(target.shape) != tuple(record.shape):
            target = torch.empty(record.shape, dtype=record.dtype, device="meta")
        self.attach(target, record)
        return target

    def attach(self, tensor: Tensor, record: Record) -> None:
        """Make a record what is known of a tensor."""
        self.records.append(record)
        attach(tensor, record)


def _alike(signal: Signal) -> Signal:
    """The state with every token, and every pair of tokens, replaced by the average one."""
    kernel = signal.kernel.values
    count = len(kernel)
    level = kernel.diagonal().mean()
    between = (kernel.sum() - kernel.diagonal().sum()) / max(count * (count - 1), 1)
    values = torch.full_like(kernel, float(between)).fill_diagonal_(float(level))
    mean = torch.full_like(signal.mean, float(signal.mean.mean()))
    made = replace(signal, kernel=Dense(values), mean=mean)
    return made.note(Status.ASSUMED, "preview: all tokens taken as alike")
