"""A wide signal as an argument of a module's own `forward`: torch functions that meet it become the ops of `signal`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sigprop.distributions import INDEPENDENT, ORTHOGONAL, Distribution
from sigprop.errors import UnsupportedError
from sigprop.research.kernels import signal
from sigprop.research.kernels.signal import Readout, WideSignal
from sigprop.theory import activations

UNCHANGED = ("flatten", "contiguous", "clone", "to", "float", "double")


class Laws:
    """The laws of a model's parameters; each weight may be used once."""

    def __init__(self, laws: Mapping[int, Distribution], names: Mapping[int, str], standard: bool):
        self._laws, self._names, self._standard = laws, names, standard
        self._used: set[int] = set()

    def readout(self, weight: Tensor, bias: Tensor | None) -> Readout:
        fan_in = weight.shape[1]
        variance = fan_in * self._variance(weight)
        shift = self._variance(bias) if bias is not None else 0.0
        trained = (float(fan_in), 1.0) if self._standard else (variance, shift)
        learns = bias is not None and bias.requires_grad
        return Readout(variance, shift, (weight.requires_grad * trained[0], learns * trained[1]))

    def is_constant(self, parameter: Tensor, level: float) -> bool:
        law = self._laws.get(id(parameter))
        return law is not None and law.variance == 0.0 and law.mean == level

    def _variance(self, parameter: Tensor) -> float:
        law, name = self._laws.get(id(parameter)), self._names.get(id(parameter), "a weight")
        if law is None or law.kind not in (INDEPENDENT, ORTHOGONAL) or law.mean:
            raise UnsupportedError(f"{name} is not drawn independently about zero: its kernel is not followed")
        if id(parameter) in self._used:
            raise UnsupportedError(f"{name} is used twice: kernels of shared weights are not followed")
        self._used.add(id(parameter))
        return law.variance


class WideTensor:
    """What a module computes with; anything that is not followed is refused by name."""

    def __init__(self, state: WideSignal, laws: Laws):
        self.state, self._laws = state, laws

    def _made(self, state: WideSignal) -> WideTensor:
        return WideTensor(state, self._laws)

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = getattr(func, "__name__", str(func)).rstrip("_")
        first = next(item for item in args if isinstance(item, WideTensor))
        return first._called(name, func, args, dict(kwargs or {}))

    def _called(self, name: str, func: Callable, args: tuple, kwargs: dict[str, Any]) -> WideTensor:
        kwargs.pop("inplace", None)
        if name == "linear":
            return self._made(signal.linear(args[0].state, self._laws.readout(*_two(args[1:], kwargs))))
        if name in ("add", "sub", "mul", "div", "true_divide", "neg"):
            return self._arithmetic(name, *args)
        if name in ("layer_norm", "rms_norm"):
            return self._norm(name, *args, **kwargs)
        if "dropout" in name:
            return self._dropped(*args[1:], **kwargs)
        options = [item for item in args if not isinstance(item, (WideTensor, bool))]
        if any(isinstance(item, (Tensor, WideTensor)) for item in (*options, *kwargs.values())) or args[0] is not self:
            raise _unknown(name)
        if self.state.values is not None:
            return self._made(WideSignal.of_values(func(self.state.values, *options, **kwargs)))
        return self._made(signal.activation(self.state, _activation(name, func, options, kwargs)))

    def _arithmetic(self, name: str, *args: Any) -> WideTensor:
        if name == "neg":
            return self._made(signal.scaled(self.state, -1.0))
        one, other = args[0], args[1]
        if name == "sub":
            other = -other
        if name in ("add", "sub"):
            if isinstance(one, WideTensor) and isinstance(other, WideTensor):
                return self._made(signal.added(one.state, other.state))
            return self._made(signal.shifted(self.state, _number(name, other if isinstance(one, WideTensor) else one)))
        if name == "mul" or isinstance(one, WideTensor):
            factor = _number(name, other if isinstance(one, WideTensor) else one)
            return self._made(signal.scaled(self.state, factor if name == "mul" else 1.0 / factor))
        raise _unknown(name)

    def _norm(
        self, name: str, x: WideTensor, shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5
    ) -> WideTensor:
        for parameter, level in ((weight, 1.0), (bias, 0.0)):
            if parameter is not None and not self._laws.is_constant(parameter, level):
                raise UnsupportedError(f"{name}: its gain and shift must be one and zero")
        trained = [item is not None and item.requires_grad for item in (weight, bias)]
        return self._made(signal.normalized(x.state, name == "layer_norm", float(eps or 0.0), *trained))

    def _dropped(self, p: float = 0.5, training: bool = True, **_: Any) -> WideTensor:
        if training and p:
            raise UnsupportedError("dropout in training mode has no kernel here: call .eval() first")
        return self

    def __add__(self, other: Any) -> WideTensor:
        return self._arithmetic("add", self, other)

    __radd__ = __iadd__ = __add__

    def __neg__(self) -> WideTensor:
        return self._arithmetic("neg")

    def __sub__(self, other: Any) -> WideTensor:
        return self._arithmetic("add", self, -other)

    def __rsub__(self, other: Any) -> WideTensor:
        return self._arithmetic("add", -self, other)

    def __mul__(self, other: Any) -> WideTensor:
        return self._arithmetic("mul", self, other)

    __rmul__ = __imul__ = __mul__

    def __truediv__(self, other: Any) -> WideTensor:
        return self._arithmetic("div", self, other)

    def __pow__(self, power: float) -> WideTensor:
        return self._called("pow", torch.pow, (self, power), {})

    def __getattr__(self, name: str) -> Any:
        if name in UNCHANGED:
            return lambda *args, **kwargs: self
        if name.startswith("__") or not hasattr(torch, name):
            raise AttributeError(f"kernels of infinite width do not follow .{name}")
        return lambda *args, **kwargs: self._called(name, getattr(torch, name), (self, *args), kwargs)


def _two(args: tuple, kwargs: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    weight = args[0] if args else kwargs["weight"]
    return weight, args[1] if len(args) > 1 else kwargs.get("bias")


def _activation(
    name: str, func: Callable, options: list[Any], kwargs: dict[str, Any]
) -> activations.ActivationFunction:
    if name == "leaky_relu":
        return activations.get("leaky_relu", slope=float((options or [kwargs.get("negative_slope", 0.01)])[0]))
    if name == "abs":
        return activations.get("two_slope", positive=1.0, negative=-1.0)
    if name == "gelu" and kwargs.get("approximate", "none") == "none":
        return activations.get("gelu")
    if not options and not kwargs:
        return activations.get(func)
    return activations.get(lambda x: func(x, *options, **kwargs), name=name)


def _number(name: str, value: Any) -> float:
    if isinstance(value, (int, float)) and math.isfinite(value):
        return float(value)
    if isinstance(value, Tensor) and value.numel() == 1 and not value.requires_grad and not value.is_meta:
        return float(value)
    raise _unknown(name)


def _unknown(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"kernels of infinite width do not follow {name!r}. They follow linear layers, elementwise functions, sums, "
        "numbers as factors, LayerNorm and RMSNorm"
    )
