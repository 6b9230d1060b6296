"""A model without its weights: parameters on the meta device, the distribution of each kept aside.

While a model is built, every parameter is moved to meta as soon as it is registered, and the in-place functions that
initialize it act on a *shadow*: the quantiles of its entries' distribution. So any elementwise initialization is
followed exactly, whatever it is made of, and a model of any size fits in memory. Buffers stay real.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sigprop.errors import UnsupportedError
from sigprop.trace.observers import observers

QUANTILES = 4096
LARGE = 1 << 20
_ATTRIBUTE = "_sigprop_distribution"
_MAKERS = frozenset(
    ("arange", "linspace", "logspace", "rand", "randn", "randint", "full", "ones", "zeros", "tensor", "eye")
)
_ELEMENTWISE = frozenset(("mul", "rmul", "div", "truediv", "add", "radd", "sub", "rsub", "neg", "exp", "log", "clamp"))
_ALIKE = frozenset(("ones_like", "zeros_like", "full_like"))
_FILLS = (
    "normal_",
    "uniform_",
    "kaiming_uniform_",
    "kaiming_normal_",
    "zero_",
    "zeros_",
    "ones_",
    "fill_",
    "constant_",
)


@dataclass(frozen=True)
class Distribution:
    """How the entries of a parameter are drawn, independently: their sorted quantiles, mean and variance."""

    quantiles: Tensor
    mean: float
    variance: float

    @classmethod
    def of(cls, quantiles: Tensor) -> Distribution:
        values = quantiles.double().flatten()
        mean = float(values.mean())
        variance = float((values - mean).square().mean())
        return cls(values, mean, variance if variance > 1e-14 * mean**2 else 0.0)

    @classmethod
    @cache
    def normal(cls, mean: float, deviation: float) -> Distribution:
        grid = torch.special.ndtri(_levels())
        return cls(mean + deviation * grid / grid.square().mean().sqrt(), float(mean), float(deviation) ** 2)

    @classmethod
    def uniform(cls, low: float, high: float) -> Distribution:
        return cls(low + (high - low) * _levels(), (low + high) / 2, (high - low) ** 2 / 12)

    @classmethod
    @cache
    def truncated_normal(cls, mean: float, deviation: float, low: float, high: float) -> Distribution:
        bounds = torch.tensor([(low - mean) / deviation, (high - mean) / deviation], dtype=torch.float64)
        left, right = torch.special.ndtr(bounds)
        return cls.of(mean + deviation * torch.special.ndtri(left + (right - left) * _levels()))

    @classmethod
    def constant(cls, value: float) -> Distribution:
        return cls(torch.full((1,), float(value), dtype=torch.float64), float(value), 0.0)

    @classmethod
    def measured(cls, tensor: Tensor) -> Distribution:
        """From a real tensor: its exact mean and variance, quantiles from an even subsample."""
        values = tensor.detach().double().flatten()
        if values.numel() == 0:
            return cls.constant(0.0)
        step = max(1, values.numel() // QUANTILES)
        found = cls.of(values)
        return cls(values[::step].sort().values, found.mean, found.variance)

    @property
    def second_moment(self) -> float:
        return self.variance + self.mean**2

    def draw(self, shape: torch.Size | tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Independent entries, float64."""
        index = torch.randint(len(self.quantiles), tuple(shape), generator=generator)
        return self.quantiles[index]


def _levels() -> Tensor:
    return (torch.arange(QUANTILES, dtype=torch.float64) + 0.5) / QUANTILES


def distribution(parameter: Tensor) -> Distribution:
    """What the builder recorded for a parameter, or what a real tensor measures."""
    found = _recorded(parameter)
    if found is not None:
        return found
    if parameter.is_meta:
        return Distribution.constant(0.0)
    return Distribution.measured(parameter)


def _recorded(parameter: Tensor) -> Distribution | None:
    """What is known of a parameter; its first entries are measured only if nothing has overwritten them."""
    found = getattr(parameter, _ATTRIBUTE, None)
    if isinstance(found, Tensor):
        found = Distribution.measured(found)
        setattr(parameter, _ATTRIBUTE, found)
    return found


class _Recorder(TorchFunctionMode):
    """Follows in-place initialization of meta parameters on their shadows."""

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "empty" and kwargs.get("device") is None and _count(args) > LARGE:
            kwargs = kwargs | {"device": "meta"}
        if name in _MAKERS and _is_meta(kwargs.get("device")):
            kwargs = kwargs | {"device": "cpu"}  # numbers made on a parameter's device to be copied into it
        if name in _ALIKE and args[0].is_meta:
            kwargs = kwargs | {"device": "cpu"}
        if name == "to" and not args[0].is_meta and _is_meta(kwargs.get("device")):
            kwargs = kwargs | {"device": "cpu"}
        target = args[0] if args and isinstance(args[0], Tensor) else kwargs.get("tensor")
        if isinstance(target, Tensor) and name.endswith("_") and not name.startswith("__") and target.is_meta:
            _follow(func, name, target, args, kwargs)
            if name in _FILLS:  # nothing is left to do on meta
                return target
        result = _on_one_device(func, args, kwargs)
        operator = name.strip("_") if name.startswith("__") else name
        if operator in _ELEMENTWISE and isinstance(target, Tensor) and target.is_meta:
            _remember(func, target, args, kwargs, result)
        return result


def _remember(func: Callable, target: Tensor, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
    """What is known of a function of one parameter and numbers: `p / sqrt(layers)`, to be copied back into it."""
    found = _recorded(target)
    alone = not any(isinstance(item, Tensor) and item.dim() for item in (*args[1:], *kwargs.values()))
    if found is not None and alone and isinstance(result, Tensor) and result.shape == target.shape:
        setattr(result, _ATTRIBUTE, Distribution.of(func(found.quantiles.clone(), *args[1:], **kwargs)))


def _is_meta(device: Any) -> bool:
    return device is not None and torch.device(device).type == "meta"


def _on_one_device(func: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call a function; numbers that meet a meta parameter follow it there."""
    try:
        return func(*args, **kwargs)
    except RuntimeError:
        if not any(isinstance(item, Tensor) and item.is_meta for item in args):
            raise
        return func(*(item.to("meta") if isinstance(item, Tensor) else item for item in args), **kwargs)


def _count(args: tuple) -> int:
    sizes = args[0] if args and isinstance(args[0], (tuple, list, torch.Size)) else args
    return math.prod(size for size in sizes if isinstance(size, int))


def _follow(func: Callable, name: str, target: Tensor, args: tuple, kwargs: dict[str, Any]) -> None:
    root = target if target._base is None else target._base
    share = target.numel() / max(root.numel(), 1)
    before = None if name in _FILLS and share == 1.0 else _recorded(root)
    after = _initialized(func, name, before, args, kwargs)
    if after is None:
        return
    if share < 1.0 and before is not None:
        after = _mixture(before, after, share)
    setattr(root, _ATTRIBUTE, after)


def _initialized(
    func: Callable, name: str, before: Distribution | None, args: tuple, kwargs: dict[str, Any]
) -> Distribution | None:
    def given(position: int, key: str, default: float) -> float:
        value = kwargs.get(key, args[position] if len(args) > position else default)
        return float(value) if not isinstance(value, torch.Generator) else default

    if name == "normal_":
        return Distribution.normal(given(1, "mean", 0.0), given(2, "std", 1.0))
    if name == "uniform_":
        return Distribution.uniform(given(1, "from", kwargs.get("a", 0.0)), given(2, "to", kwargs.get("b", 1.0)))
    if name in ("kaiming_uniform_", "kaiming_normal_"):
        return _kaiming(name, *args, **kwargs)
    if name in ("zero_", "zeros_"):
        return Distribution.constant(0.0)
    if name == "ones_":
        return Distribution.constant(1.0)
    if name in ("fill_", "constant_"):
        return Distribution.constant(given(1, "val", kwargs.get("value", 0.0)))
    if name == "copy_":
        source = args[1] if len(args) > 1 else kwargs.get("src")
        if not isinstance(source, Tensor) or (source.is_meta and _recorded(source) is None):
            return None
        return distribution(source)
    if name == "requires_grad_" or before is None or any(isinstance(item, Tensor) for item in args[1:]):
        return None
    return Distribution.of(func(before.quantiles.clone(), *args[1:], **kwargs))


def _kaiming(
    name: str,
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: torch.Generator | None = None,
) -> Distribution:
    init: Any = nn.init
    deviation = init.calculate_gain(nonlinearity, a) / math.sqrt(init._calculate_correct_fan(tensor, mode))
    if name == "kaiming_normal_":
        return Distribution.normal(0.0, deviation)
    return Distribution.uniform(-math.sqrt(3) * deviation, math.sqrt(3) * deviation)


def _mixture(before: Distribution, after: Distribution, share: float) -> Distribution:
    """A part of the entries was initialized anew."""
    mean = (1 - share) * before.mean + share * after.mean
    second = (1 - share) * before.second_moment + share * after.second_moment
    return Distribution(before.quantiles, mean, max(second - mean**2, 0.0))


@contextmanager
def building() -> Iterator[None]:
    """Inside, modules are built without weights; see `distribution`."""
    with ExitStack() as stack:
        stack.enter_context(_replaced(nn.Module, "register_parameter", _register))
        stack.enter_context(_replaced(nn.Parameter, "__deepcopy__", _deepcopy))
        stack.enter_context(_replaced(nn.init, "_no_grad_trunc_normal_", _truncated))
        stack.enter_context(_replaced(nn.init, "orthogonal_", _orthogonal))
        hugging_face = sys.modules.get("transformers.initialization")
        if hugging_face is not None and hasattr(hugging_face, "TORCH_INIT_FUNCTIONS"):
            functions = hugging_face.TORCH_INIT_FUNCTIONS
            stack.callback(functions.update, dict(functions))
            functions["orthogonal_"] = nn.init.orthogonal_
        stack.enter_context(_Recorder())
        yield


@contextmanager
def _replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _register(original: Callable) -> Callable:
    def register_parameter(self: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        original(self, name, parameter)
        if parameter is None or parameter.is_meta or isinstance(parameter, nn.UninitializedParameter):
            return
        if parameter.requires_grad or parameter.numel() > LARGE:
            self._parameters[name] = _meta_parameter(parameter, parameter if parameter.numel() <= LARGE else None)

    return register_parameter


def _meta_parameter(parameter: Tensor, found: Distribution | Tensor | None) -> nn.Parameter:
    twin = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad)
    if found is not None:
        setattr(twin, _ATTRIBUTE, found)
    return twin


def _deepcopy(original: Callable) -> Callable:
    def deepcopy(self: nn.Parameter, memo: dict) -> nn.Parameter:
        twin = original(self, memo)
        if hasattr(self, _ATTRIBUTE):
            setattr(twin, _ATTRIBUTE, getattr(self, _ATTRIBUTE))
        return twin

    return deepcopy


def _truncated(original: Callable) -> Callable:
    def truncated_normal(tensor: Tensor, mean: float, std: float, a: float, b: float, generator=None) -> Tensor:
        if not tensor.is_meta:
            return original(tensor, mean, std, a, b, generator)
        shape = Distribution.truncated_normal(mean, std, a, b) if std > 0 else Distribution.constant(mean)
        setattr(tensor if tensor._base is None else tensor._base, _ATTRIBUTE, shape)
        return tensor

    return truncated_normal


def _orthogonal(original: Callable) -> Callable:
    def orthogonal(tensor: Tensor, gain: float = 1, generator=None) -> Tensor:
        if not tensor.is_meta:
            return original(tensor, gain, generator)
        larger = max(tensor.shape[0], tensor.numel() // tensor.shape[0])
        setattr(tensor, _ATTRIBUTE, Distribution.normal(0.0, gain / math.sqrt(larger)))
        return tensor

    return orthogonal


def build(factory: Callable[[], nn.Module]) -> nn.Module:
    """Call a function that makes a model, without allocating its weights."""
    with building():
        made = factory()
    for parameter in made.parameters() if isinstance(made, nn.Module) else ():
        _recorded(parameter)
    return made


def skeleton_of(model: nn.Module) -> nn.Module:
    """A copy of a model with its trainable parameters on meta; the model itself is not touched."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        if parameter.requires_grad or parameter.is_meta:
            found = getattr(parameter, _ATTRIBUTE, None)
            if found is None and not parameter.is_meta:
                found = Distribution.measured(parameter)
            memo[id(parameter)] = _meta_parameter(parameter, found)
    for _, hooks, key in observers(model):
        memo[id(hooks[key])] = hooks[key]  # not run on the copy, and perhaps not to be copied
    for module in model.modules():
        for tensor in vars(module).values():
            if isinstance(tensor, Tensor) and not tensor.is_leaf:
                memo[id(tensor)] = tensor.detach()  # computed from parameters, as by weight norm; computed again
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise UnsupportedError(
            f"{type(model).__name__} cannot be copied ({type(error).__name__}: {error}). "
            "Pass a function that builds it instead, or remove what cannot be copied."
        ) from error
