"""Watching functions that are not modules: residual additions, told from others by the autograd graph behind their
operands, and attention.

Scores that a mask forbids are left out. For fused attention the scores are computed once more, forward and backward,
and their gradient follows from that of the output.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sigprop.isolation import Mode
from sigprop.measurement.recorder import Recorder
from sigprop.score_masks import gradient_square_behind_output, score_gradient_square, score_summary
from sigprop.sites import ROOT, CallCounter, inside

SOFTMAXES = {F.softmax, torch.softmax, torch.Tensor.softmax}


class FunctionWatch(Mode):
    """Records residual junctions as `module.add` and attention scores as `module.scores`."""

    def __init__(self, recorder: Recorder, junctions: bool, scores: bool):
        super().__init__()
        self.recorder = recorder
        self.junctions = junctions
        self.scores = scores
        self._calls = CallCounter()

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        if self.recorder.phase != "forward":
            return func(*args, **kwargs)
        joins = self.junctions and func in ADDITIONS and skip_and_branch(*args[:2]) is not None
        output = func(*args, **kwargs)
        if joins:
            self.recorder.record(self._name("add"), output)
        if self.scores:
            self._attention(func, args, kwargs, output)
        return output

    def _attention(self, func: Any, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        if func is F.scaled_dot_product_attention:
            self._fused(output, *args, **kwargs)
        elif func is F.multi_head_attention_forward:
            self._record(multi_head_scores(*args, **kwargs))
        elif func in SOFTMAXES and is_attention(*args, **kwargs):
            scores = args[0]
            self._record(scores, scores, lambda gradient: score_gradient_square(scores, gradient))

    def _fused(self, output: Tensor, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> None:
        def square(gradient: Tensor) -> Tensor:
            again = sdpa_scores(query, key, value, *args, **kwargs)  # kept until then they would fill the memory
            heads = value if again.dim() < 3 else _repeated(value, again.shape[-3])
            return gradient_square_behind_output(again, heads, gradient)

        dropout = kwargs.get("dropout_p", args[1] if len(args) > 1 else 0.0)
        scores = sdpa_scores(query, key, value, *args, **kwargs)
        self._record(scores, output if dropout == 0.0 else None, square)

    def _record(
        self,
        scores: Tensor,
        watched: Tensor | None = None,
        square: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        site = self.recorder.note(self._name("scores"), score_summary(scores))
        if site is None or watched is None or square is None or not watched.requires_grad:
            return

        def hook(gradient: Tensor | None) -> None:
            if self.recorder.phase == "backward" and gradient is not None:
                site.values["grad_variance"] = square(gradient)

        self.recorder.hook(watched, hook)

    def _name(self, kind: str) -> str:
        return self._calls.next(inside(self.recorder.current[-1] if self.recorder.current else ROOT, kind))


def is_attention(scores: Tensor, dim: int | None = None, *args: Any, **kwargs: Any) -> bool:
    """A softmax over the last axis of a stack of matrices."""
    return scores.is_floating_point() and scores.dim() >= 3 and dim in (-1, scores.dim() - 1)


ADDITIONS = {
    torch.add,
    torch.Tensor.add,
    torch.Tensor.add_,
    torch.Tensor.__add__,
    torch.Tensor.__radd__,
    torch.Tensor.__iadd__,
}


def skip_and_branch(left: Any = None, right: Any = None) -> tuple[Tensor, Tensor] | None:
    """The operands of a residual addition, the one that the other is computed from first; else None."""
    if not (isinstance(left, Tensor) and isinstance(right, Tensor)) or left.shape != right.shape:
        return None
    first, second = _unscaled(left.grad_fn), _unscaled(right.grad_fn)
    if first is None or second is None or first is second:
        return None
    if _reaches(first, second):
        return right, left
    return (left, right) if _reaches(second, first) else None


def _unscaled(node: Any) -> Any:
    """Step back over multiplications by a number or a learned scale."""
    while node is not None and type(node).__name__ in ("MulBackward0", "DivBackward0"):
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        inner = [parent for parent in parents if not hasattr(parent, "variable")]
        if len(inner) != 1:
            return node
        node = inner[0]
    return node


def _reaches(start: Any, goal: Any) -> bool:
    """Whether the graph behind `start` meets `goal`, with a parameter on the way."""
    waiting, seen, found, learned = [start], {start}, False, False
    while waiting:
        for parent, _ in waiting.pop().next_functions:
            if parent is goal:
                found = True
            elif parent is not None and parent not in seen:
                seen.add(parent)
                learned = learned or hasattr(parent, "variable")
                waiting.append(parent)
    return found and learned


def sdpa_scores(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The scores inside `scaled_dot_product_attention`."""
    with torch.no_grad():
        if enable_gqa:
            key = _repeated(key, query.shape[-3])
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        scores = query @ key.transpose(-2, -1) * factor
        if is_causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(hidden, -math.inf)
        if attn_mask is None:
            return scores
        return scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask


def _repeated(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[-3] == heads else x.repeat_interleave(heads // x.shape[-3], dim=-3)


def multi_head_scores(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The scores inside `multi_head_attention_forward`, whose inputs are (tokens, batch, width)."""
    names = ("embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    heads, bias = given["num_heads"], given["in_proj_bias"]
    if given.get("use_separate_proj_weight"):
        weights = given["q_proj_weight"], given["k_proj_weight"]
    else:
        weights = given["in_proj_weight"].chunk(3)[:2]
    shifts = (None, None) if bias is None else bias.chunk(3)[:2]
    with torch.no_grad():
        projected = [
            F.linear(x if x.dim() == 3 else x[:, None], weight, shift).unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)
            for x, weight, shift in zip((query, key), weights, shifts, strict=True)
        ]
        scores = sdpa_scores(projected[0], projected[1], projected[1])
        mask, padding = given.get("attn_mask"), given.get("key_padding_mask")
        if mask is not None:
            scores = scores + _additive(mask.unflatten(0, (-1, heads)) if mask.dim() == 3 else mask, scores)
        if padding is not None:
            scores = scores + _additive(padding, scores).reshape(-1, 1, 1, padding.shape[-1])
        return scores


def _additive(mask: Tensor, scores: Tensor) -> Tensor:
    """`nn.MultiheadAttention` masks are true where forbidden, or are added."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=scores.dtype).masked_fill(mask, -math.inf)
