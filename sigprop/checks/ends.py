"""Where gradients end: the function that has a gradient behind it and none, or no finite one, before it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sigprop.batches import copied, tensors_in
from sigprop.losses import LossChoice, objective, white_noise
from sigprop.measurement.batch import call, send_back
from sigprop.measurement.guard import untouched
from sigprop.sites import hookable_modules

ALIVE, ZERO, BROKEN, ABSENT = "alive", "zero", "broken", "absent"
FACTORS = {
    "mul": (0, 1),
    "multiply": (0, 1),
    "rmul": (0, 1),
    "div": (0,),
    "truediv": (0,),
    "matmul": (0, 1),
    "rmatmul": (0, 1),
    "mm": (0, 1),
    "bmm": (0, 1),
    "einsum": (1, 2),
    "linear": (0, 1),
    "conv1d": (0, 1),
    "conv2d": (0, 1),
    "conv3d": (0, 1),
    "layer_norm": (2,),
    "rms_norm": (2,),
    "group_norm": (2,),
    "batch_norm": (3,),
}
"""Arguments of functions by which the others are multiplied."""
KEYWORDS = {"layer_norm": "weight", "rms_norm": "weight", "group_norm": "weight", "batch_norm": "weight"}
PRODUCTS = ("matmul", "rmatmul", "mm", "bmm", "einsum", "linear")
SLOPES = ("relu", "clamp", "clip", "softmax", "sigmoid", "tanh", "exp", "sqrt", "log", "where", "masked", "max", "min")
EXPONENTIALS, LOOK_BACK = ("exp", "exp2"), 50
CHOICES = ("argmax", "argmin", "one_hot", "topk", "argsort")
STEPS = ("round", "sign", "floor", "ceil", "trunc", "heaviside")
CUTS = ("data", "detach", "tensor", "new_tensor", *CHOICES, *STEPS)
NUMBERS = ("item", "tolist", "numpy", "float", "int")
"""What makes a plain number, or an array, of a tensor."""
STRAIGHT = "a step has no slope: hand the gradient through (straight-through: x + (round(x) - x).detach())"
CHOICE = (
    "a choice has no gradient: multiply what is chosen by the weights (gate, probabilities) of the router that chose "
    "it, or hand the gradient through (straight-through: z + (q - z).detach())"
)


@dataclass
class TracedCall:
    site: str
    name: str
    args: list[Any]
    given: list[Any]
    made: list[Tensor]
    graded: bool

    @property
    def factors(self) -> list[Any]:
        return [self.args[place] for place in FACTORS.get(self.name, ()) if place < len(self.args)]


@dataclass(frozen=True)
class End:
    """`site` and `function`; `why` as a sentence; `number`: a factor of zero is a plain number, no tensor; `fix`: what
    would let the gradient through, where the function tells; `zero`: the parameter that is a factor of zero."""

    site: str
    function: str
    why: str
    number: bool = False
    fix: str = ""
    zero: str = ""

    def __str__(self) -> str:
        return f"`{self.function}` in {self.site}"


@dataclass
class GradientTape(TorchFunctionMode):
    """Every call with what it was given, and how the gradient of what it made turned out."""

    current: list[str]
    calls: list[TracedCall] = field(default_factory=list)
    status: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        made = [item for _, item in tensors_in(output)]
        name = getattr(func, "__name__", str(func))
        if name == "__get__":
            name = "data" if func is Tensor.data.__get__ else "view"  # type: ignore[attr-defined]
        if name and (made or name.strip("_") in NUMBERS):
            given = [
                part
                for item in (*args, *kwargs.values())
                for part in (item if isinstance(item, (tuple, list)) else [item])
            ]
            site, name = self.current[-1] or "the model", name.strip("_")
            factors = [*args, *([kwargs[KEYWORDS[name]]] * 4 if KEYWORDS.get(name) in kwargs else [])]
            self.calls.append(TracedCall(site, name, factors, given, made, torch.is_grad_enabled()))
            for item in made:
                if item.requires_grad and not item.is_leaf:
                    item.register_hook(partial(_note, self.status, id(item)))  # with the tape it would hold the graph
        return output


def _note(status: dict[int, str], key: int, gradient: Tensor) -> None:
    status[key] = status_of(gradient)


@contextmanager
def entered(model: nn.Module) -> Iterator[list[str]]:
    """The names of the modules that run, innermost last."""
    current, handles = [""], []
    for name, module in hookable_modules(model):
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: current.append(name)))
        handles.append(module.register_forward_hook(lambda *_: _leave(current)))
    try:
        yield current
    finally:
        for handle in handles:
            handle.remove()


def _leave(current: list[str]) -> None:
    current.pop()


def status_of(gradient: Tensor | None) -> str:
    if gradient is None:
        return ABSENT
    if not bool(gradient.isfinite().all()):
        return BROKEN
    return ALIVE if bool(gradient.any()) else ZERO


def gradient_ends(model: nn.Module, batch: Any, loss: LossChoice) -> tuple[dict[str, str], dict[str, End]]:
    """By parameter: the state of its gradient, and where it ends where it is not alive."""
    with untouched(model.modules(), [tensor for _, tensor in tensors_in(batch)]):
        torch.manual_seed(0)
        with entered(model) as current, GradientTape(current) as tape:
            aim = objective(call(model, copied(batch)), batch, loss)
        send_back(model, aim.tensor, white_noise(aim.tensor) if aim.is_noise else None)
        names = {id(weight): name for name, weight in model.named_parameters()}
        states = {name: status_of(weight.grad) for name, weight in model.named_parameters() if weight.requires_grad}
        walk = _Walk(tape, names)
        found = {}
        for name, weight in model.named_parameters():
            if states.get(name, ALIVE) != ALIVE:
                tape.status[id(weight)] = states[name]
                end = walk.end(weight)
                found |= {} if end is None else {name: end}
    return states, found


class _Walk:
    def __init__(self, tape: GradientTape, names: dict[int, str]):
        self.tape, self.names = tape, names
        self.readers: dict[int, list[TracedCall]] = {}
        self.makers: dict[int, TracedCall] = {}
        for call_ in tape.calls:
            for item in call_.given:
                if isinstance(item, Tensor):
                    self.readers.setdefault(id(item), []).append(call_)
            for item in call_.made:
                self.makers.setdefault(id(item), call_)

    def end(self, tensor: Tensor) -> End | None:
        """The first call behind a tensor whose own gradient is in another state."""
        state, seen, waiting, cut = self.tape.status.get(id(tensor), ABSENT), {id(tensor)}, [tensor], None
        while waiting:
            item = waiting.pop(0)
            for reader in self.readers.get(id(item), []):
                if reader.name in NUMBERS:
                    cut = cut or _cut(reader)
                for made in reader.made:
                    if not made.requires_grad:
                        found = _cut(reader)
                        cut = found if cut is None or (found is not None and found.fix and not cut.fix) else cut
                    elif self.tape.status.get(id(made), ABSENT) in ((ALIVE, ZERO) if state == BROKEN else (ALIVE,)):
                        return self._ended(reader, item, state)
                    elif id(made) not in seen:
                        seen.add(id(made))
                        waiting.append(made)
        return (cut or self._copied(tensor)) if state == ABSENT else None

    def _copied(self, tensor: Tensor) -> End | None:
        """Where its numbers are read by a tensor that is not part of the graph."""
        memory = tensor.untyped_storage().data_ptr()
        for reader in self.tape.calls:
            for item in reader.given:
                if isinstance(item, Tensor) and not item.requires_grad and item.untyped_storage().data_ptr() == memory:
                    where = f"`{reader.name}` in {reader.site}"
                    return End(reader.site, "data", f"{where} reads its numbers through `.data` or `detach`")
        return None

    def _ended(self, reader: TracedCall, item: Tensor, state: str) -> End:
        where = f"`{reader.name}` in {reader.site}"
        if state == BROKEN:
            why = "it overflows, or divides by zero" if bool((item != 0).all()) else "its slope at zero is infinite"
            return End(reader.site, reader.name, f"{where} has a finite gradient behind it and none before it: {why}")
        for other in reader.factors:
            if isinstance(other, Tensor) and other is not item and other.is_floating_point() and not bool(other.any()):
                zero, told = self._origin(other)
                fix = _apart_from_zero(reader, other)
                return End(reader.site, reader.name, f"{where} multiplies by zeros: {told}", fix=fix, zero=zero)
            if isinstance(other, (int, float)) and not isinstance(other, bool) and other == 0:
                return End(
                    reader.site,
                    reader.name,
                    f"{where} multiplies by the number 0",
                    True,
                    "multiply by one there, not by 0",
                )
        if "softmax" in reader.name or "entropy" in reader.name:
            single = bool(item.dim()) and item.shape[-1] == 1
            fix = "use a sigmoid, or give the softmax two classes" if single else "make its logits smaller"
            return End(reader.site, reader.name, f"{where} {_softmax(item)}", fix=fix)
        if reader.name.startswith("relu") and not bool(reader.made[0].any()):
            why = f"{where} has no slope: all it reads {_range(item)}: dead units, or a hinge that is shut"
            fix = "turn the sign of what it reads, or move its margin (relu(1 - x)), so that some of it is above zero"
            return End(reader.site, reader.name, why, fix=fix)
        if any(word in reader.name for word in SLOPES):
            return End(reader.site, reader.name, f"{where} has no slope where it is read: what it reads {_range(item)}")
        maker = self._underflow(item)
        if maker is not None:
            share = float((maker.made[0] == 0).double().mean())
            zeros = (
                f"it makes zeros of {share:.0%} of what it reads, which get no gradient: that {_range(maker.given[0])}"
            )
            why = f"`{maker.name}` in {maker.site} underflows: {zeros}"
            return End(maker.site, maker.name, why, fix="start its logits closer together, or raise the temperature")
        fix = STRAIGHT if reader.name in STEPS else ""
        return End(reader.site, reader.name, f"the gradient is alive behind {where} and zero before it", fix=fix)

    def _underflow(self, item: Tensor) -> TracedCall | None:
        """The exponential behind a tensor, where it makes zeros."""
        for _ in range(LOOK_BACK):
            maker = self.makers.get(id(item))
            if maker is None or not isinstance(maker.given[0], Tensor):
                return None
            if maker.name in EXPONENTIALS:
                return maker if bool((maker.made[0] == 0).any()) else None
            item = maker.given[0]
        return None

    def _origin(self, tensor: Tensor) -> tuple[str, str]:
        """The parameter that a tensor of zeros is a view of, or the last call that turned numbers into zeros."""
        for _ in range(50):
            if id(tensor) in self.names:
                return self.names[id(tensor)], f"{self.names[id(tensor)]} is zero"
            maker = self.makers.get(id(tensor))
            if maker is None:
                return "", "a constant"
            sources = [item for item in maker.given if isinstance(item, Tensor) and item.is_floating_point()]
            zeros = [item for item in sources if not bool(item.any()) and item is not tensor]
            if not zeros:
                return "", f"what `{maker.name}` in {maker.site} makes is zero everywhere"
            tensor = zeros[0]
        return "", "zeros"


def _apart_from_zero(reader: TracedCall, other: Tensor) -> str:
    """A square matrix of zeros was to be the identity; a factor of zeros was to be one plus it."""
    if reader.name in PRODUCTS:
        square = other.dim() > 1 and other.shape[-1] == other.shape[-2]
        return "start it at the identity (`torch.eye`, as a bias)" if square else ""
    return "multiply by 1 + it, or start it at another value than zero"


def _cut(reader: TracedCall) -> End | None:
    where = f"`{reader.name}` in {reader.site}"
    if reader.name in NUMBERS:
        fix = f"keep the tensor there (no `{reader.name}`): what comes of a plain number has no graph behind it"
        return End(
            reader.site, reader.name, f"{where} makes a plain number of a tensor: no gradient comes back", fix=fix
        )
    if reader.name in CUTS:
        fix = CHOICE if reader.name in CHOICES else STRAIGHT if reader.name in STEPS else ""
        return End(reader.site, reader.name, f"{where} passes no gradient on", fix=fix)
    return None if reader.graded else End(reader.site, reader.name, f"{where} runs without gradients (no_grad)")


def _softmax(item: Tensor) -> str:
    if item.dim() and item.shape[-1] == 1:
        return "has a single class: it is one, whatever it reads"
    item = item.detach().double()
    spread = float((item.amax(-1) - item.amin(-1)).median()) if item.dim() else math.nan
    return f"is saturated: what it reads spans {spread:.3g}"


def _range(item: Tensor) -> str:
    low, high = (float(value) for value in item.detach().double().aminmax())
    return f"lies between {low:.3g} and {high:.3g}"
