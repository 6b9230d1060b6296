"""Capture: run a model's own forward once, parameters on meta, and record what depends on them.

Only tensors that depend on parameters are traced. Token ids, masks, positions and rotary tables are real and simply
execute. Every traced call is handed to the rule of its function, which returns the records of its results.
"""

from __future__ import annotations

import inspect
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import resolve_name
from torch.utils.hooks import RemovableHandle

from sigprop.compat import DisableTorchFunction, custom_functions
from sigprop.errors import InputError, SigpropError, UnsupportedError
from sigprop.initialization import zero_rows
from sigprop.process import Mode
from sigprop.theory import Dense, Node, Signal, Status, Tape
from sigprop.theory.ops.base import Op
from sigprop.trace.aliases import asks_to_write, is_view, remember, written_through
from sigprop.trace.attached import attach, attached, is_traced
from sigprop.trace.dependent_entries import law_of, note_dependent_entries
from sigprop.trace.functions import CHECKED, GETTERS, KEPT, QUERIES, VALUES, canonical, kind_of, own_body
from sigprop.trace.layout import LARGEST, Misaligned
from sigprop.trace.module_sites import ModuleSites
from sigprop.trace.record import Call, Field, Record, Skipped, Uneven, Weight, fields_made, leaves, mapped
from sigprop.trace.replay import Replay
from sigprop.trace.rules import Rule, find_rule
from sigprop.trace.rules.fallback import recorded, sample
from sigprop.trace.rules.stops import custom, hooked, stopped
from sigprop.trace.rules.views import on_meta
from sigprop.trace.rules.weights import makes_fields, of_weights
from sigprop.trace.sampled import Sampled
from sigprop.trace.shared_parts import SharedParts
from sigprop.trace.shared_weights import WeightsBehind
from sigprop.trace.tied import TiedLogits


class Capture(Mode, ModuleSites):
    """The mode that a model runs under, and everything it finds: tape, sites, parameters, loss."""

    def __init__(
        self,
        model: nn.Module,
        seed: int = 0,
        preview: bool = False,
        single: bool = False,
        tape: Tape | None = None,
    ):
        Mode.__init__(self)
        ModuleSites.__init__(self, model)
        self.preview = preview
        self.single = single
        self.tape = tape or Tape()
        self.records: list[Record] = []
        self.parameters: dict[str, Weight] = {}
        self.bindings: dict[Node, dict[str, tuple[Weight, int]]] = {}
        self.embedded: dict[Node, tuple[str, Tensor]] = {}
        self.contacts: dict[Node, TiedLogits] = {}
        self.edges: set[Node] = set()
        self.shared_parts = SharedParts()
        self.weights_behind = WeightsBehind(self)
        self.doubts: dict[Node, str] = {}
        self.concrete = Replay(torch.Generator().manual_seed(seed + 1))
        self.attentions = 0
        self.lock = RLock()
        self.most_positions = LARGEST
        self._seeds = self._base = seed * 100003
        self._first_field = fields_made()
        self._running = self._recording = False
        self.repeats: dict[Field, int] = {}
        self._run_before: set[tuple] = set()
        self._stopped: dict[Record, Record] = {}
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

    # -- what rules use

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

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Names of modules while they run; their outputs become sites."""
        self._running = True
        try:
            with torch.enable_grad(), self.module_hooks(), custom_functions(self._custom_function), self:
                yield
        finally:
            self._running = False

    @contextmanager
    def loss(self) -> Iterator[None]:
        """While a loss is called on the output: what it is made of is only recorded, to be replayed."""
        self.lock.acquire()
        self._recording = True
        try:
            with torch.enable_grad(), self.module_hooks(), custom_functions(self._custom_function), self:
                yield
        finally:
            self._recording = False
            self.lock.release()

    def sampled(self, target: Field, reason: str) -> Node:
        """The node of a field by Monte Carlo on the functions that lead to it."""
        if target.layout.positions > LARGEST:
            raise UnsupportedError(
                f"a tensor of shape {target.shape} in {self.module!r} has {target.layout.positions} positions, "
                f"more than the {LARGEST} that are followed: a shorter sequence or a smaller image may help"
            )
        op = Sampled(target, self.seed() if self._running else self.seed_of(target), reason)
        return self.apply(op, *(source.node for source in op.sources))

    def value_of(self, item: Any) -> Any:
        """Real numbers for a traced tensor, drawn once: routing, comparisons, branches on values."""
        return self.concrete(item) if isinstance(item, Record) else item

    # -- the mode

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = dict(kwargs or {})
        name = canonical(func)
        if name == "get":
            return self._getter(func, args)
        if name == "register_hook" and is_traced(args):
            return self._hook(*args)
        if name in QUERIES or not (is_traced(args) or is_traced(kwargs.values())):
            return func(*args, **kwargs)
        return self._traced(func, name, args, kwargs)

    def _getter(self, func: Any, args: tuple) -> Any:
        attribute = getattr(func.__self__, "__name__", "")
        tensor = args[0]
        if attached(tensor) is None or (attribute in GETTERS and not tensor.is_meta):
            return func(*args)
        if attribute in GETTERS:
            return GETTERS[attribute]
        if attribute == "data":
            return self._traced(torch.Tensor.detach, "detach", (tensor,), {})
        if attribute == "requires_grad":
            return tensor.is_floating_point() and attached(tensor).requires_grad  # type: ignore[union-attr]
        if attribute in ("T", "mT", "H", "mH"):
            return self._traced(torch.Tensor.transpose, "transpose", (tensor, -2, -1), {})
        if attribute in ("real", "imag"):
            return self._traced(getattr(torch, attribute), attribute, (tensor,), {})
        return func(*args)

    def _hook(self, tensor: Tensor, hook: Callable[[Tensor], Any]) -> RemovableHandle:
        """A hook on the gradient of a traced tensor: from here on the tensor is the one behind the hook."""
        found = attached(tensor)
        if isinstance(found, Field):
            made = hooked(self, found, hook)
            if made is not None:
                made.before_hook = found if found.before_hook is None else found.before_hook
                self.attach(tensor, made)
        return RemovableHandle(OrderedDict())

    def _custom_function(self, kind: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """An `autograd.Function`: its backward is what counts, so it is followed as a whole."""
        if not (is_traced(args) or is_traced(kwargs.values())):
            return NotImplemented
        if kind.__name__ == "CheckpointFunction":
            return args[0](*args[2:])
        if kind.__module__.startswith("torch."):
            return NotImplemented
        given, named = mapped((args, kwargs), self._argument)
        call = Call(kind.apply, kind.__name__, given, named, self.module)
        if all(isinstance(item, Weight) for item in call.records()):
            return NotImplemented
        return self._attach(call, (), custom(self, call))

    def _argument(self, item: Any) -> Any:
        """The record of a traced tensor; one that was made where gradients were off has none where they are on."""
        found = attached(item) if isinstance(item, Tensor) else None
        if isinstance(found, Skipped):
            raise Uneven(f"{self.module!r} reads what a block that is not followed hands on")
        if found is None or not found.without_gradient or not torch.is_grad_enabled():
            return item if found is None else found
        if found not in self._stopped:
            self._stopped[found] = stopped(self, found)
        return self._stopped[found]

    def _traced(self, func: Any, name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
        rule = find_rule(name)
        if rule is None and inspect.isfunction(func) and func.__module__.startswith("torch.nn"):
            with self:
                return own_body(func)(*args, **kwargs)
        kwargs.pop("device", None)
        if name == "to":
            args = tuple(item for item in args if not isinstance(item, (torch.device, str)))
        in_place = name != "setitem" and func.__name__.endswith("_") and not func.__name__.startswith("__")
        in_place = in_place or (func.__name__.startswith("__i") and func.__name__ != "__invert__")
        in_place = in_place or asks_to_write(func, args, kwargs)
        given, named = mapped((args, kwargs), self._argument)
        call = Call(func, name, given, named, self.module, in_place)
        if name in CHECKED:
            self._require_runs(call)
        try:
            result = self._result(rule, call)
        except (SigpropError, RecursionError):
            raise
        except Exception as error:
            raise UnsupportedError(self._complaint(call, error)) from error
        return self._attach(call, args, result)

    def _require_runs(self, call: Call) -> None:
        """What torch itself refuses for its shapes is refused here, where it happens; repeated blocks ask once."""
        kind = (call.function, tuple(map(kind_of, leaves((call.args, call.kwargs)))))
        if kind in self._run_before:
            return
        try:
            on_meta(call)
            self._run_before.add(kind)
        except NotImplementedError:
            return
        except (RuntimeError, ValueError, IndexError) as error:
            raise InputError(
                f"{type(self.model).__name__} cannot run on this batch: {call.name} in {call.module!r} "
                f"on {_shapes(call)}: {str(error).splitlines()[0]}"
            ) from error

    def _result(self, rule: Rule | None, call: Call) -> Any:
        into_numbers = call.name == "setitem" and isinstance(call.args[0], Tensor)
        if self._recording:
            return self._recorded(rule, call)
        if not makes_fields(call) and not into_numbers and all(isinstance(i, Weight) for i in call.records()):
            return of_weights(self, call)
        if call.name not in VALUES and all(math.prod(item.shape) == 1 for item in call.records()):
            return recorded(self, call)
        return rule(self, call, *call.args, **call.kwargs) if rule else sample(self, call)

    def _recorded(self, rule: Rule | None, call: Call) -> Any:
        """A call of a loss: views keep the roles of dimensions, questions about values are answered by a draw."""
        by_values = call.name == "getitem" and any(isinstance(item, Record) for item in leaves(call.args[1]))
        if rule is not None and (call.name in VALUES or call.name in KEPT) and not by_values:
            try:
                return rule(self, call, *call.args, **call.kwargs)
            except (SigpropError, Misaligned):
                pass
        return recorded(self, call)

    def _attach(self, call: Call, args: tuple, result: Any) -> Any:
        """Tensors for the records a rule returned; what is written in place takes the new record."""
        view = is_view(call, args[0] if args else None)
        if isinstance(result, Record):
            target = args[0] if call.in_place or call.name == "setitem" else None
            made = self._tensor(result, call, target)
            if target is not None:
                written_through(self, target, result)
            elif view:
                remember(made, args[0], call, None)
            return made
        if isinstance(result, (tuple, list)):
            made = [self._tensor(item, call) if isinstance(item, Record) else item for item in result]
            for number, item in enumerate(made):
                if view and isinstance(item, Tensor):
                    remember(item, args[0], call, number)
            if call.name == "iter":
                return iter(made)
            return type(result)(made)
        return result

    def _tensor(self, record: Record, call: Call, target: Tensor | None = None) -> Tensor:
        if record.call is None and not isinstance(record, Weight):
            record.call = call
        if record not in call.records():
            record.without_gradient = not torch.is_grad_enabled()
            differentiated = call.name != "detach" and not record.without_gradient
            record.requires_grad = differentiated and any(item.requires_grad for item in call.records())
        self.records.append(record)
        if target is None or tuple(target.shape) != tuple(record.shape):
            target = torch.empty(record.shape, dtype=record.dtype, device="meta")
        attach(target, record)
        return target

    def attached(self, call: Call, record: Field) -> Tensor:
        """The tensor of what a call that no mode saw has made."""
        return self._tensor(record, call)

    def attach(self, tensor: Tensor, record: Record) -> None:
        """Make a record what is known of a tensor."""
        self.records.append(record)
        attach(tensor, record)

    def _complaint(self, call: Call, error: Exception) -> str:
        function = resolve_name(call.function) or call.name
        return (
            f"no prediction for {function} in {call.module!r} on {_shapes(call)} "
            f"({type(error).__name__}: {error}). Register a rule: "
            f'@sigprop.trace.rule("{call.name}") def {call.name}(capture, call, ...): return a Field.'
        )


def _shapes(call: Call) -> str:
    found = [item for item in leaves((call.args, call.kwargs)) if isinstance(item, (Record, Tensor))]
    return ", ".join(f"{type(item).__name__.lower()} {tuple(item.shape)}" for item in found)


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


__all__ = ["Capture", "Misaligned"]
