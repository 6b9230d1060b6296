"""Names of the torch functions that the capture treats apart."""

from __future__ import annotations

import torch

GETTERS = {"device": torch.device("cpu"), "is_meta": False, "is_cuda": False, "is_cpu": True}
"""What a traced tensor says of where it is."""
QUERIES = frozenset(
    (
        "size",
        "dim",
        "stride",
        "numel",
        "nelement",
        "is_floating_point",
        "is_contiguous",
        "len",
        "is_complex",
        "element_size",
        "ndimension",
        "storage_offset",
        "requires_grad_",
        "retain_grad",
        "register_hook",
        "hash",
        "get_device",
        "is_same_size",
        "is_tensor",
        "is_inference",
        "is_signed",
        "untyped_storage",
        "data_ptr",
        "format",
        "has_names",
        "is_storage",
    )
)
"""Questions that a tensor on meta answers by itself."""
VIEWS = frozenset(
    ("getitem", "narrow", "select", "view", "reshape", "transpose", "permute", "unsqueeze", "squeeze", "flatten")
).union(("unflatten", "split", "chunk", "unbind"))
"""Calls that give entries of their first argument, in another shape."""
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
SAME = frozenset(
    ("identity", "contiguous", "clone", "to", "float", "double", "half", "bfloat16", "type", "type_as", "alias", "cpu")
).union(("cuda", "requires_grad"))
"""Functions that keep every entry as it is."""
MOVES = VIEWS.union(SAME).union(
    ("swapaxes", "t", "movedim", "detach", "expand", "expand_as", "broadcast_to", "repeat", "tile", "split_with_sizes"),
    ("iter", "index_select", "roll", "flip", "view_as", "reshape_as", "repeat_interleave"),
)
"""Functions that only move entries, or keep them as they are."""
UNARY = frozenset(
    (
        "relu",
        "relu6",
        "gelu",
        "silu",
        "tanh",
        "sigmoid",
        "erf",
        "exp",
        "exp2",
        "log",
        "log1p",
        "log2",
        "sqrt",
        "rsqrt",
        "square",
        "reciprocal",
        "neg",
        "abs",
        "sin",
        "cos",
        "softplus",
        "leaky_relu",
        "elu",
        "selu",
        "celu",
        "mish",
        "hardtanh",
        "hardswish",
        "hardsigmoid",
        "softsign",
        "logsigmoid",
        "clamp",
        "clamp_min",
        "clamp_max",
        "pow",
        "tan",
        "atan",
        "sinh",
        "cosh",
        "expm1",
        "threshold",
        "hardshrink",
        "softshrink",
        "tanhshrink",
        "sign",
        "round",
        "floor",
        "ceil",
        "rpow",
        "sgn",
        "log_sigmoid",
        "rrelu",
        "prelu_constant",
        "quick_gelu",
        "logit",
        "asinh",
        "trunc",
    )
)
"""Functions of one tensor, entry by entry."""
CHECKED = frozenset(
    ("linear", "bilinear", "matmul", "mm", "bmm", "mv", "dot", "addmm", "baddbmm", "einsum", "embedding", "where")
).union(
    ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "add", "radd", "sub"),
    ("rsub", "mul", "rmul", "div", "truediv", "cat", "concat", "stack", "layer_norm", "rms_norm", "group_norm"),
    ("batch_norm", "scaled_dot_product_attention", "maximum", "minimum", "cross_entropy", "mse_loss"),
)
"""Functions whose shapes torch checks before their rule is asked."""
