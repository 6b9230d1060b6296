"""Torch functions as the capture sees them: one name for every spelling, and which are treated apart."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from sigprop.capture.record import Call, Record, leaves

GETTERS = {"device": torch.device("cpu"), "is_meta": False, "is_cuda": False, "is_cpu": True}
"""What a traced tensor says of where it is."""
QUERIES = frozenset((
    "size", "dim", "stride", "numel", "nelement", "is_floating_point", "is_contiguous", "len", "is_complex",
    "element_size", "ndimension", "storage_offset", "requires_grad_", "retain_grad", "register_hook", "hash",
    "get_device", "is_same_size", "is_tensor", "is_inference", "is_signed", "untyped_storage", "data_ptr",
    "format", "has_names", "is_storage",
))  # fmt: skip
"""Questions that a tensor on meta answers by itself."""
VALUES = frozenset(
    ("item", "tolist", "bool", "int", "float_value", "nonzero", "numpy", "unique", "unique_consecutive", "equal")
).union(
    ("allclose", "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "new_zeros"),
    ("new_ones", "new_full", "new_empty", "new_tensor"),
)
"""Functions whose result is real numbers, drawn once, even where everything else is only recorded."""
KEPT = frozenset(
    "view reshape flatten unflatten getitem transpose permute squeeze unsqueeze movedim t to float double".split()  # noqa: SIM905
)
"""Views: in a loss too they keep the roles of dimensions, by which closed forms are known."""
MOVES = frozenset((
    "view", "reshape", "flatten", "unflatten", "transpose", "swapaxes", "t", "permute", "movedim", "contiguous",
    "clone", "to", "float", "double", "half", "bfloat16", "type", "type_as", "detach", "squeeze", "unsqueeze",
    "expand", "expand_as", "broadcast_to", "repeat", "tile", "getitem", "narrow", "select", "split",
    "split_with_sizes", "chunk", "unbind", "iter", "index_select", "roll", "flip", "view_as", "reshape_as",
    "repeat_interleave", "alias", "requires_grad", "cpu", "cuda", "identity",
))  # fmt: skip
"""Functions that only move entries, or keep them as they are."""
UNARY = frozenset((
    "relu", "relu6", "gelu", "silu", "tanh", "sigmoid", "erf", "exp", "exp2", "log", "log1p", "log2", "sqrt",
    "rsqrt", "square", "reciprocal", "neg", "abs", "sin", "cos", "softplus", "leaky_relu", "elu", "selu", "celu",
    "mish", "hardtanh", "hardswish", "hardsigmoid", "softsign", "logsigmoid", "clamp", "clamp_min", "clamp_max",
    "pow", "tan", "atan", "sinh", "cosh", "expm1", "threshold", "hardshrink", "softshrink", "tanhshrink", "sign",
    "round", "floor", "ceil", "rpow", "sgn", "log_sigmoid", "rrelu", "prelu_constant", "quick_gelu", "logit",
    "asinh", "trunc",
))  # fmt: skip
"""Functions of one tensor, entry by entry."""
CHECKED = frozenset(
    ("linear", "bilinear", "matmul", "mm", "bmm", "mv", "dot", "addmm", "baddbmm", "einsum", "embedding", "where")
).union(
    ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "add", "radd", "sub"),
    ("rsub", "mul", "rmul", "div", "truediv", "cat", "concat", "stack", "layer_norm", "rms_norm", "group_norm"),
    ("batch_norm", "scaled_dot_product_attention", "maximum", "minimum", "cross_entropy", "mse_loss"),
)
"""Functions whose shapes torch checks before their rule is asked."""


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
    return (call.function, *map(_kind_of, leaves((call.args, call.kwargs))))


def _kind_of(item: Any) -> Any:
    """Nothing is like a tensor of whole numbers but itself."""
    if not isinstance(item, (Record, Tensor)):
        return repr(item)
    return (tuple(item.shape), item.dtype) if item.dtype.is_floating_point else object()
