"""The mode that a model's own forward runs under, parameters on meta: what depends on them goes through rules.

Only tensors that depend on parameters are traced. Token ids, masks, positions and rotary tables are real and simply
execute. Every traced call is handed to the rule of its function, which returns the records of its results.
"""

from __future__ import annotations

import inspect
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import resolve_name
from torch.utils.hooks import RemovableHandle

from sigprop.capture.capture import RULES, Capture, Rule
from sigprop.capture.functions import CHECKED, GETTERS, KEPT, QUERIES, SAME, VALUES, VIEWS
from sigprop.capture.layout import Misaligned
from sigprop.capture.noise import MAKERS, NOISE, remember_noise
from sigprop.capture.record import Call, Field, Record, Skipped, Uneven, Weight, leaves, no_rule, on_meta
from sigprop.capture.rules.joining import remember, written_through
from sigprop.capture.rules.operands import how_chosen, remember_choice, remember_routing, routing_of, rows_picked
from sigprop.capture.rules.replayed import kept, makes_fields, of_weights, recorded, replayed
from sigprop.capture.rules.stops import custom, hooked, stopped
from sigprop.compat import custom_functions
from sigprop.errors import Fault, InputError, SigpropError, UnsupportedError
from sigprop.graph.graph import mapped, record_of, replaced, traced
from sigprop.isolation import Mode

CHOOSING = frozenset(
    "mul multiply rmul where masked_fill gather take_along_dim scatter scatter_add einsum matmul bmm mm".split()  # noqa: SIM905
)
"""Functions of fields and of real numbers that were chosen, in which the choice is drawn with the fields."""

PICKING = frozenset(["getitem", "index_select"])
"""Functions that pick entries by numbers."""

NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim"}
"""Names of arguments that torch takes for its own; rules know torch's."""


class CaptureMode(Mode):
    """Every call of a torch function while a model, or a loss, runs: traced ones extend a capture."""

    def __init__(self, capture: Capture):
        super().__init__()
        self._capture = capture
        self._recording = False
        self._run_before: set[tuple] = set()
        self._rules = RULES.entries()

    @contextmanager
    def watching(self, loss: bool = False) -> Iterator[None]:
        """Modules by name while they run; their outputs become sites. What a `loss`, which is called on the output, is
        made of is only recorded, to be replayed."""
        capture, functions = self._capture, custom_functions(self._custom_function)
        with capture.lock:
            self._recording, capture.running = loss, not loss
            try:
                with torch.enable_grad(), capture.module_hooks(), functions, self:
                    yield
            finally:
                self._recording = capture.running = False

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = dict(kwargs or {})
        name = canonical(func)
        for theirs in NUMPY_NAMES.keys() & kwargs if name in self._rules else ():
            kwargs[NUMPY_NAMES[theirs]] = kwargs.pop(theirs)
        if name == "get":
            return self._getter(func, args)
        found = traced(args, kwargs)
        if name == "register_hook" and found:
            return self._hook(*args)
        if name in QUERIES or not found:
            return func(*args, **kwargs) if name in QUERIES else self._of_numbers(func, name, args, kwargs)
        return self._traced(func, name, args, kwargs, found)

    def _of_numbers(self, func: Any, name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Real numbers made of indices that were chosen, or of such numbers, know how: which expert a token goes to
        was drawn once, and what is multiplied by it is drawn with it."""
        routing = routing_of((args, kwargs))
        if routing is None:
            made = func(*args, **kwargs)
            if name in MAKERS or any(getattr(item, NOISE, None) is not None for item in args):
                remember_noise(made, func, name, args, kwargs)
            return made
        given, named = mapped((args, kwargs), how_chosen)
        if isinstance(given[0], Tensor):
            given = (given[0].clone(), *given[1:])  # as it was, where it is written to
        made = func(*args, **kwargs)
        call = Call(func, name, given, named, self._capture.module, _writes(func, args, kwargs))
        remember_routing(made, routing)
        if call.records:
            with suppress(UnsupportedError, Misaligned):
                remember_choice(made, kept(self._capture, call))
        return made

    def _getter(self, func: Any, args: tuple) -> Any:
        attribute = getattr(func.__self__, "__name__", "")
        tensor, found = args[0], traced(args)
        if not found or (attribute in GETTERS and not tensor.is_meta):
            return func(*args)
        if attribute in GETTERS:
            return GETTERS[attribute]
        if attribute == "data":
            return self._traced(torch.Tensor.detach, "detach", (tensor,), {}, found)
        if attribute == "requires_grad":
            return tensor.is_floating_point() and found[0][1].requires_grad
        if attribute in ("T", "mT", "H", "mH"):
            return self._traced(torch.Tensor.transpose, "transpose", (tensor, -2, -1), {}, found)
        if attribute in ("real", "imag"):
            return self._traced(getattr(torch, attribute), attribute, (tensor,), {}, found)
        return func(*args)

    def _hook(self, tensor: Tensor, hook: Callable[[Tensor], Any]) -> RemovableHandle:
        """A hook on the gradient of a traced tensor: from here on the tensor is the one behind the hook."""
        found = record_of(tensor)
        if isinstance(found, Field):
            made = hooked(self._capture, found, hook)
            if made is not None:
                made.before_hook = found if found.before_hook is None else found.before_hook
                self._capture.attach(tensor, made)
        return RemovableHandle(OrderedDict())

    def _custom_function(self, kind: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """An `autograd.Function`: its backward is what counts, so it is followed as a whole."""
        found = traced(args, kwargs)
        if not found:
            return NotImplemented
        if kind.__name__ == "CheckpointFunction":
            return args[0](*args[2:])
        if kind.__module__.startswith("torch."):
            return NotImplemented
        given, named = replaced((args, kwargs), self._seen(found))
        call = Call(kind.apply, kind.__name__, given, named, self._capture.module)
        if all(isinstance(item, Weight) for item in call.records):
            return NotImplemented
        return self._attach(call, (), custom(self._capture, call))

    def _seen(self, found: list[tuple[Tensor, Record]]) -> dict[int, Record]:
        """By the `id` of traced tensors their records as arguments."""
        return {id(tensor): self._argument(record) for tensor, record in found}

    def _argument(self, found: Record) -> Record:
        """A record that was made where gradients were off has none where they are on."""
        if isinstance(found, Skipped):
            raise Uneven(f"{self._capture.module!r} reads what a block that is not followed hands on")
        if not found.without_gradient or not torch.is_grad_enabled():
            return found
        if found not in self._capture.stopped:
            self._capture.stopped[found] = stopped(self._capture, found)
        return self._capture.stopped[found]

    def _traced(
        self, func: Any, name: str, args: tuple, kwargs: dict[str, Any], found: list[tuple[Tensor, Record]]
    ) -> Any:
        rule = self._rules.get(name)
        if rule is None and inspect.isfunction(func) and func.__module__.startswith("torch.nn"):
            with self:
                return own_body(func)(*args, **kwargs)
        kwargs.pop("device", None)
        out = kwargs.pop("out", None)  # a replay must not write into a tensor of the model
        if name == "to":
            args = tuple(item for item in args if not isinstance(item, (torch.device, str)))
        given, named = replaced((args, kwargs), self._seen(found))
        if name in CHOOSING:
            given, named = mapped((given, named), how_chosen)
        call = Call(func, name, given, named, self._capture.module, _writes(func, args, kwargs))
        if name == "grad":
            raise no_rule(call, "gradients that a model takes itself are those of one network")
        if name in CHECKED:
            self._require_runs(call)
        try:
            result = self._result(rule, call)
        except (SigpropError, RecursionError, Uneven):
            raise
        except Misaligned as error:
            raise no_rule(call, str(error)) from error
        except Exception as error:
            raise Fault(
                f"{resolve_name(func) or name} in {call.module!r} on {_shapes(call)}: {type(error).__name__}: {error}"
            ) from error
        return self._attach(call, args, result, out)

    def _require_runs(self, call: Call) -> None:
        """What torch itself refuses for its shapes is refused here, where it happens; repeated blocks ask once."""
        kind = signature(call)
        if kind in self._run_before:
            return
        try:
            on_meta(call)
            self._run_before.add(kind)
        except NotImplementedError:
            return
        except (RuntimeError, ValueError, IndexError) as error:
            raise InputError(
                f"{type(self._capture.model).__name__} cannot run on this batch: {call.name} in {call.module!r} "
                f"on {_shapes(call)}: {str(error).splitlines()[0]}"
            ) from error

    def _result(self, rule: Rule | None, call: Call) -> Any:
        call = (rows_picked(call) or call) if call.name in PICKING else call
        into_numbers = call.name == "setitem" and isinstance(call.args[0], Tensor)
        if self._recording:
            return self._recorded(rule, call)
        if (empty := _of_none(call)) is not None:
            return empty
        of_weights_alone = not into_numbers and all(isinstance(item, Weight) for item in call.records)
        of_input = of_weights_alone and makes_fields(call)
        if of_weights_alone and not of_input:
            return of_weights(self._capture, call)
        if call.name not in VALUES and not of_input and all(math.prod(item.shape) == 1 for item in call.records):
            return recorded(self._capture, call)
        is_complex = any(isinstance(item, Weight) and item.dtype.is_complex for item in call.records)
        rule = None if is_complex else self._rules.get(call.name)
        return rule(self._capture, call, *call.args, **call.kwargs) if rule else replayed(self._capture, call)

    def _recorded(self, rule: Rule | None, call: Call) -> Any:
        """A call of a loss: views keep the roles of dimensions, questions about values are answered by a draw."""
        by_values = call.name == "getitem" and any(isinstance(item, Record) for item in leaves(call.args[1]))
        of_truths = call.name in SAME and any(item.dtype is torch.bool for item in call.records)
        if rule is not None and (call.name in VALUES or call.name in KEPT) and not (by_values or of_truths):
            try:
                return rule(self._capture, call, *call.args, **call.kwargs)
            except (SigpropError, Misaligned):
                pass
        return recorded(self._capture, call)

    def _attach(self, call: Call, args: tuple, result: Any, out: Tensor | None = None) -> Any:
        """Tensors for the records a rule returned; what is written in place takes the new record."""
        view = call.name in VIEWS and bool(args) and isinstance(args[0], Tensor)
        if isinstance(result, Record):
            target = args[0] if call.in_place or call.name == "setitem" else out
            made = self._capture.tensor_for(result, call, target)
            if target is not None:
                written_through(self._capture, target, result)
            elif view:
                remember(made, args[0], call, None)
            return made
        if isinstance(result, (tuple, list)):
            made = [self._capture.tensor_for(item, call) if isinstance(item, Record) else item for item in result]
            for number, item in enumerate(made):
                if view and isinstance(item, Tensor):
                    remember(item, args[0], call, number)
            if call.name == "iter":
                return iter(made)
            return type(result)(made)
        return result


def _of_none(call: Call) -> Tensor | None:
    """What a call makes of no entries, as an expert of no tokens."""
    if all(item.numel() for item in call.given if isinstance(item, Tensor)):
        return None
    made = on_meta(call)
    return torch.empty(made.shape, dtype=made.dtype) if isinstance(made, Tensor) and not made.numel() else None


def _shapes(call: Call) -> str:
    found = [item for item in call.given if isinstance(item, (Record, Tensor))]
    return ", ".join(f"{type(item).__name__.lower()} {tuple(item.shape)}" for item in found)


# -- what a call is named, and whether torch takes it


def canonical(func: Any) -> str:
    """One name for `add`, `add_`, `__add__`, `__radd__` and `__iadd__`; reflected ones keep their `r`."""
    name = getattr(func, "__name__", str(func))
    if name.startswith("__") and name.endswith("__"):
        bare = name.strip("_")
        return bare[1:] if bare in ("iadd", "isub", "imul", "itruediv", "idiv", "iand", "ior") else bare
    return name.rstrip("_") if name.endswith("_") and name != "requires_grad_" else name


def own_body(func: Any) -> Any:
    """A python function of torch.nn.functional that runs its own body, so that its inner calls are traced one by one.

    It asks `has_torch_function` first, and would be handed back; this copy of it is told that there is none.
    """
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    told = {**func.__globals__, **dict.fromkeys(names, lambda *args: False)}
    body = FunctionType(func.__code__, told, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return body


def signature(call: Call) -> tuple[Any, ...]:
    """What of a call decides whether torch takes it."""
    return (call.function, *map(_kind_of, call.given))


def _kind_of(item: Any) -> Any:
    """Nothing is like a tensor of whole numbers but itself."""
    if not isinstance(item, (Record, Tensor)):
        return repr(item)
    return (tuple(item.shape), item.dtype) if item.dtype.is_floating_point else object()


def _writes(func: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether a call changes its first argument; `setitem` is followed by a function that does not."""
    named = func.__name__.endswith("_") and not func.__name__.startswith("__")
    named = named or (func.__name__.startswith("__i") and func.__name__ != "__invert__")
    return named or asks_to_write(func, args, kwargs)


def asks_to_write(function: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether a function of `torch.nn.functional` is called with `inplace=True`, by name or by place."""
    place = _place_of_inplace(function)
    return bool(kwargs.get("inplace", place is not None and len(args) > place and args[place]))


@lru_cache(maxsize=1024)
def _place_of_inplace(function: Any) -> int | None:
    code = getattr(function, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    return names.index("inplace") if "inplace" in names else None
