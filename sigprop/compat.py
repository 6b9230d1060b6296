"""All that is private of other libraries, in one place: what is taken, and what happens when it is gone.

Nothing here is imported before it is needed. A name of `PRIVATE` is imported from this module
(`from sigprop.compat import BatchNorm`); in a release that no longer has it, that says what is lost.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sigprop.errors import InputError, UnsupportedError

PRIVATE = {
    "AdaptiveAvgPoolNd": ("torch.nn.modules.pooling", "_AdaptiveAvgPoolNd", "token axes of pools are not known"),
    "AvgPoolNd": ("torch.nn.modules.pooling", "_AvgPoolNd", "token axes of pools are not known"),
    "BatchNorm": ("torch.nn.modules.batchnorm", "_BatchNorm", "norms over a batch are not recognized"),
    "ConvNd": ("torch.nn.modules.conv", "_ConvNd", "no random batch can be made for convolutions"),
    "ConvTransposeNd": ("torch.nn.modules.conv", "_ConvTransposeNd", "fans of transposed convolutions are not known"),
    "DisableTorchFunction": ("torch._C", "DisableTorchFunction", "the coordinate check cannot read its own tensors"),
    "InstanceNorm": ("torch.nn.modules.instancenorm", "_InstanceNorm", "token axes of norms are not known"),
    "MaxPoolNd": ("torch.nn.modules.pooling", "_MaxPoolNd", "token axes of pools are not known"),
    "TorchDispatchMode": ("torch.utils._python_dispatch", "TorchDispatchMode", "the cost of a pass cannot be counted"),
    "correct_fan": ("torch.nn.init", "_calculate_correct_fan", "kaiming's initializations cannot be read"),
    "current_function_mode": (
        "torch.overrides",
        "_get_current_function_mode",
        "a mode that was interrupted cannot be left safely",
    ),
    "fans": (
        "torch.nn.init",
        "_calculate_fan_in_and_fan_out",
        "reference networks cannot be initialized by fans",
    ),
    "flatten_dense_tensors": ("torch._utils", "_flatten_dense_tensors", "a model's values cannot be saved together"),
    "foreach_div_": ("torch", "_foreach_div_", "weights cannot be stepped in a scale of their own"),
    "foreach_mul": ("torch", "_foreach_mul", "weights cannot be stepped in a scale of their own"),
    "foreach_mul_": ("torch", "_foreach_mul_", "weights cannot be stepped in a scale of their own"),
    "foreach_norm": ("torch", "_foreach_norm", "norms cannot be taken together"),
    "foreach_zero_": ("torch", "_foreach_zero_", "gradients cannot be cleared together"),
    "function_modes": ("torch._C", "_len_torch_function_stack", "an interrupted capture leaves its mode behind"),
    "leave_function_mode": (
        "torch._C",
        "_pop_torch_function_stack",
        "an interrupted capture leaves its mode behind",
    ),
    "local_shape_and_offset": (
        "torch.distributed.tensor._utils",
        "compute_local_shape_and_global_offset",
        "a plan cannot fill sharded parameters",
    ),
    "standard_gamma": ("torch", "_standard_gamma", "fluctuations of finite width cannot be sampled"),
}

PLAIN_ATTENTION = (None, "eager", "sdpa")
AUTO_CLASSES = (
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForMaskedLM",
    "AutoModelForImageClassification",
    "AutoModel",
)


def __getattr__(name: str) -> Any:
    if name == "Figure":
        return _figure()
    if name not in PRIVATE:
        raise AttributeError(f"module 'sigprop.compat' has no attribute {name!r}")
    home, attribute, lost = PRIVATE[name]
    try:
        return getattr(importlib.import_module(home), attribute)
    except (ImportError, AttributeError) as error:
        version = importlib.import_module("torch").__version__
        raise ImportError(f"torch {version} has no {home}.{attribute}, so {lost}: use a release that has it") from error


def _figure() -> Any:
    try:
        return importlib.import_module("matplotlib.figure").Figure
    except ImportError as error:
        raise UnsupportedError("figures need matplotlib: pip install 'sigprop[plot]'") from error


# -- private attributes of modules and tensors

FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs")
"""Attributes of a module that hold its forward hooks and how they are called."""
LOADING_HOOKS = "_load_state_dict_pre_hooks"
"""Attribute of a module that holds what is called before values are loaded into it."""


def own_parameters(module: Any) -> dict[str, Any]:
    """A module's own table of parameters; None stands where there is none."""
    return module._parameters


def own_buffers(module: Any) -> dict[str, Any]:
    return module._buffers


def own_modules(module: Any) -> dict[str, Any]:
    return module._modules


def forward_hook_tables(module: Any) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """A module's hooks on its output and on its input, to be read and written."""
    return module._forward_hooks, module._forward_pre_hooks


def hooked_modules(model: Any) -> list[tuple[str, Any]]:
    """Modules with hooks on their output or input, by name."""
    named = model.named_modules()
    return [(name, module) for name, module in named if module._forward_hooks or module._forward_pre_hooks]


def forward_hooks(module: Any) -> list[Any]:
    return [hook for table in forward_hook_tables(module) for hook in table.values()]


def remove_forward_hooks(module: Any, kinds: type | tuple[type, ...]) -> bool:
    """Take off every forward hook of some classes; whether there was one."""
    found = [(table, key) for table in forward_hook_tables(module) for key, h in table.items() if isinstance(h, kinds)]
    for table, key in found:
        del table[key]
        module._forward_pre_hooks_with_kwargs.pop(key, None)
        module._forward_hooks_with_kwargs.pop(key, None)
    return bool(found)


def backward_hook_tables(model: Any) -> list[tuple[str, list[dict[int, Any]]]]:
    """Names of the modules with hooks on gradients, and the tables of these."""
    named = ((name, (module._backward_hooks, module._backward_pre_hooks)) for name, module in model.named_modules())
    return [(name, [table for table in tables if table]) for name, tables in named if any(tables)]


def gradient_hooks(tensor: Any) -> Any:
    """The table of hooks on a tensor's gradient; None where there never was one."""
    return tensor._backward_hooks


def forget_gradient_hooks(tensor: Any) -> None:
    """Let a tensor be as before the first hook, where none is left."""
    if not tensor._backward_hooks:
        tensor._backward_hooks = None


def accumulated_hooks(tensor: Any) -> Any:
    """The table of hooks that see an accumulated gradient; None before the first."""
    return tensor._post_accumulate_grad_hooks


def set_accumulated_hooks(tensor: Any, hooks: Any) -> None:
    tensor._post_accumulate_grad_hooks = hooks


def uncompiled(model: Any) -> Any:
    """The module behind `torch.compile(module)`; anything else as it is."""
    return getattr(model, "_orig_mod", model)


def any_compiled(modules: Iterable[Any]) -> bool:
    """Whether one of the modules is."""
    return any(map(is_compiled, modules))


def is_compiled(module: Any) -> bool:
    """Whether a module is one that `torch.compile` made, or was compiled in place."""
    return "_orig_mod" in module._modules or module._compiled_call_impl is not None


def version_of(tensor: Any) -> int:
    """A number that grows with every write into a tensor."""
    return tensor._version


def viewed_tensor(view: Any) -> Any:
    """The tensor that a view was taken of; None for a tensor of its own."""
    return view._base


def without_overload(function: Any) -> Any:
    """The operator of which a function of a dispatch mode is one overload."""
    return function._overloadpacket


# -- transformers


def use_plain_settings(model: Any) -> None:
    """Let Hugging Face modules run their experts one by one, keep no cache and attend with torch alone, whatever kernel
    a config names; the numbers are the same. Where a private setting is gone the module runs as it is."""
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        for name, value in (("_experts_implementation", "eager"), ("use_cache", False)):
            if hasattr(config, name):
                setattr(config, name, value)
        if getattr(config, "_attn_implementation", None) not in PLAIN_ATTENTION:
            config._attn_implementation = "sdpa" if getattr(module, "_supports_sdpa", True) else "eager"


def without_foreign_attention(config: Any) -> None:
    """Let a config name no kernel from elsewhere; torch's own gives the same numbers."""
    if getattr(config, "_attn_implementation", None) not in PLAIN_ATTENTION:
        config._attn_implementation = None


def transformers_library() -> Any:
    """The transformers package, or the words that say how to get it."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise UnsupportedError("a Hugging Face model needs transformers: pip install 'sigprop[hf]'") from error


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No bars and no tables of transformers on stderr: what they say is told by sigprop."""
    logging = transformers_library().utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


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


def return_free_memory() -> None:
    """Give the system what is free, also between blocks in use, where the C library can do that (glibc)."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def shared_clone(tensor: Any) -> Any | None:
    """A clone of a tensor that shares its memory until one of the two is written to.

    None where torch cannot do that: memory of NumPy, of a file or of other processes, or a release without it.
    """
    import torch

    try:
        return torch._lazy_clone(tensor.detach())  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):
        return None


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
