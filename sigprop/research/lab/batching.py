"""Rules under `vmap` for the operations that torch batches badly.

A linear layer whose weight is batched copies the weight for every sequence, fused attention has no rule that goes both
ways, and a layer norm with a batched gain goes through more copies than it needs. Here each runs once on the tensors of
all seeds, which autograd sees as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from sigprop.compat import add_batch_dim, get_unwrapped, maybe_get_bdim, maybe_get_level


def lead(values: Tensor) -> Tensor:
    """The tensor of all seeds, seeds first."""
    return get_unwrapped(values).movedim(maybe_get_bdim(values), 0)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x W^T + b` of all seeds as one batched product."""
    given = (x, weight) if bias is None else (x, weight, bias)
    if any(maybe_get_bdim(each) < 0 for each in given):
        return F.linear(x, weight, bias)
    inputs, level = lead(x), maybe_get_level(x)
    rows, weights = inputs.reshape(len(inputs), -1, inputs.shape[-1]), lead(weight).mT
    out = torch.bmm(rows, weights)
    out = out if bias is None else out.add_(lead(bias).unsqueeze(1))
    return add_batch_dim(out.reshape(*inputs.shape[:-1], out.shape[-1]), 0, level)


def attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Fused attention with the seeds as part of the batch; plain attention with a mask or with dropout."""
    options = dict(zip(("attn_mask", "dropout_p"), args, strict=False)) | kwargs
    tensors = (query, key, value)
    plain = options.get("attn_mask") is not None or options.get("dropout_p") or query.dim() != 4
    if plain or any(maybe_get_bdim(each) < 0 for each in tensors):
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(query, key, value, *args, **kwargs)
    queries, keys, values = (lead(each).flatten(0, 1) for each in tensors)
    out = F.scaled_dot_product_attention(queries, keys, values, *args, **kwargs)
    return add_batch_dim(out.unflatten(0, (-1, query.shape[0])), 0, maybe_get_level(query))


def layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """The norm of all seeds, then gain and bias."""
    if weight is None or bias is None or any(maybe_get_bdim(each) < 0 for each in (x, weight, bias)):
        return F.layer_norm(x, shape, weight, bias, eps)
    inputs = lead(x)
    between = (len(inputs), *[1] * (inputs.dim() - 1 - len(shape)), *shape)
    gain, shift = (lead(each).reshape(between) for each in (weight, bias))
    out = (F.layer_norm(inputs, shape, None, None, eps) * gain).add_(shift)
    return add_batch_dim(out, 0, maybe_get_level(x))


RULES: dict[Callable, Callable] = {
    F.linear: linear,
    F.scaled_dot_product_attention: attention,
    F.layer_norm: layer_norm,
}
