"""All that is private of other libraries, in one place: what is taken, and what happens when it is gone.

Nothing here is imported before it is needed. A name of `PRIVATE` is imported from this module
(`from sigprop.compat import BatchNorm`); in a release that no longer has it, that says what is lost.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sigprop.errors import InputError, UnsupportedError

PRIVATE = {
    "BatchNorm": ("torch.nn.modules.batchnorm", "_BatchNorm", "norms over a batch are not recognized"),
    "ConvNd": ("torch.nn.modules.conv", "_ConvNd", "no batch can be made up for convolutions"),
    "DisableTorchFunction": ("torch._C", "DisableTorchFunction", "the coordinate check cannot read its own tensors"),
    "TorchDispatchMode": ("torch.utils._python_dispatch", "TorchDispatchMode", "the cost of a pass cannot be counted"),
    "add_batch_dim": ("torch._C._functorch", "_add_batch_dim", "seeds are trained one by one"),
    "get_unwrapped": ("torch._C._functorch", "get_unwrapped", "seeds are trained one by one"),
    "maybe_get_bdim": ("torch._C._functorch", "maybe_get_bdim", "seeds are trained one by one"),
    "maybe_get_level": ("torch._C._functorch", "maybe_get_level", "seeds are trained one by one"),
    "current_function_mode": (
        "torch.overrides",
        "_get_current_function_mode",
        "a mode that was interrupted cannot be left safely",
    ),
    "flatten_dense_tensors": ("torch._utils", "_flatten_dense_tensors", "a model's values cannot be saved together"),
    "foreach_div_": ("torch", "_foreach_div_", "weights cannot be stepped in a scale of their own"),
    "foreach_mul": ("torch", "_foreach_mul", "weights cannot be stepped in a scale of their own"),
    "foreach_mul_": ("torch", "_foreach_mul_", "weights cannot be stepped in a scale of their own"),
    "foreach_norm": ("torch", "_foreach_norm", "norms cannot be taken together"),
    "foreach_sub": ("torch", "_foreach_sub", "differences cannot be taken together"),
    "foreach_zero_": ("torch", "_foreach_zero_", "gradients cannot be cleared together"),
    "fused_adamw_": ("torch", "_fused_adamw_", "stacked networks cannot be trained with AdamW"),
    "function_modes": ("torch._C", "_len_torch_function_stack", "an interrupted capture leaves its mode behind"),
    "leave_function_mode": (
        "torch._C",
        "_pop_torch_function_stack",
        "an interrupted capture leaves its mode behind",
    ),
    "standard_gamma": ("torch", "_standard_gamma", "fluctuations of finite width cannot be drawn"),
}

AUTO_CLASSES = (
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForMaskedLM",
    "AutoModelForImageClassification",
    "AutoModel",
)


def __getattr__(name: str) -> Any:
    if name not in PRIVATE:
        raise AttributeError(f"module 'sigprop.compat' has no attribute {name!r}")
    home, attribute, lost = PRIVATE[name]
    try:
        return getattr(importlib.import_module(home), attribute)
    except (ImportError, AttributeError) as error:
        version = importlib.import_module("torch").__version__
        raise ImportError(f"torch {version} has no {home}.{attribute}, so {lost}: use a release that has it") from error


def transformers_library() -> Any:
    """The transformers package, or the words that say how to get it."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise UnsupportedError("a Hugging Face model needs transformers: pip install 'sigprop[hf]'") from error


def model_class(config: Any) -> Any:
    """The class that a config names, else the first auto class that takes it.

    `_model_mapping` of the auto classes is private. Without it only configs that name their architecture are read.
    """
    transformers = transformers_library()
    for name in getattr(config, "architectures", None) or []:
        kind = getattr(transformers, name, None)
        if kind is not None:
            return kind
    for name in AUTO_CLASSES:
        mapping = getattr(getattr(transformers, name, None), "_model_mapping", {})
        if type(config) in mapping:
            found = mapping[type(config)]
            return found[0] if isinstance(found, (tuple, list)) else found
    raise InputError(f"no model class of transformers takes a {type(config).__name__}")


def cached_folder(name: str) -> Path:
    """The folder of a hub model that this machine has; nothing is downloaded."""
    transformers_library()
    hub = importlib.import_module("huggingface_hub")
    try:
        return Path(hub.snapshot_download(name, local_files_only=True))
    except Exception as error:
        raise InputError(
            f"{name} is neither a folder here nor in the cache: `hf download {name}` fetches it"
        ) from error


def shared_clone(tensor: Any) -> Any | None:
    """A clone of a tensor that shares its memory until one of the two is written to.

    None where torch cannot do that: memory of NumPy, of a file or of other processes, or a release without it.
    """
    import torch

    try:
        return torch._lazy_clone(tensor.detach())  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):
        return None


def read_only_array(tensor: Any) -> Any:
    """A strided CPU tensor's memory for NumPy. `Tensor.numpy` may be written to, so that it ends a shared clone."""
    import numpy
    import torch

    address = getattr(torch._C, "_data_address", None)
    if address is None:
        return tensor.detach().numpy()
    size, kind = tensor.element_size(), "f" if tensor.is_floating_point() else "i"
    begin = address(tensor) + size * tensor.storage_offset()
    return numpy.asarray(_Memory(tensor, begin, f"{kind}{size}", [size * step for step in tensor.stride()]))


class _Memory:
    """What NumPy reads; it keeps the tensor as long as the array lives."""

    def __init__(self, tensor: Any, address: int, kind: str, strides: list[int]):
        self.tensor = tensor
        self.__array_interface__ = {
            "data": (address, True),
            "shape": tuple(tensor.shape),
            "strides": tuple(strides),
            "typestr": f"{'<' if sys.byteorder == 'little' else '>'}{kind}",
            "version": 3,
        }


def is_sole_holder(tensor: Any) -> bool:
    """Whether no other tensor, no array of NumPy and no storage that is kept somewhere holds a tensor's memory."""
    import torch

    try:
        return _holders(tensor) == _holders(torch.empty(1))
    except AttributeError:
        return False


def _holders(tensor: Any) -> tuple[int, int]:
    import torch

    storage = tensor.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage)  # type: ignore[attr-defined]


_WATCHED = threading.local()
_WATCHERS = threading.Lock()
_WATCHING = 0
_APPLY: Any = None


@contextmanager
def custom_functions(handler: Callable[[Any, tuple, dict[str, Any]], Any]) -> Iterator[None]:
    """Hand `autograd.Function.apply` of this thread to a handler; it returns `NotImplemented` for what is not its own.

    Modes do not see it. It is replaced for as long as anyone watches; other threads go on as before.
    """
    import torch

    global _WATCHING, _APPLY
    before = getattr(_WATCHED, "handler", None)
    with _WATCHERS:
        _WATCHING += 1
        if _WATCHING == 1:
            _APPLY = torch.autograd.Function.__dict__["apply"]
            torch.autograd.Function.apply = classmethod(_handled)  # type: ignore[method-assign]
    _WATCHED.handler = handler
    try:
        yield
    finally:
        _WATCHED.handler = before
        with _WATCHERS:
            _WATCHING -= 1
            if _WATCHING == 0:
                torch.autograd.Function.apply = _APPLY  # type: ignore[method-assign]


def _handled(cls: Any, *args: Any, **kwargs: Any) -> Any:
    handler = getattr(_WATCHED, "handler", None)
    found = NotImplemented if handler is None else handler(cls, args, kwargs)
    return _APPLY.__get__(None, cls)(*args, **kwargs) if found is NotImplemented else found
