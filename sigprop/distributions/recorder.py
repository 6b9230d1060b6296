"""Building a model without its weights, while what its constructor does to them is written down.

Inside `building` every parameter moves to the meta device as soon as it is registered, and whatever is done to it acts
on what is known of its entries: the quantiles of their distribution, or the numbers that were copied into it. That
belongs to a storage, so that it is found through views, `.data`, `detach` and copies. Nothing outside this thread is
touched.
Buffers stay real.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from sigprop.compat import correct_fan, viewed_tensor
from sigprop.distributions.distribution import LARGE, ORTHOGONAL, STRUCTURED, UNKNOWN, Distribution
from sigprop.distributions.independence import Known, measured_distribution
from sigprop.errors import UnsupportedError
from sigprop.isolation import Mode

_MAKERS = frozenset(
    ("arange", "linspace", "logspace", "rand", "randn", "randint", "full", "ones", "zeros", "tensor", "eye")
)
_ELEMENTWISE = frozenset(("mul", "rmul", "div", "truediv", "add", "radd", "sub", "rsub", "neg", "exp", "log", "clamp"))
_SMOOTH = _ELEMENTWISE | {"erfinv", "abs", "sqrt", "square", "pow", "log1p", "expm1", "tanh", "sigmoid"}
_ALIKE = frozenset(("ones_like", "zeros_like", "full_like"))
_NEW = frozenset(("new_empty", "new_zeros", "new_ones"))
_COPIES = frozenset(("clone", "contiguous", "to", "float", "reshape", "flatten", "pad"))
_FILLS = frozenset(
    ("normal_", "uniform_", "kaiming_uniform_", "kaiming_normal_", "zero_", "zeros_", "ones_", "fill_", "constant_")
)
_RANDOM = {"randn": Distribution.normal, "rand": Distribution.uniform}
"""Makers of numbers whose distribution is known: few of them would say little of it."""
_NOT_WRITING = frozenset(("requires_grad_", "retain_grad_", "share_memory_", "t_", "squeeze_", "unsqueeze_", "detach_"))


@dataclass(frozen=True)
class Held:
    """What is known of a storage: its entries (their distribution, or the numbers), the number of the draw that it
    holds (copies have one number), and the rows that were set to zero after it. Held, so that its key stays its own."""

    storage: Any = None
    entries: Known | None = None
    draw: int = 0
    zero_rows: tuple[int, ...] = ()

    @property
    def distribution(self) -> Distribution | None:
        """Numbers are measured."""
        return measured_distribution(self.entries) if isinstance(self.entries, Tensor) else self.entries


NOTHING = Held()


def _key(tensor: Tensor) -> int:
    """A number that tensors on one storage have in common: the object of a storage is one as long as it is held."""
    return id(tensor.untyped_storage())


class DrawRecorder(Mode):
    """Follows what is done to meta tensors, by their storages."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, Held] = {}
        self._count = 0

    def known(self, tensor: Tensor) -> Held:
        return self._known.get(_key(tensor), NOTHING)

    def known_of(self, tensors: dict[str, Tensor]) -> dict[str, Held]:
        return {name: self.known(tensor) for name, tensor in tensors.items()}

    def keep(
        self, tensor: Tensor, entries: Known, copied: Tensor | None = None, zero_rows: tuple[int, ...] = ()
    ) -> None:
        """A distribution, of a draw of its own or of one that was copied."""
        self._count += 1
        draw = self._count if copied is None else self.known(copied).draw
        self._known[_key(tensor)] = Held(tensor.untyped_storage(), entries, draw, zero_rows)

    def registered(self, parameter: nn.Parameter) -> nn.Parameter | None:
        """The twin on meta of a parameter that a module registers; small frozen ones stay real."""
        if parameter.is_meta or isinstance(parameter, nn.UninitializedParameter):
            return None
        if not (parameter.requires_grad or parameter.numel() > LARGE):
            return None
        twin = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad)
        for key, value in vars(parameter).items():
            setattr(twin, key, value)
        if parameter.numel() <= LARGE:
            self.keep_numbers(twin, parameter)
        return twin

    def keep_numbers(self, tensor: Tensor, numbers: Tensor) -> None:
        """Those that it takes, or their distribution where that is known."""
        entries = self.known(numbers).entries
        self.keep(tensor, numbers.detach() if entries is None else entries, None if entries is None else numbers)

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        if torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage] torch would crash
            raise UnsupportedError("a constructor that calls torch.jit.trace cannot be built without weights")
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__"):
            return self._attribute(func, name, args)
        kwargs = _on_cpu(name, args, kwargs)
        target = args[0] if args and isinstance(args[0], Tensor) else kwargs.get("tensor")
        if isinstance(kwargs.get("out"), Tensor) and kwargs["out"].is_meta:
            return self._written_out(func, args, kwargs)
        writes = name.endswith("_") and not name.startswith("__") and name not in _NOT_WRITING
        if not isinstance(target, Tensor) or not target.is_meta:
            result = _on_one_device(func, args, kwargs)
            self._of_numbers(func, name, target, args, kwargs, result, writes)
            return result
        if (writes or name == "__setitem__") and self._initializer(sys._getframe(1), target):
            return target
        if name == "__setitem__":
            return self._item_written(target, *args[1:])
        if writes:
            self._follow(func, name, target, args, kwargs)
            if name in _FILLS:  # nothing is left to do on meta
                return target
        spread = self._spread(name, target, args, kwargs)
        if spread is not None:
            return spread
        result = _on_one_device(func, args, kwargs)
        if not writes:
            self._remember(func, name, target, args, kwargs, result)
        return result

    def _spread(self, name: str, target: Tensor, args: tuple, kwargs: dict[str, Any]) -> Tensor | None:
        """The std or variance of all entries, by which a constructor divides: that of their distribution."""
        found = self.known(target).distribution if name in ("std", "var") and len(args) == 1 and not kwargs else None
        if found is None or found.kind == UNKNOWN:
            return None
        return torch.tensor(found.variance ** (0.5 if name == "std" else 1.0), dtype=target.dtype)

    def _of_numbers(
        self, func: Callable, name: str, target: Any, args: tuple, kwargs: dict[str, Any], result: Any, writes: bool
    ) -> None:
        """Random numbers that a parameter may be made of: their distribution, until something else is done to them."""
        if isinstance(target, Tensor) and (writes or name == "__setitem__"):
            known, whole = (
                self._known.pop(_key(target), NOTHING),
                viewed_tensor(target) is None and target.numel() <= LARGE,
            )
            entries = _filled(name, args, kwargs) if whole else None
            if entries is None and whole and known.distribution is not None and name.strip("_") in _SMOOTH:
                entries = _with_numbers(known.distribution, func, args, kwargs)
            if entries is not None:
                self.keep(target, entries)
        elif isinstance(result, Tensor) and result.is_floating_point() and 0 < result.numel() <= LARGE:
            if name in _RANDOM:
                self.keep(result, _RANDOM[name](0.0, 1.0))
            elif isinstance(target, Tensor):
                self._remember(func, name, target, args, kwargs, result)

    def _attribute(self, func: Any, name: str, args: tuple) -> Any:
        attribute, target = getattr(func.__self__, "__name__", ""), args[0]
        if name == "__get__" and attribute == "is_meta" and func(*args):
            self._initializer(sys._getframe(2), target)
        if name == "__set__" and attribute == "data" and target.is_meta and not args[1].is_meta:
            twin = torch.empty_like(args[1], device="meta")
            self.keep_numbers(twin, args[1])
            return func(target, twin)
        return func(*args)

    def _initializer(self, frame: Any, tensor: Tensor) -> bool:
        """What initializers of torch do is read off their arguments; on meta they leave early, or go through it all."""
        given, name = frame.f_locals, frame.f_code.co_name
        if frame.f_globals.get("__name__") != nn.init.__name__ or not isinstance(given.get("tensor"), Tensor):
            return False
        if given["tensor"] is not tensor and _key(given["tensor"]) != _key(tensor):
            return False
        if name == "_no_grad_trunc_normal_" and given["std"] > 0:
            entries = Distribution.truncated_normal(given["mean"], given["std"], given["a"], given["b"])
        elif name == "_no_grad_trunc_normal_":
            entries = Distribution.constant(given["mean"])
        elif name == "orthogonal_":
            larger = max(tensor.shape[0], tensor.numel() // tensor.shape[0])
            entries = Distribution.normal(0.0, given["gain"] / math.sqrt(larger), ORTHOGONAL)
        elif name == "sparse_":
            zeros = math.ceil(given["sparsity"] * tensor.shape[0]) / tensor.shape[0]
            entries = _mixture(Distribution.normal(0.0, given["std"]), Distribution.constant(0.0), zeros)
        elif name == "dirac_":
            ones = given["groups"] * min(tensor.shape[0] // given["groups"], tensor.shape[1]) / tensor.numel()
            entries = _mixture(Distribution.constant(0.0), Distribution.constant(1.0), ones, STRUCTURED)
        else:
            return False
        self._write(given["tensor"], entries)
        return True

    def _written_out(self, func: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """`torch.eye(..., out=parameter)`: numbers made for a parameter, or something that cannot be tracked."""
        target = kwargs["out"]
        rest = {key: value for key, value in kwargs.items() if key not in ("out", "requires_grad")}
        inputs = [item for item in (*args, *rest.values()) if isinstance(item, Tensor)]
        if any(item.is_meta for item in inputs):
            self._write(target, None)
            return func(*args, **kwargs)
        self._write(target, func(*args, **rest))
        return target

    def _item_written(self, target: Tensor, index: Any, value: Any) -> None:
        try:
            part = target[index]
        except (RuntimeError, IndexError):
            return self._write(target, None)
        entries = self.known(value).distribution if isinstance(value, Tensor) and value.is_meta else None
        if isinstance(value, Tensor) and not value.is_meta:
            entries = measured_distribution(value)
        elif not isinstance(value, Tensor):
            entries = Distribution.constant(float(value))
        is_view = _key(part) == _key(target)
        return self._write(part, entries) if is_view else self._write(target, entries, part.numel())

    def _write(self, target: Tensor, entries: Known | None, count: int | None = None) -> None:
        """`count` entries of the target's storage take a distribution; None: what was written is not known."""
        storage = target.untyped_storage().nbytes() // target.element_size()
        share = (target.numel() if count is None else count) / max(storage, 1)
        if entries is not None and share >= 1.0:
            self.keep(target, entries)
            return
        known = self.known(target)
        before, zeros = known.distribution, ()
        if entries is None:
            before = before if before is not None else Distribution.constant(0.0)
            self.keep(target, replace(before, kind=UNKNOWN))
        elif before is None:
            self.keep(target, entries)
        else:
            after = entries if isinstance(entries, Distribution) else measured_distribution(entries)
            if count is None and target.dim() == 1 and after.second_moment == 0.0:
                zeros = (*known.zero_rows, target.storage_offset() // target.numel())
            self.keep(target, _mixture(before, after, share), zero_rows=zeros)

    def _follow(self, func: Callable, name: str, target: Tensor, args: tuple, kwargs: dict[str, Any]) -> None:
        if name == "copy_":
            source = args[1] if len(args) > 1 else kwargs.get("src")
            if isinstance(source, Tensor) and not source.is_meta:
                entries = self.known(source).entries if source.shape == target.shape else None
                return self._write(target, source.detach().expand(target.shape).clone() if entries is None else entries)
            if isinstance(source, Tensor) and viewed_tensor(target) is None and source.shape == target.shape:
                entries = self.known(source).entries
                if entries is not None:
                    return self.keep(target, entries, copied=source)
            return self._write(target, self.known(source).distribution if isinstance(source, Tensor) else None)
        after = _filled(name, args, kwargs)
        if after is None:
            before = self.known(target).distribution
            if before is None or any(isinstance(item, Tensor) and item.dim() for item in args[1:]):
                return self._write(target, None)
            after = _function_of(before, func, args, kwargs)
        return self._write(target, after)

    def _remember(
        self, func: Callable, name: str, target: Tensor, args: tuple, kwargs: dict[str, Any], result: Any
    ) -> None:
        """What is known of a function of one parameter and numbers: `p / sqrt(layers)`, to be copied back into it."""
        if not isinstance(result, Tensor) or self.known(result).entries is not None:
            return
        operator = name.strip("_") if name.startswith("__") else name
        found = self.known(target).entries
        if found is None or result.numel() != target.numel():
            return
        alone = not any(isinstance(item, Tensor) and item.dim() for item in (*args[1:], *kwargs.values()))
        if operator in _COPIES:
            self.keep(result, found, copied=target)
        elif operator in _ELEMENTWISE and alone:
            entries = found if isinstance(found, Distribution) else measured_distribution(found)
            self.keep(result, _function_of(entries, func, args, kwargs))


def _with_numbers(entries: Distribution, func: Callable, args: tuple, kwargs: dict[str, Any]) -> Distribution | None:
    """After a function of each entry and of numbers; None where other tensors take part."""
    others = any(isinstance(item, Tensor) and item.dim() for item in (*args[1:], *kwargs.values()))
    return None if others else _function_of(entries, func, args, kwargs)


def _function_of(entries: Distribution, func: Callable, args: tuple, kwargs: dict[str, Any]) -> Distribution:
    return Distribution.of(func(entries.quantiles.clone(), *args[1:], **kwargs), entries.kind)


def _filled(name: str, args: tuple, kwargs: dict[str, Any]) -> Distribution | None:
    """The distribution after a function that overwrites whatever was there."""

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
    return None


def _kaiming(
    name: str,
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: torch.Generator | None = None,
) -> Distribution:
    deviation = nn.init.calculate_gain(nonlinearity, a) / math.sqrt(correct_fan(tensor, mode))  # type: ignore[arg-type]
    if name == "kaiming_normal_":
        return Distribution.normal(0.0, deviation)
    return Distribution.uniform(-math.sqrt(3) * deviation, math.sqrt(3) * deviation)


def _mixture(before: Distribution, after: Distribution, share: float, kind: str | None = None) -> Distribution:
    """A part of the entries was initialized anew."""
    mean = (1 - share) * before.mean + share * after.mean
    second = (1 - share) * before.second_moment + share * after.second_moment
    kept, new = before.quantiles, after.quantiles
    total = max(len(kept), len(new), 64)
    values = torch.cat((_stretched(kept, round(total * (1 - share))), _stretched(new, round(total * share))))
    worst = kind or next((entries.kind for entries in (before, after) if entries.kind != "independent"), "independent")
    return Distribution(values.sort().values, mean, max(second - mean**2, 0.0), worst)


def _stretched(quantiles: Tensor, count: int) -> Tensor:
    """As many quantiles of the same distribution."""
    place = (torch.arange(count, dtype=torch.float64) + 0.5) / max(count, 1) * len(quantiles)
    return quantiles[place.long().clamp(max=len(quantiles) - 1)]


def _on_cpu(name: str, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Large empty tensors go to meta; numbers made on a parameter's device to be copied into it stay real."""
    device = kwargs.get("device")
    if name == "empty" and device is None and "out" not in kwargs and _count(args) > LARGE:
        return kwargs | {"device": "meta"}
    meta = device is not None and torch.device(device).type == "meta"
    if name in _NEW and args[0].is_meta and device is None and _count(args[1:]) <= LARGE:
        return kwargs | {"device": "cpu"}
    if (name in _MAKERS and meta) or (name in _ALIKE and args[0].is_meta):
        return kwargs | {"device": "cpu"}
    if name == "to" and not args[0].is_meta and meta:
        return kwargs | {"device": "cpu"}
    return kwargs


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


@contextmanager
def building() -> Iterator[DrawRecorder]:
    """Inside, modules that this thread builds have no weights, and the recorder knows their distributions."""
    recorder, thread = DrawRecorder(), threading.get_ident()

    def register(module: nn.Module, name: str, parameter: nn.Parameter) -> Any:
        return recorder.registered(parameter) if threading.get_ident() == thread else None

    handle = register_module_parameter_registration_hook(register)
    try:
        with recorder:
            yield recorder
    finally:
        handle.remove()
