"""Telling a residual junction from any other addition, by the autograd graph behind its operands."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ADDITIONS = {
    torch.add,
    torch.Tensor.add,
    torch.Tensor.add_,
    torch.Tensor.__add__,
    torch.Tensor.__radd__,
    torch.Tensor.__iadd__,
}


def is_residual(left: Any = None, right: Any = None) -> bool:
    """One operand is computed from the other (or from what the other scales) through parameters."""
    return skip_and_branch(left, right) is not None


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
