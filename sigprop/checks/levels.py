"""What each matrix is to be multiplied by for its output to have unit scale: found by multiplying it, first to last.

Mishkin and Matas 2016, "All you need is a good init", without its orthogonal start: in one pass every product of a
signal with parameters is rescaled as it is made, so that later ones read what they would read. Of the parameters that a
matrix is made of (weight norm) the smallest is rescaled.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from sigprop.batches import copied, tensors_in
from sigprop.checks.operations import LAYERS, PRODUCTS
from sigprop.checks.thresholds import limit
from sigprop.measurement.batch import call
from sigprop.measurement.guard import untouched


def levels(model: nn.Module, batch: Any, grad: bool = False) -> dict[str, float]:
    """By parameter the factor; the model is left as it was. `grad`: its forward takes gradients itself."""
    tensors = [tensor for _, tensor in tensors_in(batch)]
    with untouched(model.modules(), tensors), torch.set_grad_enabled(grad), _Levelled(model) as mode:
        torch.manual_seed(0)
        call(model, copied(batch))
    return mode.factors


class _Levelled(TorchFunctionMode):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.factors: dict[str, float] = {}
        self._made: Any = WeakTensorKeyDictionary()
        for name, item in model.named_parameters():
            self._made[item] = (name, item.numel())

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        given = [item for item in args if isinstance(item, Tensor) and item.is_floating_point()]
        learned = [self._made[item] for item in given if item in self._made]
        if not learned or not isinstance(output, Tensor) or not output.is_floating_point():
            return output
        if len(learned) == len(given):
            self._made[output] = min(learned, key=lambda item: item[1])
        elif func in PRODUCTS and any(item in self._made for item in given[:2]):
            return self._rescaled(func, args, kwargs, given[:2], output)
        return output

    def _rescaled(
        self, func: Any, args: tuple, kwargs: dict[str, Any], factors: list[Tensor], output: Tensor
    ) -> Tensor:
        """At unit size, its bias as it is. Where output and input are of one size no matrix is to blame."""
        bare = output
        if func in LAYERS:
            bare = func(*args[:2], None, *args[3:], **{key: item for key, item in kwargs.items() if key != "bias"})
        name, _ = min((self._made[item] for item in factors if item in self._made), key=lambda item: item[1])
        entering = max((_size(item) for item in factors if item not in self._made), default=1.0)
        size = _size(bare)
        off = _is_off(size) and _is_off(size / (entering or 1.0))
        return bare * self.factors.setdefault(name, 1 / size if off else 1.0) + (output - bare)


def _size(item: Tensor) -> float:
    return float(item.double().square().mean()) ** 0.5


def _is_off(size: float) -> bool:
    return 0.0 < size < math.inf and not 1 / limit("level") <= size <= limit("level")
